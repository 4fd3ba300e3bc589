//! Just enough of PostgreSQL's protocol to run a statement: no client library, no `psql`.

use std::{
    io::{self, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

/// Rows as text, `None` for NULL.
pub(crate) type Rows = Vec<Vec<Option<String>>>;

/// Sessions of the kit carry this name, so that faults can leave them alone.
pub(crate) const APPLICATION: &str = "read-router-testkit";

/// A server that is there answers the start of a session at once.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Longest silence during a statement.
const READ_LIMIT: Duration = Duration::from_secs(60);

/// One session over TCP with trust authentication.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    /// `I` where no transaction is open, as of the last answer.
    state: u8,
}

/// Why a statement gave no rows.
#[derive(Debug)]
pub(crate) enum Failure {
    Server { code: String, message: String },
    Io(io::Error),
}

impl Connection {
    pub(crate) fn open(port: u16, database: &str) -> Result<Self, Failure> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(CONNECT_LIMIT))?;
        let mut connection = Self { stream: BufReader::new(stream), state: 0 };
        let mut startup = 196_608_u32.to_be_bytes().to_vec(); // protocol 3.0
        for text in ["user", "postgres", "database", database, "application_name", APPLICATION] {
            startup.extend_from_slice(text.as_bytes());
            startup.push(0);
        }
        startup.push(0);
        connection.send(None, &startup)?;
        connection.answer()?;
        connection.stream.get_ref().set_read_timeout(Some(READ_LIMIT))?;
        Ok(connection)
    }

    /// Runs one or more statements; the rows are those of the last one that returned any.
    pub(crate) fn query(&mut self, sql: &str) -> Result<Rows, Failure> {
        let mut body = sql.as_bytes().to_vec();
        body.push(0);
        self.send(Some(b'Q'), &body)?;
        self.answer()
    }

    /// Puts the session back to what it was when it was opened; `false` if it is of no more use.
    pub(crate) fn reset(&mut self) -> bool {
        self.state == b'I' && self.query("DISCARD ALL").is_ok()
    }

    /// Whether the server has neither closed the session nor said anything since the last answer.
    pub(crate) fn is_quiet(&self) -> bool {
        let stream = self.stream.get_ref();
        let quiet = stream.set_nonblocking(true).is_ok()
            && stream.peek(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        stream.set_nonblocking(false).is_ok() && quiet
    }

    /// Waits until the server has closed this session; `false` if it has not within the limit.
    pub(crate) fn closed_within(&mut self, limit: Duration) -> bool {
        let stream = self.stream.get_ref();
        if stream.set_read_timeout(Some(limit)).is_err() {
            return true;
        }
        loop {
            match self.receive() {
                Ok(_) => {}
                Err(error) => {
                    return !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
                }
            }
        }
    }

    /// Reads until the server is ready for the next statement.
    fn answer(&mut self) -> Result<Rows, Failure> {
        let mut rows = Rows::new();
        let mut failure = None;
        loop {
            let (kind, body) = match self.receive() {
                Ok(message) => message,
                // A fatal error is followed by the end of the stream: the error tells more.
                Err(end) => return Err(failure.unwrap_or(Failure::Io(end))),
            };
            match kind {
                b'R' if body.starts_with(&[0, 0, 0, 0]) => {}
                b'R' => return Err(broken("the server asks for a password; the kit has none")),
                b'T' => rows.clear(),
                b'D' => rows.push(row(&body).ok_or_else(|| broken("a malformed row"))?),
                b'E' => failure = Some(error_of(&body)),
                b'G' => self.send(Some(b'f'), b"COPY FROM STDIN is not supported\0")?,
                b'Z' => {
                    self.state = body.first().copied().unwrap_or_default();
                    return failure.map_or(Ok(rows), Err);
                }
                _ => {}
            }
        }
    }

    fn send(&mut self, kind: Option<u8>, body: &[u8]) -> Result<(), Failure> {
        let length = u32::try_from(body.len() + 4).map_err(|_| broken("a statement too long"))?;
        let mut message: Vec<u8> = kind.into_iter().collect();
        message.extend_from_slice(&length.to_be_bytes());
        message.extend_from_slice(body);
        Ok(self.stream.get_mut().write_all(&message)?)
    }

    fn receive(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let mut body = vec![0; length.saturating_sub(4)];
        self.stream.read_exact(&mut body)?;
        Ok((head[0], body))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn broken(message: &str) -> Failure {
    Failure::Io(io::Error::new(io::ErrorKind::InvalidData, message))
}

/// A data row: the number of columns, then each column's length (-1 for NULL) and bytes.
fn row(body: &[u8]) -> Option<Vec<Option<String>>> {
    let (count, mut rest) = body.split_first_chunk::<2>()?;
    let mut columns = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk::<4>()?;
        rest = after;
        match usize::try_from(i32::from_be_bytes(*length)) {
            Ok(length) => {
                let (value, after) = rest.split_at_checked(length)?;
                rest = after;
                columns.push(Some(String::from_utf8_lossy(value).into_owned()));
            }
            Err(_) => columns.push(None),
        }
    }
    Some(columns)
}

/// An error: fields of one letter and a text, each ended by a zero byte.
fn error_of(body: &[u8]) -> Failure {
    let mut code = String::new();
    let mut message = String::new();
    for field in body.split(|&byte| byte == 0) {
        match field.split_first() {
            Some((b'C', text)) => code = String::from_utf8_lossy(text).into_owned(),
            Some((b'M', text)) => message = String::from_utf8_lossy(text).into_owned(),
            _ => {}
        }
    }
    Failure::Server { code, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_rows_and_errors() {
        let body = [0, 3, 0, 0, 0, 1, b'a', 255, 255, 255, 255, 0, 0, 0, 0];
        assert_eq!(row(&body), Some(vec![Some("a".into()), None, Some(String::new())]));
        assert_eq!(row(&[0, 1, 0, 0, 0, 9, b'a']), None);
        let Failure::Server { code, message } = error_of(b"SERROR\0C25006\0Mno\0\0") else {
            panic!("not a server's error");
        };
        assert_eq!((code.as_str(), message.as_str()), ("25006", "no"));
    }
}
