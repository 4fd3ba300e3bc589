//! What a choice costs with 3 and with 100 replicas. Measures and prints; `tests/it.rs` shows that it allocates nothing.

use std::{hint::black_box, time::Duration};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use read_router::{
    Answer, Backend, Config, Greeting, InFlight, Instance, Lsn, Monitor, Need, NodeId, ReadClass, Role, Session,
    SystemId, Time, Timeline, Token, WalLayout, select,
};

/// A monitor whose nodes have all answered: the primary at 80, the replicas at 100.
fn monitor(replicas: u16) -> Monitor {
    let mut monitor = Monitor::new(usize::from(replicas), Config::default());
    for index in 0..=replicas {
        let greeting = Greeting {
            instance: Instance { system: SystemId(7), started_us: i64::from(index), port: 5432 },
            layout: WalLayout::default(),
            backend: Backend { pid: 1, started_us: Some(1) },
            database: 5,
            branch: None,
        };
        let epoch = monitor.opened(NodeId(index), &greeting);
        monitor.sent(NodeId(index), Time::from_nanos(1), 0);
        let (role, lsn) = if index == 0 { (Role::Primary, 80) } else { (Role::Replica, 100) };
        let answer = Answer { role, lsn: Lsn::new(lsn), timeline: Some(Timeline(1)), exact: true, xid: None };
        monitor.answered(NodeId(index), epoch, &answer, Time::from_nanos(2));
    }
    monitor
}

fn choices(criterion: &mut Criterion) {
    let config = Config::default();
    let token: Token = "rr1:7:1@0/50".parse().expect("well formed");
    let mut group = criterion.benchmark_group("select");
    for replicas in [3, 100] {
        let monitor = monitor(replicas);
        let in_flight = InFlight::new(usize::from(replicas) + 1);
        let session = Session::resume(token.clone(), Time::from_nanos(0), false);
        for class in [ReadClass::MustSeeMyWrite, ReadClass::SecondsStale(Duration::from_secs(1)), ReadClass::Eventual] {
            let need = Need {
                read: class.into(),
                session: &session,
                started: Time::from_nanos(3),
                exclude: None,
                in_flight: &in_flight,
                config: &config,
            };
            let mut draw = 0_u64;
            group.bench_function(BenchmarkId::new(class.as_str(), replicas), |bencher| {
                bencher.iter(|| {
                    draw = draw.wrapping_add(1);
                    black_box(select(monitor.topology(), black_box(&need), Time::from_nanos(4), draw))
                });
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = choices
}
criterion_main!(benches);
