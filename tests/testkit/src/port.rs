use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    net::{Ipv4Addr, TcpListener},
};

/// Below what systems give to outgoing connections: there, a crashed server's port could be taken by any client.
const RANGE: std::ops::Range<u64> = 15_000..32_000;

/// Different ports on 127.0.0.1 that nobody listens on now.
pub(crate) fn free(count: usize) -> Vec<u16> {
    let mut ports = Vec::new();
    while ports.len() < count {
        let draw = RandomState::new().hash_one(()) % (RANGE.end - RANGE.start);
        let port = u16::try_from(RANGE.start + draw).expect("the range ends below 65536");
        if !ports.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            ports.push(port);
        }
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ() {
        let mut ports = free(50);
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 50);
    }
}
