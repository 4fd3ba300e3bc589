//! The part of a history around a broken promise, for people.

use std::fmt::Write;

use crate::{
    checker::Violation,
    history::{Action, Fault, History, Operation, Value},
};

/// Calls of the session that are shown before the one that breaks a promise.
const BEFORE: usize = 40;

/// What the session of a violation did up to it, with what was done to the servers meanwhile and the call that says
/// what should have been there.
#[must_use]
pub fn excerpt(history: &History, violation: &Violation) -> String {
    let Some(broken) = history.operations.iter().find(|operation| operation.id == violation.operation) else {
        return format!("{violation:?}\n");
    };
    let because = history.operations.iter().find(|operation| operation.id == violation.because);
    let mut family = vec![broken.session];
    family.extend(because.map(|because| because.session));
    let mut operations: Vec<&Operation> = history
        .operations
        .iter()
        .filter(|operation| family.contains(&operation.session) && operation.started <= broken.ended)
        .collect();
    operations.sort_by_key(|operation| operation.started);
    let from = operations.len().saturating_sub(BEFORE);
    let mut shown = operations.split_off(from);
    // The one that says so may be long ago.
    if let Some(because) = because.filter(|because| shown.iter().all(|operation| operation.id != because.id)) {
        shown.insert(0, because);
    }
    let origin = broken.started;
    let since = shown.iter().map(|operation| operation.started).min().unwrap_or(origin);
    let mut lines: Vec<(u64, String)> = shown
        .iter()
        .map(|operation| {
            let mark = match operation.id {
                id if id == violation.operation => ">>",
                id if id == violation.because => "->",
                _ => "  ",
            };
            (operation.started, format!("{mark} {}", line(operation, violation.register, origin)))
        })
        .collect();
    let nearby = history.faults.iter().filter(|fault| fault.ended >= since && fault.began <= broken.ended);
    lines.extend(nearby.map(|fault| (fault.began, format!("!! {}", fault_line(fault, origin)))));
    lines.sort_by_key(|(at, _)| *at);
    let mut text = format!(
        "{}: call {:x} shows version {} of register {}, and call {:x} says at least {}\n",
        violation.kind.as_str(),
        violation.operation,
        violation.found,
        violation.register,
        violation.because,
        violation.wanted
    );
    for (_, line) in lines {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{line}");
    }
    text
}

fn line(operation: &Operation, register: u16, origin: u64) -> String {
    let action = match &operation.action {
        Action::Read(class) => class.as_str().to_owned(),
        Action::Write(registers) => format!("write {registers:?}"),
        Action::Export => "export".into(),
        Action::Resume(exports) => format!("resume {exports:x?}"),
        Action::Final => "final".into(),
    };
    let server = operation.server.map_or(String::new(), |server| {
        format!(" {}:{}", if server.standby { "standby" } else { "primary" }, server.port)
    });
    let reason = operation.reason.as_ref().map_or(String::new(), |reason| format!(" ({reason})"));
    let value = |value: &Value| {
        let mark = if value.register == register { "*" } else { "" };
        format!(" {mark}r{}=v{}", value.register, value.version)
    };
    let values: String = operation.values.iter().map(value).collect();
    format!(
        "{} .. {} session {:x} task {:x} call {:x} {action}{server}{reason}{values} {:?}",
        millis(operation.started, origin),
        millis(operation.ended, origin),
        operation.session,
        operation.task,
        operation.id,
        operation.outcome
    )
}

fn fault_line(fault: &Fault, origin: u64) -> String {
    format!("{} .. {} {} on {}", millis(fault.began, origin), millis(fault.ended, origin), fault.kind, fault.node)
}

/// Milliseconds from the start of the call that breaks the promise.
fn millis(at: u64, origin: u64) -> String {
    let (sign, apart) = if at < origin { ('-', origin - at) } else { ('+', at - origin) };
    format!("{sign}{}.{:03} ms", apart / 1_000_000, apart / 1000 % 1000)
}
