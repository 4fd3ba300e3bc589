//! The rows of the query.

use crate::UnexpectedAnswer;

/// The kind of an object that others refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Function,
    Relation,
    Type,
    Operator,
}

impl Class {
    fn of(code: &str) -> Option<Self> {
        Some(match code {
            "f" => Self::Function,
            "r" => Self::Relation,
            "t" => Self::Type,
            "o" => Self::Operator,
            _ => return None,
        })
    }
}

/// An object of the catalogue. Numbers are given anew only to what is not built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Object {
    pub(super) class: Class,
    pub(super) id: u32,
}

/// Numbers below this are the server's own.
const FIRST_NORMAL: u32 = 16384;

impl Object {
    pub(super) fn is_built_in(self) -> bool {
        self.id < FIRST_NORMAL
    }
}

/// What something uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Object(Object),
    /// It locks rows.
    Lock,
}

/// One row.
#[derive(Clone, Debug)]
pub(super) struct Row<'a> {
    pub(super) fact: Fact<'a>,
    pub(super) schema: &'a str,
    pub(super) name: &'a str,
    pub(super) uses: Vec<Use>,
}

/// What it says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fact<'a> {
    Encoding(&'a str),
    BuiltIn {
        id: u32,
        is_immutable: bool,
    },
    BuiltInOperator,
    Function {
        id: u32,
        info: &'a str,
        body: &'a str,
    },
    Operator {
        id: u32,
    },
    /// A relation that replicas do not have, or have otherwise.
    Relation {
        id: u32,
    },
    /// The name of a relation that others use.
    Named {
        id: u32,
    },
    Uses {
        of: Object,
    },
}

impl<'a> Row<'a> {
    pub(super) fn read(columns: [Option<&'a str>; 7]) -> Result<Self, UnexpectedAnswer> {
        Self::parse(columns).ok_or_else(|| UnexpectedAnswer::new("catalogue query", "a row of another form"))
    }

    fn parse([what, id, schema, name, info, body, refs]: [Option<&'a str>; 7]) -> Option<Self> {
        let id: u32 = id?.parse().ok()?;
        let fact = match what? {
            "G" => Fact::Encoding(info?),
            "B" => Fact::BuiltIn { id, is_immutable: info? == "i" },
            "P" => Fact::BuiltInOperator,
            "F" => Fact::Function { id, info: info?, body: body.unwrap_or_default() },
            "O" => Fact::Operator { id },
            "R" => Fact::Relation { id },
            "N" => Fact::Named { id },
            "E" => Fact::Uses { of: Object { class: Class::of(info?)?, id } },
            _ => return None,
        };
        let uses = refs.unwrap_or_default().split_ascii_whitespace().map(used).collect::<Option<_>>()?;
        let has_name = !matches!(fact, Fact::Encoding(_));
        let name = if has_name { name? } else { "" };
        Some(Self { fact, schema: schema.unwrap_or("pg_catalog"), name, uses })
    }
}

fn used(text: &str) -> Option<Use> {
    let (code, number) = text.split_at_checked(1)?;
    if code == "x" {
        return Some(Use::Lock);
    }
    Some(Use::Object(Object { class: Class::of(code)?, id: number.parse().ok()? }))
}
