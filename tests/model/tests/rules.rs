//! Each rule's world, with the rule on and, in a build that can, off; then the worlds that combine.

use std::{
    fmt::Write as _,
    io::Write as _,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use read_router_model::{Found, World, combined, excuses, worlds};

const LIMIT: Duration = Duration::from_secs(120);

/// Past the test runner, which keeps what a passing test prints to itself.
fn show(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

fn off(found: Option<&Found>) -> String {
    match found {
        None => "not in this build".into(),
        Some(Found { broken: Some(_), depth, states, .. }) => format!("found ({depth} steps, {states} states)"),
        Some(Found { states, .. }) => format!("NOT FOUND ({states} states)"),
    }
}

fn on(found: &Found) -> String {
    match found {
        Found { broken: Some(_), .. } => "BROKEN".into(),
        Found { exhausted: true, states, .. } => format!("exhausted ({states} states)"),
        Found { states, .. } => format!("NOT EXHAUSTED ({states} states)"),
    }
}

/// Searches all, on as many cores as there are; in the order of `worlds`.
fn search_all(worlds: &[&World]) -> Vec<Found> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((index, world)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    worlds.get(index).map(|world| (index, world))
                } {
                    let one = world.search(LIMIT);
                    found.lock().expect("no search panics").push((index, one));
                }
            });
        }
    });
    let mut found = found.into_inner().expect("no search panics");
    found.sort_by_key(|(index, _)| *index);
    found.into_iter().map(|(_, found)| found).collect()
}

#[test]
fn each_rule_off_is_found_and_on_is_exhausted() {
    let (mut table, mut schedules, mut wrong) = (String::new(), String::new(), Vec::new());
    let _ = writeln!(table, "\n{:>4}  {:<20} {:<32} {:<28} seconds", "rule", "", "off", "on");
    for case in worlds::all() {
        let without = case.world.off.and(case.rule).map(|off| World { off, ..case.world.clone() }.search(LIMIT));
        let with = case.world.search(LIMIT);
        let seconds = (with.took + without.as_ref().map_or(Duration::ZERO, |found| found.took)).as_secs_f32();
        let (number, rule) = (case.number, case.rule);
        let _ =
            writeln!(table, "{number:>4}  {rule:<20} {:<32} {:<28} {seconds:>7.2}", off(without.as_ref()), on(&with));
        if without.as_ref().is_some_and(|found| found.broken.is_none()) || !with.exhausted {
            wrong.push(rule);
        }
        if let Some(schedule) = without.and_then(|found| found.broken) {
            let _ = writeln!(schedules, "\nrule {number} off ({rule}):\n{schedule}");
        }
        if let Some(schedule) = with.broken {
            let _ = writeln!(schedules, "\nrule {number} ON ({rule}):\n{schedule}");
        }
    }
    show(&schedules);
    show(&table);
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn the_worlds_that_combine_are_exhausted() {
    let (mut table, mut wrong) = (String::new(), Vec::new());
    let _ = writeln!(table, "\n{:<56} {:<28} seconds", "world", "all rules on");
    let cases = combined::all();
    let worlds: Vec<_> = cases.iter().map(|case| &case.world).collect();
    for (case, found) in cases.iter().zip(search_all(&worlds)) {
        let _ = writeln!(table, "{:<56} {:<28} {:>7.2}", case.name, on(&found), found.took.as_secs_f32());
        if let Some(schedule) = &found.broken {
            show(&format!("\n{}:\n{schedule}\n", case.name));
        }
        if !found.exhausted {
            wrong.push(case.name);
        }
    }
    show(&table);
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// The words say that these are not promised. If one is not found any more, they promise too little.
#[test]
fn what_is_not_promised_is_found() {
    for case in excuses::all() {
        let found = case.world.search(LIMIT);
        let schedule = found.broken.unwrap_or_else(|| panic!("not found: {}", case.name));
        show(&format!("\nnot promised, {}:\n{schedule}\n", case.name));
    }
}
