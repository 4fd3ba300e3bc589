//! Short runs on real servers: the whole way from the sessions to the verdict.

use std::{path::PathBuf, time::Duration};

use read_router_chaos::{Gate, Report, Settings, run};
use tokio::sync::Mutex;

/// One run at a time has the machine.
static MACHINE: Mutex<()> = Mutex::const_new(());

async fn chaos(gate: Gate, seconds: u64, seed: u64) -> Report {
    let _alone = MACHINE.lock().await;
    let settings = Settings {
        length: Duration::from_secs(seconds),
        seed,
        tasks: 6,
        gate,
        program: PathBuf::from(env!("CARGO_BIN_EXE_chaos")),
        keep: None,
    };
    run(&settings, |_| {}, |text| println!("{text}")).await.expect("the run comes to its end")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_promise_is_broken() {
    let report = chaos(Gate::On, 8, 1).await;
    println!("{report}");
    assert_eq!(report.broken(), 0);
    let on_both = |class| report.reads.get(class).is_some_and(|(standbys, primaries)| *standbys > 0 && *primaries > 0);
    assert!(on_both("must_see_my_write") && on_both("seconds_stale") && on_both("eventual"), "{report}");
    assert!(report.resumed_here > 0 && report.resumed_across > 0, "{report}");
    for outcome in ["acknowledged", "cancelled", "rolled_back"] {
        assert!(report.writes.contains_key(outcome), "{outcome}: {report}");
    }
    assert!(report.faults.keys().any(|kind| kind.starts_with("failover")), "{report}");
    assert!(report.faults.len() > 4, "{report}");
}

/// The same load with reads that nothing gates: what comes out of the whole way must be able to be bad.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_gate_promises_are_broken() {
    let mut missing = vec!["missed_own_write", "missed_shown", "went_back_between_replicas", "staler_than_bound"];
    // A slow machine does little in a few seconds: it gets more of them.
    for seed in 1..10 {
        let report = chaos(Gate::Off, 5, seed).await;
        missing.retain(|kind| report.violations[kind] == 0);
        for kind in ["invented", "from_the_future", "rolled_back", "two_histories", "lost"] {
            assert_eq!(report.violations[kind], 0, "{kind} is not the gate's doing: {report}");
        }
        if missing.is_empty() {
            return;
        }
    }
    panic!("never found: {missing:?}");
}
