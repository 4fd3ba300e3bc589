//! What a replica's error says about where to go next.

/// What to do with a read that failed on a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplicaError {
    /// The statement itself is at fault: the caller gets the error.
    Statement,
    /// The replica refuses it as a write or as something that recovery excludes: it belongs on the primary.
    Misrouted,
    /// This attempt fell to a conflict with replay, or the replica is full: another node may do, and this
    /// one is not down.
    Elsewhere,
    /// The node is going down or gone.
    NodeGone,
}

impl ReplicaError {
    /// Reads the SQLSTATE of an error that a replica gave to a read outside a transaction.
    ///
    /// The code decides, never the text. `55000` and `XX000` are what a standby gives for functions that
    /// need a primary (`pg_current_wal_lsn`, `lo_create`, `pg_logical_emit_message`); an ordinary fault under
    /// those codes is simply repeated, and reported, by the primary.
    #[must_use]
    pub fn of(sqlstate: &str) -> Self {
        match sqlstate {
            "25006" | "0A000" | "55000" | "XX000" => Self::Misrouted,
            "40001" | "40P01" | "53300" | "53200" | "55P03" => Self::Elsewhere,
            "57P01" | "57P02" | "57P03" | "57P04" | "57P05" => Self::NodeGone,
            code if code.starts_with("08") || code.starts_with("58") => Self::NodeGone,
            _ => Self::Statement,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes() {
        for (code, meaning) in [
            ("25006", ReplicaError::Misrouted),
            ("0A000", ReplicaError::Misrouted),
            ("40001", ReplicaError::Elsewhere),
            ("57P01", ReplicaError::NodeGone),
            ("08006", ReplicaError::NodeGone),
            ("57014", ReplicaError::Statement),
            ("42P01", ReplicaError::Statement),
            ("23505", ReplicaError::Statement),
            ("", ReplicaError::Statement),
        ] {
            assert_eq!(ReplicaError::of(code), meaning, "{code}");
        }
    }
}
