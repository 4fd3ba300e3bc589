//! A name in front of a server: it can be moved, cut, and made to hold a moment open.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{Error, Node};

#[cfg(test)]
mod tests;

/// A TCP name on 127.0.0.1 in front of a node, as DNS or a proxy would be; dropping it closes its connections.
///
/// It passes bytes on as they are. Schedules that nobody could time are made certain by [holding](Self::hold_question)
/// what one connection asks, or [what it is answered](Self::hold_answer), until something else has happened.
///
/// ```no_run
/// # fn main() -> Result<(), read_router_testkit::Error> {
/// # let cluster = read_router_testkit::Cluster::builder().start()?;
/// # let limit = std::time::Duration::from_secs(5);
/// use read_router_testkit::Relay;
///
/// let name = Relay::to(cluster.replica(0))?;
/// let held = name.hold_question("SELECT count(*) FROM ride");
/// // A client of name.url() sends that query in another thread.
/// held.wait(limit)?;
/// cluster.replica(0).promote()?;
/// held.release(); // It runs on what is a primary by now.
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Relay {
    port: u16,
    database: String,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

/// One connection's bytes, kept until this is released or dropped; made by [`Relay::hold_question`] and
/// [`Relay::hold_answer`].
#[derive(Debug)]
#[must_use = "dropping a hold releases it"]
pub struct Hold {
    id: u64,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Where new connections go.
    target: u16,
    /// Both ends of each open connection.
    links: Vec<Link>,
    holds: Vec<Held>,
    next: u64,
    closed: bool,
}

#[derive(Debug)]
struct Link {
    id: u64,
    client: TcpStream,
    server: TcpStream,
}

#[derive(Debug)]
struct Held {
    id: u64,
    way: Way,
    pattern: Vec<u8>,
    /// The connection that it has caught.
    caught: Option<u64>,
    /// Whether bytes are kept.
    arrived: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Question,
    Answer,
}

impl Relay {
    /// A new name that leads to the node.
    ///
    /// # Errors
    /// If there is no free port.
    pub fn to(node: &Node) -> Result<Self, Error> {
        Self::to_port(node.port(), node.database())
    }

    fn to_port(target: u16, database: &str) -> Result<Self, Error> {
        let failed = || Error::io("cannot listen on 127.0.0.1");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed())?;
        let port = listener.local_addr().map_err(failed())?.port();
        let state = State { target, links: Vec::new(), holds: Vec::new(), next: 0, closed: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let accepting = shared.clone();
        let acceptor = thread::spawn(move || accepting.accept(&listener));
        Ok(Self { port, database: database.to_owned(), shared, acceptor: Some(acceptor) })
    }

    /// Address for any client, like [`Node::url`].
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{}", self.port, self.database)
    }

    /// Moves the name: new connections go to this node, open ones stay where they are.
    pub fn point_to(&self, node: &Node) {
        self.shared.lock().target = node.port();
    }

    /// Breaks every open connection; new ones are accepted. What is held is lost.
    pub fn cut(&self) {
        for link in self.shared.lock().links.drain(..) {
            link.close();
        }
        self.shared.changed.notify_all();
    }

    /// Keeps from the server what the next connection sends whose client sends `text`, from there on.
    ///
    /// The text is looked for in the bytes of one connection after this call. A statement that a client has prepared
    /// before travels without its text. While it is held the client does not hear either if the server ends the connection.
    pub fn hold_question(&self, text: &str) -> Hold {
        self.hold(Way::Question, text)
    }

    /// Keeps from the client all that the server sends to the next connection whose client sends `text`.
    ///
    /// A client that prepares statements sends the text alone first: there, what is held is the answer to that, before
    /// anything is executed.
    pub fn hold_answer(&self, text: &str) -> Hold {
        self.hold(Way::Answer, text)
    }

    fn hold(&self, way: Way, text: &str) -> Hold {
        let mut state = self.shared.lock();
        let id = state.next_id();
        state.holds.push(Held { id, way, pattern: text.as_bytes().to_vec(), caught: None, arrived: false });
        Hold { id, shared: self.shared.clone() }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.cut();
        // It looks whether we are closed when somebody comes.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl Hold {
    /// Waits until bytes are held: the question has been sent, or the answer has come.
    ///
    /// # Errors
    /// [`Error::Timeout`] if they do not come in time.
    pub fn wait(&self, limit: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + limit;
        let mut state = self.shared.lock();
        while !state.is_held(self.id) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let held = state.holds.iter().find(|held| held.id == self.id);
                let what = held.map_or_else(String::new, |held| String::from_utf8_lossy(&held.pattern).into_owned());
                let caught = held.is_some_and(|held| held.caught.is_some());
                let found = if caught { "the question, but no answer" } else { "no such text" };
                return Err(Error::Timeout { what: format!("bytes to hold for {what:?}"), limit, found: found.into() });
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Whether bytes are held now.
    #[must_use]
    pub fn has_arrived(&self) -> bool {
        self.shared.lock().is_held(self.id)
    }

    /// Lets the bytes go on, and the connection with them.
    pub fn release(self) {}
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.lock().holds.retain(|held| held.id != self.id);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics half-way under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            let target = {
                let state = self.lock();
                if state.closed {
                    return;
                }
                state.target
            };
            // A server that is not there: the client sees its connection close, as behind a proxy.
            if let Ok(client) = client {
                let _ = self.link(client, target);
            }
        }
    }

    fn link(self: &Arc<Self>, client: TcpStream, target: u16) -> io::Result<()> {
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, target))?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_server) = (client.try_clone()?, server.try_clone()?);
        let (from_server, to_client) = (server.try_clone()?, client.try_clone()?);
        let id = {
            let mut state = self.lock();
            if state.closed {
                return Ok(());
            }
            let id = state.next_id();
            state.links.push(Link { id, client, server });
            id
        };
        let (there, back) = (self.clone(), self.clone());
        thread::spawn(move || there.pump(id, Way::Question, from_client, to_server));
        thread::spawn(move || back.pump(id, Way::Answer, from_server, to_client));
        Ok(())
    }

    /// Passes one direction on until its end.
    fn pump(&self, link: u64, way: Way, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 64 << 10];
        // The end of what was sent before, since a text may come in two pieces.
        let mut before = Vec::new();
        loop {
            let bytes = match from.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(length) => &buffer[..length],
            };
            if way == Way::Question {
                self.catch(link, &mut before, bytes);
            }
            self.wait_while(link, |held| held.way == way);
            if to.write_all(bytes).is_err() {
                break;
            }
        }
        // The end is a message too: whoever is held does not hear that the other side is gone.
        self.wait_while(link, |_| true);
        let _ = to.shutdown(Shutdown::Write);
        let _ = from.shutdown(Shutdown::Read);
        if way == Way::Answer {
            // A server that has closed answers nothing more.
            self.lock().drop_link(link);
            self.changed.notify_all();
        }
    }

    /// Gives the connection to the holds whose text ends in what it has just sent.
    fn catch(&self, link: u64, before: &mut Vec<u8>, bytes: &[u8]) {
        let old = before.len();
        before.extend_from_slice(bytes);
        let mut longest = 0;
        for held in self.lock().holds.iter_mut().filter(|held| held.caught.is_none()) {
            let length = held.pattern.len().max(1);
            let recent = &before[old.saturating_sub(length - 1)..];
            if recent.windows(length).any(|window| window == held.pattern) {
                held.caught = Some(link);
            }
            longest = longest.max(length - 1);
        }
        before.drain(..before.len().saturating_sub(longest));
    }

    /// Waits until no such hold has the connection any more.
    fn wait_while(&self, link: u64, kept_by: impl Fn(&Held) -> bool) {
        let mut state = self.lock();
        while let Some(held) = state.holds.iter_mut().find(|held| held.caught == Some(link) && kept_by(held)) {
            if !held.arrived {
                held.arrived = true;
                self.changed.notify_all();
            }
            if state.closed || !state.links.iter().any(|open| open.id == link) {
                return;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn is_held(&self, id: u64) -> bool {
        self.holds.iter().any(|held| held.id == id && held.arrived)
    }

    fn drop_link(&mut self, id: u64) {
        if let Some(at) = self.links.iter().position(|link| link.id == id) {
            self.links.swap_remove(at).close();
        }
    }
}

impl Link {
    fn close(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}
