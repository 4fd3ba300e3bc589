//! Each rule's world, with the rule on and, in a build that can, off.

use std::time::Duration;

use read_router_model::{World, worlds};

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn every_rule() {
    for case in worlds::all() {
        if let Some(off) = case.world.off.and(case.rule) {
            let found = World { off, ..case.world.clone() }.search(LIMIT);
            println!(
                "{} {} off: {} states depth {} {:?} {}",
                case.number,
                case.rule,
                found.states,
                found.depth,
                found.took,
                found.broken.map_or("NOT FOUND".into(), |s| s.to_string())
            );
        }
        let on = case.world.search(LIMIT);
        println!(
            "{} {} on: {} states depth {} {:?} {}",
            case.number,
            case.rule,
            on.states,
            on.depth,
            on.took,
            on.broken.map_or("ok".into(), |s| s.to_string())
        );
    }
}

#[test]
fn combinations() {
    for case in read_router_model::combined::all() {
        let on = case.world.search(LIMIT);
        println!(
            "{} on: {} states depth {} {:?} exhausted {} {}",
            case.name,
            on.states,
            on.depth,
            on.took,
            on.exhausted,
            on.broken.map_or("ok".into(), |s| s.to_string())
        );
    }
}
