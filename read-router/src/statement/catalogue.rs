//! What the text of a statement does not show: which functions, views, tables, operators and types do more than read.

mod body;
mod closure;
mod functions;
mod rows;
mod users;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use self::{closure::Closure, rows::Row, users::Users};
use super::{Pins, name::Name};
use crate::UnexpectedAnswer;

/// A snapshot of one database's catalogue, as far as it tells reads from everything else.
///
/// # What is trusted, and why
///
/// - **Built-in functions** by a list of names, and those that are `IMMUTABLE`, which are C code of the server's own that
///   looks at nothing but its arguments; but not such as begin with `pg_`, which may. Not the other `STABLE` ones: many tell
///   what only their own server knows.
/// - **Functions in SQL and PL/pgSQL** that are `STABLE` or `IMMUTABLE`, if all that their text names is harmless. The
///   server runs the statements of such a function as read-only: a write, a lock or a utility command in it is an error
///   (`CommandIsReadOnly` in its sources). What it does not check are volatile functions called in there, so those are
///   looked for here; text run by `EXECUTE` cannot be, and is not trusted.
/// - **Functions in C** that are `IMMUTABLE` and belong to an extension, and of a list of extensions those that are
///   `STABLE`, or `VOLATILE` only for drawing random numbers. C code may do anything, so here the word of the extension's
///   author counts; `crosstab`, which runs a text, is `STABLE` too, hence the list.
/// - **Other languages** and everything `VOLATILE`: never. Pin what you know to be harmless.
/// - **Views** by what their stored form names, through any depth; those with `FOR UPDATE`, and those of system catalogues,
///   are not. Materialized views are tables.
/// - **Tables**, unless they are unlogged, temporary or foreign, or a partition of them is, or a row security policy or a
///   virtual column calls what is not harmless. Sequences are not.
/// - **Operators, casts, domains, operator classes, types' input and output** by the functions behind them; what cannot be
///   seen at the place of use, such as an implicit cast, taints its types, and through them tables, functions and
///   operators.
///
/// # Not guaranteed
///
/// It is as old as it is. What others changed since it was read counts once it is read again.
#[derive(Clone, PartialEq, Eq)]
pub struct Catalogue {
    functions: Names,
    operators: Names,
    /// Those that do more than read.
    relations: Names,
    /// Functions that do more than read and that `row.name` may call.
    fields: BTreeMap<Box<[u8]>, ()>,
    types: BTreeMap<Box<[u8]>, ()>,
    /// Keywords whose operators do more than read.
    words: Vec<&'static [u8]>,
    users: Users,
    /// A cast, or an ordering, of built-in types does more than read: no statement shows where.
    is_hidden: bool,
    is_utf8: bool,
}

/// Whether something of that name is harmless, for each schema that has it.
type Names = BTreeMap<Box<[u8]>, Vec<(Box<[u8]>, bool)>>;

/// Keywords, and the operators that the server looks up for them.
const WORDS: &[(&[u8], &[&[u8]])] = &[
    (b"in", &[b"=", b"<>"]),
    (b"between", &[b">=", b"<=", b"<", b">"]),
    (b"like", &[b"~~", b"!~~"]),
    (b"ilike", &[b"~~*", b"!~~*"]),
    (b"similar", &[b"~", b"!~"]),
    (b"distinct", &[b"="]),
    (b"nullif", &[b"="]),
    (b"case", &[b"="]),
    (b"using", &[b"="]),
    (b"natural", &[b"="]),
];

/// The operators that a word uses, if it has no quotes.
pub(super) fn operators(word: &[u8]) -> impl Iterator<Item = &'static [u8]> + use<'_> {
    let of = WORDS.iter().filter(|(keyword, _)| word.eq_ignore_ascii_case(keyword));
    of.flat_map(|(_, operators)| operators.iter().copied())
}

impl Catalogue {
    /// The query whose rows [`read`](Self::read) reads: one statement, for any role, of the columns `what`, `id`, `schema`,
    /// `name`, `info`, `body`, `refs`, all text. It takes tens of milliseconds and locks no table.
    pub const QUERY: &str = include_str!("catalogue/query.sql");

    /// Reads the rows of [`QUERY`](Self::QUERY); `None` stands for NULL. Pins go before what the catalogue says, also for
    /// what uses the pinned: a view that calls a function pinned as a read.
    ///
    /// # Errors
    /// If a row is not one that the query can have, or the first is missing.
    pub fn read<'a>(
        rows: impl IntoIterator<Item = [Option<&'a str>; 7]>,
        pins: &Pins,
    ) -> Result<Self, UnexpectedAnswer> {
        let mut closure = Closure::default();
        for row in rows {
            closure.add(&Row::read(row)?);
        }
        closure.resolve(pins)
    }

    /// How many names it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.functions.len() + self.operators.len() + self.relations.len() + self.fields.len() + self.types.len()
    }

    /// Whether it holds nothing at all, which that of no server does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a name is cut and folded by the server as it is here.
    pub(super) fn understands(&self, name: &Name) -> bool {
        self.is_utf8 || !name.is_foreign()
    }

    /// Whether calls of it are harmless in each schema that they may lead to; `None` if there is no such function.
    pub(super) fn function(&self, schema: Option<&[u8]>, name: &[u8]) -> Option<bool> {
        find(&self.functions, schema, name)
    }

    pub(super) fn operator(&self, schema: Option<&[u8]>, name: &[u8]) -> Option<bool> {
        find(&self.operators, schema, name)
    }

    /// Whether a relation of that name does more than read, in any schema that the name may lead to.
    pub(super) fn is_harmful(&self, schema: Option<&[u8]>, name: &[u8]) -> bool {
        find(&self.relations, schema, name) == Some(false)
    }

    pub(super) fn is_field(&self, name: &[u8]) -> bool {
        self.fields.contains_key(name)
    }

    pub(super) fn is_type(&self, name: &[u8]) -> bool {
        self.types.contains_key(name)
    }

    pub(super) fn is_word(&self, word: &[u8]) -> bool {
        self.words.contains(&word)
    }

    pub(super) fn is_hidden(&self) -> bool {
        self.is_hidden
    }

    /// The names of all that may do something else once what has these names does; `None` if that can be anything.
    pub(super) fn reaching<'a>(&'a self, names: impl Iterator<Item = &'a [u8]>) -> Option<BTreeSet<Box<[u8]>>> {
        self.users.reaching(names)
    }
}

fn find(names: &Names, schema: Option<&[u8]>, name: &[u8]) -> Option<bool> {
    let mut found = names.get(name)?.iter().filter(|(of, _)| schema.is_none_or(|schema| **of == *schema)).peekable();
    found.peek().is_some().then(|| found.all(|(_, harmless)| *harmless))
}

impl fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalogue").field("names", &self.len()).finish_non_exhaustive()
    }
}
