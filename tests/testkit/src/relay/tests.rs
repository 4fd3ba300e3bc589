use super::*;

const SOON: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(50);

/// Answers each connection with a letter of its own and what it sends.
fn echo(letter: u8) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut buffer = [0; 64];
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    stream.write_all(&[&[letter], &buffer[..length]].concat()).unwrap();
                }
            });
        }
    });
    port
}

fn client(relay: &Relay) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, relay.port)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

fn ask(stream: &mut TcpStream, text: &str) -> String {
    stream.write_all(text.as_bytes()).unwrap();
    read(stream, text.len() + 1)
}

fn read(stream: &mut TcpStream, length: usize) -> String {
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

#[test]
fn a_moved_name_leaves_open_connections_where_they_are() {
    let relay = Relay::to_port(echo(b'a'), "d").unwrap();
    let mut old = client(&relay);
    assert_eq!(ask(&mut old, "1"), "a1");
    relay.shared.lock().target = echo(b'b');
    assert_eq!(ask(&mut client(&relay), "2"), "b2");
    assert_eq!(ask(&mut old, "3"), "a3");
    relay.cut();
    assert_eq!(old.read(&mut [0]).unwrap_or(0), 0);
    assert_eq!(ask(&mut client(&relay), "4"), "b4");
    drop(relay);
}

#[test]
fn one_connection_is_held_until_the_release() {
    let relay = Relay::to_port(echo(b'a'), "d").unwrap();
    let (mut first, mut second) = (client(&relay), client(&relay));
    assert_eq!(ask(&mut first, "query"), "aquery");
    let hold = relay.hold_question("query");
    assert_eq!(ask(&mut first, "que"), "aque");
    assert!(hold.wait(SHORT).unwrap_err().to_string().contains("no such text"));
    first.write_all(b"ry").unwrap();
    hold.wait(SOON).unwrap();
    assert!(hold.has_arrived());
    assert_eq!(ask(&mut second, "query"), "aquery", "the next is not held");
    first.set_read_timeout(Some(SHORT)).unwrap();
    assert!(first.read(&mut [0]).is_err());
    first.set_read_timeout(Some(SOON)).unwrap();
    hold.release();
    assert_eq!(read(&mut first, 3), "ary");
}

#[test]
fn an_answer_is_held_when_it_has_come() {
    let relay = Relay::to_port(echo(b'a'), "d").unwrap();
    let mut stream = client(&relay);
    let hold = relay.hold_answer("query");
    stream.write_all(b"query").unwrap();
    hold.wait(SOON).unwrap();
    stream.write_all(b"!").unwrap();
    hold.release();
    assert_eq!(read(&mut stream, 8), "aquerya!");
}
