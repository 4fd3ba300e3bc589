//! What is told to `tracing`. Never SQL, parameters or URLs.
//!
//! Targets: `read_router::selection` (trace for each choice, warn when the primary met a promise in a replica's
//! place), `read_router::session`, `read_router::monitor` (debug for each change).

use std::time::Duration;

use tracing::{debug, trace, warn};

use crate::{BranchLost, NodeId, PrimaryReason, ReadClass, Standing};

const SELECTION: &str = "read_router::selection";
const SESSION: &str = "read_router::session";
const MONITOR: &str = "read_router::monitor";

fn name(class: Option<ReadClass>) -> &'static str {
    class.map_or("none", |c| c.as_str())
}

/// A read goes to a replica.
pub fn to_replica(class: ReadClass, node: NodeId, waited: Duration) {
    let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
    trace!(target: SELECTION, class = class.as_str(), replica = %node, waited_ms, "replica");
}

/// A call goes to the primary, the `count`-th of its class and reason. A warning if a replica should have served it: for the
/// first, second, fourth, eighth and so on, so that a replica that lags under load does not fill the log.
pub fn to_primary(class: Option<ReadClass>, reason: PrimaryReason, count: u64) {
    use PrimaryReason as R;
    match reason {
        R::NotARead | R::Unannotated | R::Asked | R::Transaction | R::NoReplica | R::Isolation => {
            trace!(target: SELECTION, class = name(class), reason = reason.as_str(), "primary");
        }
        _ if count.is_power_of_two() => {
            warn!(target: SELECTION, class = name(class), reason = reason.as_str(), count, "fallback to the primary");
        }
        _ => debug!(target: SELECTION, class = name(class), reason = reason.as_str(), count, "fallback to the primary"),
    }
}

/// A read gets an error in place of a fallback.
pub fn refused(class: Option<ReadClass>, reason: PrimaryReason) {
    debug!(target: SELECTION, class = name(class), reason = reason.as_str(), "refused");
}

/// A replica refused as a write what had passed for a read; `is_new` if it is the first of its shape.
pub fn misrouted(node: NodeId, repeated: bool, is_new: bool) {
    if !is_new {
        debug!(target: SELECTION, replica = %node, repeated_on_primary = repeated, "a replica refused a statement again");
        return;
    }
    warn!(
        target: SELECTION,
        replica = %node,
        repeated_on_primary = repeated,
        "a replica refused a statement that looked like a read; it goes to the primary from now on; call it with \
         on_primary(), or pin the function or table that is at fault (stats().misrouted_statements shows which)"
    );
}

/// A read failed on a replica in a way that another server may not.
pub fn replica_failed(node: NodeId, cause: &'static str) {
    warn!(target: SELECTION, replica = %node, cause, "read failed on a replica; going elsewhere");
}

/// What a session has seen may be lost.
pub fn branch_lost(lost: &BranchLost) {
    warn!(target: SESSION, %lost, "a session's history may have been lost");
}

/// A write's outcome is unknown.
pub fn in_doubt() {
    warn!(target: SESSION, "a write's outcome is unknown; the session reads from the primary until it is settled");
}

/// A node does not answer, for the first time since it did; `error` is the driver's, which names no SQL and no URL.
pub fn unreachable(node: NodeId, error: &dyn std::fmt::Display) {
    warn!(target: MONITOR, %node, %error, "a node cannot be probed");
}

/// The catalogue could not be read; `error` is the driver's.
pub fn no_catalogue(has_older: bool, error: &dyn std::fmt::Display) {
    warn!(
        target: MONITOR,
        has_older,
        %error,
        "the primary's catalogue cannot be read; what is a read is told from the text, and from an older catalogue if there is one"
    );
}

/// A node's standing changed.
pub fn standing(node: NodeId, from: Standing, to: Standing) {
    if to.serves() {
        debug!(target: MONITOR, %node, from = from.as_str(), to = to.as_str(), "standing changed");
    } else {
        warn!(target: MONITOR, %node, from = from.as_str(), to = to.as_str(), "standing changed");
    }
}
