//! What the core promises as a whole, from outside.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use proptest::prelude::*;
use read_router::{
    Answer, Ask, Backend, Branch, Config, Greeting, InFlight, Instance, Lsn, Monitor, Need, NodeId, ReadClass, Role,
    Route, Session, SystemId, Time, Timeline, Token, WalLayout, select,
};

const SYSTEM: SystemId = SystemId(7);

fn open(monitor: &mut Monitor, node: NodeId) -> read_router::Epoch {
    monitor.opened(
        node,
        &Greeting {
            instance: Instance { system: SYSTEM, started_us: i64::from(node.0), port: 5432 },
            layout: WalLayout::default(),
            backend: Backend { pid: 1, started_us: Some(1) },
            database: 5,
            branch: None,
        },
    )
}

/// A monitor whose primary is at `primary` and whose replicas are where `replicas` says.
fn monitor(primary: u64, replicas: &[u64]) -> Monitor {
    let mut monitor = Monitor::new(replicas.len(), Config::default());
    let all = std::iter::once((Role::Primary, primary)).chain(replicas.iter().map(|lsn| (Role::Replica, *lsn)));
    for (index, (role, lsn)) in all.enumerate() {
        let node = NodeId(u16::try_from(index).unwrap());
        let epoch = open(&mut monitor, node);
        monitor.sent(node, Time::from_nanos(10), 0);
        let answer = Answer { role, lsn: Lsn::new(lsn), timeline: Some(Timeline(1)), exact: true, xid: None };
        assert!(monitor.answered(node, epoch, &answer, Time::from_nanos(11)));
    }
    monitor
}

fn need<'a>(read: ReadClass, session: &'a Session, in_flight: &'a InFlight, config: &'a Config) -> Need<'a> {
    Need { read: read.into(), session, started: Time::from_nanos(20), exclude: None, in_flight, config }
}

#[test]
fn a_choice_allocates_nothing() {
    let (config, in_flight) = (Config::default(), InFlight::new(101));
    let monitor = monitor(80, &[100; 100]);
    let branch = Branch { system: SYSTEM, timeline: Timeline(1) };
    let mut session = Session::new(false);
    session.contact(branch, Time::from_nanos(5), monitor.topology());
    session.resolve(monitor.topology());
    for class in [ReadClass::MustSeeMyWrite, ReadClass::SecondsStale(Duration::from_secs(1)), ReadClass::Eventual] {
        let allocated = allocation_counter::measure(|| {
            for draw in 0..1000 {
                session.resolve(monitor.topology());
                let route =
                    select(monitor.topology(), &need(class, &session, &in_flight, &config), Time::from_nanos(21), draw);
                assert!(matches!(route, Route::Replica(..)));
            }
        });
        assert_eq!(allocated.count_total, 0, "{class:?}");
    }
    // Nor does keeping a session in step, once it has its places.
    session.read_done(NodeId(1), read_router::Epoch(1), Some(branch), Time::from_nanos(30), monitor.topology());
    session.contact(branch, Time::from_nanos(31), monitor.topology());
    let allocated = allocation_counter::measure(|| {
        for at in 40..1000 {
            session.read_done(NodeId(1), read_router::Epoch(1), Some(branch), Time::from_nanos(at), monitor.topology());
            session.contact(branch, Time::from_nanos(at), monitor.topology());
        }
    });
    assert_eq!(allocated.count_total, 0);
}

proptest! {
    /// A replica behind the token is never chosen for a strict read, and if one is not behind, one is chosen.
    #[test]
    fn never_a_replica_behind_the_token(
        replicas in prop::collection::vec(0_u64..200, 1..8),
        token in 0_u64..200,
        draw: u64,
    ) {
        let monitor = monitor(1000, &replicas);
        let text = format!("rr1:7:1@0/{token:X}");
        let session = Session::resume(text.parse::<Token>().unwrap(), Time::from_nanos(50), false);
        let (config, in_flight) = (Config::default(), InFlight::new(9));
        let need = need(ReadClass::MustSeeMyWrite, &session, &in_flight, &config);
        match select(monitor.topology(), &need, Time::from_nanos(60), draw) {
            Route::Replica(node, proof) => {
                prop_assert!(replicas[node.index() - 1] >= token);
                prop_assert_eq!(proof.lsn, Lsn::new(replicas[node.index() - 1]));
            }
            Route::Wait { ask, .. } => {
                prop_assert_eq!(ask, Ask::Replicas);
                prop_assert!(replicas.iter().all(|lsn| *lsn < token));
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    /// A token only ever advances, whatever it is merged with and in whatever order.
    #[test]
    fn a_token_never_goes_back(parts in prop::collection::vec((1_u32..4, 0_u64..1000), 1..10)) {
        let mut token = Token::FRESH;
        for (timeline, lsn) in &parts {
            let before: Vec<_> = token.positions().collect();
            token.advance(&format!("rr1:7:{timeline}@0/{lsn:X}").parse().unwrap());
            for old in before {
                prop_assert!(token.positions().any(|p| p.branch == old.branch && p.lsn >= old.lsn));
            }
        }
        let mut reversed = Token::FRESH;
        for (timeline, lsn) in parts.iter().rev() {
            reversed.advance(&format!("rr1:7:{timeline}@0/{lsn:X}").parse().unwrap());
        }
        prop_assert_eq!(&token, &reversed);
        prop_assert_eq!(token.to_string().parse::<Token>().unwrap(), token);
    }

    /// Input from outside is an error or a value, never a panic.
    #[test]
    fn parsing_never_panics(text in ".{0,60}", digits in "rr1:[0-9:@/,A-F]{0,40}") {
        let _ = text.parse::<Token>();
        let _ = text.parse::<Lsn>();
        let _ = digits.parse::<Token>();
    }
}
