//! Whether a statement is a read, told from its text.

mod catalogue;
mod functions;
mod kinds;
mod known;
mod lexer;
mod name;
mod pins;
mod query;
mod schema;
mod suspects;
mod tally;
mod text_hash;
mod tokens;
mod walk;
mod words;

pub use catalogue::Catalogue;
pub use kinds::StatementKinds;
pub use known::Known;
pub use pins::{Access, PinError, Pins};
pub use schema::SchemaChange;
pub use tally::{StatementCount, StatementTally};

/// What one SQL text may do, as far as its text shows.
///
/// # Guaranteed
///
/// [`Read`](Self::Read) means that PostgreSQL 13 to 18 with `standard_conforming_strings = on` takes the text for one
/// statement and either refuses it as a syntax error or runs it as a query: `SELECT`, `VALUES`, `TABLE`, or `EXPLAIN`
/// of one. At no depth has it a data-modifying CTE, `INTO` or a row lock; each function and operator in it has the
/// name of a built-in one that is harmless on a standby; and it names no system catalogue.
///
/// Everything else, and everything that is not understood, is [`Primary`](Self::Primary).
///
/// With a [`Catalogue`], judged by [`known`](Self::known), a read also uses no table, view, function, operator, cast or type
/// that did more than read when the catalogue was read, in whatever schema; what is trusted there, and why, it says itself.
///
/// # Not guaranteed
///
/// Without a catalogue the text does not show what that knows. A read may then fail on a standby, or answer there as it should
/// not, if it uses
/// - an unlogged or foreign table, a sequence, or a temporary table that the session made earlier;
/// - a view, a row security policy, a type or a domain whose code does more than read;
/// - a function written like a column (`users.touch_row`);
/// - a function or an operator that a user made under the name of a built-in one, and that fits the arguments better
///   or comes first in `search_path`.
///
/// With one, the same holds for what others made or changed since it was read; a relation that it does not know is taken for a
/// table made since.
///
/// Nor does the text know its session: inside of a transaction a read belongs to the transaction's connection.
///
/// Reads that caution takes for something else: without a catalogue, calls of functions that are not built in, those of
/// extensions included, and of the least known built-in ones; `OPERATOR(..)` with a schema of the user's; always, `U&` names;
/// and brackets more than 256 deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatementKind {
    /// A query that any server of the cluster can answer.
    Read,
    /// Anything else, with the first reason found.
    Primary(NotRead),
}

impl StatementKind {
    /// Tells the kind of `sql`, in a time linear in its length and on little stack, whatever the text.
    ///
    /// [`StatementKinds`] does the same and remembers the answer.
    pub fn of(sql: &str) -> Self {
        Self::known(sql, &Known::default())
    }

    /// Tells the kind of `sql` by its text and by what is known beside it.
    pub fn known(sql: &str, known: &Known) -> Self {
        match known.whole().and_then(|()| walk::prove_read(sql, known)).and_then(|()| known.current(sql)) {
            Ok(()) => Self::Read,
            Err(reason) => Self::Primary(reason),
        }
    }

    /// Whether this is [`Read`](Self::Read).
    pub fn is_read(self) -> bool {
        self == Self::Read
    }
}

/// Why a statement is not known to be a read.
///
/// The first reason met in the text; there may be more. Meant for events and tests, not
/// for decisions: which reason a text gets may change.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotRead {
    /// It changes data or definitions: DML, DDL, a data-modifying CTE, `SELECT INTO`.
    Write,
    /// It locks: `FOR UPDATE` and its kin, `LOCK`.
    Lock,
    /// It runs code not known to be harmless: a function, `CALL`, `DO`.
    Function,
    /// It uses an operator that may be anyone's.
    Operator,
    /// It makes or reads the state of a session: transactions, settings, cursors, prepared
    /// statements, listening.
    Session,
    /// More follows after the first statement.
    SeveralStatements,
    /// It reads what a server knows of itself: system catalogues, statistics, sequences,
    /// temporary schemas.
    Catalog,
    /// It is empty, malformed, too deep, or not understood.
    Unknown,
    /// Its text passes for a read, but a replica has refused it as a write.
    Refused,
    /// It reads a relation that is not there on replicas, or does more than to be read: an unlogged, temporary or foreign
    /// table, a sequence, a view that calls what is not harmless.
    Relation,
    /// The application has pinned to the primary what it uses.
    Pinned,
    /// It uses, or may use, what has just been changed, and the catalogue is about to be read again.
    Outdated,
}

impl NotRead {
    /// The reason in `snake_case`, for an event or a metric.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Lock => "lock",
            Self::Function => "function",
            Self::Operator => "operator",
            Self::Session => "session",
            Self::SeveralStatements => "several_statements",
            Self::Catalog => "catalog",
            Self::Unknown => "unknown",
            Self::Refused => "refused",
            Self::Relation => "relation",
            Self::Pinned => "pinned",
            Self::Outdated => "outdated",
        }
    }
}

#[cfg(test)]
mod tests;
