//! What the application says of its own functions and tables.

use super::{
    lexer::{Lexer, Token},
    name::Name,
};

/// What a call of a function, or a query of a table, may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// A read, which any server can answer: it changes nothing, locks nothing, and asks nothing of its own server.
    Read,
    /// Only for the primary.
    Primary,
}

/// Words of the application's that go before what the catalogue, or caution, says.
///
/// Names are written as in SQL: `my_udf`, `app.my_udf`, `"MyUdf"`. A name without a schema speaks of all that have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    functions: Vec<Pin>,
    tables: Vec<Pin>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pin {
    schema: Option<Box<[u8]>>,
    name: Box<[u8]>,
    access: Access,
}

/// A pin that says nothing, or what cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// It is no name as SQL writes one.
    #[error("{name:?} is no name to pin; write it as in SQL, without arguments: my_udf, app.my_udf, or \"MyUdf\"")]
    NotAName {
        /// What was given.
        name: String,
    },
    /// A built-in function that means nothing, or something else, on a replica.
    #[error(
        "{name} can be no read: on a replica it fails, or works on what only that replica knows; leave it to the primary"
    )]
    NeverRead {
        /// What was given.
        name: String,
    },
}

/// Built-in functions whose effect would silently be missing, or that fail, on a replica.
const NEVER: &[&str] = &[
    "currval",
    "dblink_exec",
    "lastval",
    "nextval",
    "pg_export_snapshot",
    "pg_logical_emit_message",
    "pg_notify",
    "pg_switch_wal",
    "set_config",
    "setseed",
    "setval",
    "txid_current",
    "pg_current_xact_id",
];

/// Beginnings of such names.
const NEVER_BEGINNINGS: &[&str] = &["pg_advisory_", "pg_try_advisory_", "lo_"];

impl Pins {
    /// Nothing is pinned.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls of this function are reads, or are for the primary. Of two pins of one name the later counts.
    ///
    /// # Errors
    /// If it is no name, or that of a built-in function that can be no read.
    pub fn function(&mut self, name: &str, access: Access) -> Result<(), PinError> {
        let pin = Pin::parse(name, access)?;
        let never = |name: &[u8]| {
            NEVER.iter().any(|never| never.as_bytes() == name)
                || NEVER_BEGINNINGS.iter().any(|start| name.starts_with(start.as_bytes()))
        };
        let is_built_in = pin.schema.as_deref().is_none_or(|schema| schema == b"pg_catalog");
        if access == Access::Read && is_built_in && never(&pin.name) {
            return Err(PinError::NeverRead { name: name.to_owned() });
        }
        self.functions.push(pin);
        Ok(())
    }

    /// Queries of this table or view are reads, whatever it is made of, or are for the primary. Of two pins of one name
    /// the later counts.
    ///
    /// # Errors
    /// If it is no name.
    pub fn table(&mut self, name: &str, access: Access) -> Result<(), PinError> {
        self.tables.push(Pin::parse(name, access)?);
        Ok(())
    }

    /// What is said of a function in this schema; `None` for the schema: of a call that names none.
    pub(super) fn of_function(&self, schema: Option<&[u8]>, name: &[u8]) -> Option<Access> {
        find(&self.functions, schema, name)
    }

    /// What is said of a table.
    pub(super) fn of_table(&self, schema: Option<&[u8]>, name: &[u8]) -> Option<Access> {
        find(&self.tables, schema, name)
    }
}

/// A name without its schema may be any's: it is a read only if pinned so without one, and the primary's if any is.
fn find(pins: &[Pin], schema: Option<&[u8]>, name: &[u8]) -> Option<Access> {
    let mut named = pins.iter().rev().filter(|pin| *pin.name == *name);
    match schema {
        Some(_) => {
            let exact = named.clone().find(|pin| pin.schema.as_deref() == schema);
            exact.or_else(|| named.find(|pin| pin.schema.is_none())).map(|pin| pin.access)
        }
        None if named.clone().any(|pin| pin.schema.is_some() && pin.access == Access::Primary) => Some(Access::Primary),
        None => named.find(|pin| pin.schema.is_none()).map(|pin| pin.access),
    }
}

impl Pin {
    fn parse(text: &str, access: Access) -> Result<Self, PinError> {
        let parts = parts(text).filter(|parts| matches!(parts.len(), 1 | 2));
        let mut parts = parts.ok_or_else(|| PinError::NotAName { name: text.to_owned() })?.into_iter().rev();
        Ok(Self { name: parts.next().unwrap_or_default(), schema: parts.next(), access })
    }
}

/// The parts of a dotted name; `None` if the text is anything else.
fn parts(text: &str) -> Option<Vec<Box<[u8]>>> {
    let mut lexer = Lexer::new(text);
    let mut parts = Vec::new();
    loop {
        parts.push(Name::of(lexer.token().ok()??)?.as_bytes().into());
        match lexer.token().ok()? {
            None => return Some(parts),
            Some(Token::Symbol(b'.')) => {}
            Some(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_sql_reads_it() {
        let mut pins = Pins::new();
        pins.function("App.My_UDF", Access::Read).unwrap();
        pins.function("\"Total\"", Access::Read).unwrap();
        assert_eq!(pins.of_function(Some(b"app"), b"my_udf"), Some(Access::Read));
        assert_eq!(pins.of_function(Some(b"other"), b"my_udf"), None);
        assert_eq!(pins.of_function(None, b"my_udf"), None, "it may be another schema's");
        assert_eq!(pins.of_function(None, b"Total"), Some(Access::Read));
        assert_eq!(pins.of_function(Some(b"app"), b"Total"), Some(Access::Read));
        assert_eq!(pins.of_function(None, b"total"), None);
    }

    #[test]
    fn the_later_and_the_nearer_pin_counts_and_caution_before_both() {
        let mut pins = Pins::new();
        pins.table("audit", Access::Primary).unwrap();
        pins.table("audit", Access::Read).unwrap();
        assert_eq!(pins.of_table(None, b"audit"), Some(Access::Read));
        pins.table("app.audit", Access::Primary).unwrap();
        assert_eq!(pins.of_table(Some(b"app"), b"audit"), Some(Access::Primary));
        assert_eq!(pins.of_table(Some(b"public"), b"audit"), Some(Access::Read));
        assert_eq!(pins.of_table(None, b"audit"), Some(Access::Primary), "it may be app's");
    }

    #[test]
    fn what_is_no_name_is_refused_with_what_to_write() {
        for text in ["", " ", "f()", "f(int)", "a.b.c", "a b", "'f'", "a.", ".a", "\"", "f;", "U&\"f\"", "1"] {
            let error = Pins::new().function(text, Access::Read).unwrap_err();
            assert!(error.to_string().contains("my_udf"), "{error}");
        }
        for text in ["nextval", "PG_ADVISORY_LOCK", "pg_catalog.set_config", "pg_try_advisory_xact_lock", "lo_put"] {
            let error = Pins::new().function(text, Access::Read).unwrap_err();
            assert!(matches!(error, PinError::NeverRead { .. }), "{text}");
            Pins::new().function(text, Access::Primary).unwrap();
        }
        Pins::new().function("app.nextval", Access::Read).unwrap();
    }
}
