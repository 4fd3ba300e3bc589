//! The class that a query carries itself.

use std::cell::Cell;

use diesel::{
    pg::Pg,
    query_builder::{AsQuery, AstPass, Query, QueryFragment, QueryId},
    query_dsl::methods::LimitDsl,
    result::QueryResult,
};
use read_router::ReadOptions;

/// Says at the query how fresh its rows must be.
///
/// ```
/// use diesel::prelude::*;
/// use diesel_router::{QueryClass, ReadClass};
///
/// diesel::table! { ride { id -> Integer, } }
///
/// // Repository code that does not choose the connection.
/// fn newest() -> diesel_router::Classed<diesel::dsl::Order<ride::table, diesel::dsl::Desc<ride::id>>> {
///     ride::table.order(ride::id.desc()).read_class(ReadClass::Eventual)
/// }
/// # let _ = newest();
/// ```
pub trait QueryClass: AsQuery + Sized {
    /// The same query, of this class or with these options, on a routing connection. A plain connection ignores it.
    ///
    /// It goes before what the connection says of its reads ([`read`](crate::RoutingConnection::read)), and after a
    /// transaction that is open. Say it last: of the methods of a query only `limit` and those that run it remain.
    fn read_class(self, options: impl Into<ReadOptions>) -> Classed<Self::Query> {
        Classed { query: self.as_query(), options: options.into() }
    }
}

impl<Q: AsQuery> QueryClass for Q {}

/// A query with a class: see [`QueryClass::read_class`].
#[derive(Clone, Copy, Debug)]
#[must_use = "queries do nothing until they are run"]
pub struct Classed<Q> {
    query: Q,
    options: ReadOptions,
}

impl<Q: Query> Query for Classed<Q> {
    type SqlType = Q::SqlType;
}

/// An identity of its own, so that whether a query has a class is known from its type.
impl<Q: QueryId> QueryId for Classed<Q> {
    type QueryId = Classed<Q::QueryId>;

    const HAS_STATIC_QUERY_ID: bool = Q::HAS_STATIC_QUERY_ID;
    const IS_WINDOW_FUNCTION: bool = Q::IS_WINDOW_FUNCTION;
}

impl<Q: QueryFragment<Pg>> QueryFragment<Pg> for Classed<Q> {
    fn walk_ast<'b>(&'b self, pass: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        match say(self.options) {
            Walk::On => self.query.walk_ast(pass),
            Walk::Done => Ok(()),
        }
    }
}

impl<Q: LimitDsl> LimitDsl for Classed<Q> {
    type Output = Classed<Q::Output>;

    fn limit(self, limit: i64) -> Self::Output {
        Classed { query: self.query.limit(limit), options: self.options }
    }
}

impl<Q, Conn> diesel::RunQueryDsl<Conn> for Classed<Q> {}

thread_local! {
    /// Who listens while a query is walked. Diesel's traits let a query say nothing to a connection but SQL, so it is
    /// said here, from the beginning of our own walk to its end and at no other time.
    static EAR: Cell<Ear> = const { Cell::new(Ear::Closed) };
}

#[derive(Clone, Copy, Default)]
enum Ear {
    #[default]
    Closed,
    /// For the class: the first one counts, and `only` means that the rest of the query is of no interest.
    Open {
        only: bool,
    },
    Heard {
        options: ReadOptions,
        only: bool,
    },
}

enum Walk {
    On,
    Done,
}

fn say(options: ReadOptions) -> Walk {
    let ear = EAR.get();
    if let Ear::Open { only } = ear {
        EAR.set(Ear::Heard { options, only });
    }
    match ear {
        Ear::Open { only: true } | Ear::Heard { only: true, .. } => Walk::Done,
        _ => Walk::On,
    }
}

/// Puts back what was there before, also when the walk panics.
struct Restore(Ear);

impl Drop for Restore {
    fn drop(&mut self) {
        EAR.set(self.0);
    }
}

/// Runs `walk`, which walks a query, and returns the class that the query said. `only`: a query with a class need not
/// be walked further.
pub(crate) fn hear<T>(only: bool, walk: impl FnOnce() -> T) -> (T, Option<ReadOptions>) {
    let _restore = Restore(EAR.replace(Ear::Open { only }));
    let out = walk();
    match EAR.get() {
        Ear::Heard { options, .. } => (out, Some(options)),
        Ear::Closed | Ear::Open { .. } => (out, None),
    }
}

#[cfg(test)]
mod tests {
    use diesel::{debug_query, prelude::*, query_builder::QueryFragment};
    use read_router::ReadClass;

    use super::*;

    diesel::table! { ride { id -> Integer, } }

    #[test]
    fn a_query_says_its_class_while_we_walk_it_and_never_else() {
        let query = ride::table.filter(ride::id.gt(3)).read_class(ReadClass::Eventual);
        let sql = |query: &dyn Fn() -> String| query();
        let plain = debug_query::<Pg, _>(&ride::table.filter(ride::id.gt(3))).to_string();
        assert_eq!(sql(&|| debug_query::<Pg, _>(&query).to_string()), plain);
        let (_, heard) = hear(false, || ());
        assert_eq!(heard, None, "what was walked before is not heard");
        let (_, heard) = hear(true, || query.is_noop(&Pg));
        assert_eq!(heard.map(|options| options.class()), Some(ReadClass::Eventual));
        let (_, heard) = hear(false, || QueryFragment::<Pg>::is_noop(&ride::table.as_query(), &Pg));
        assert_eq!(heard, None);
    }

    #[test]
    fn the_outermost_class_counts_and_a_limit_keeps_it() {
        let query = ride::table.read_class(ReadClass::Eventual).read_class(ReadClass::MustSeeMyWrite);
        let (_, heard) = hear(false, || LimitDsl::limit(query, 1).is_noop(&Pg));
        assert_eq!(heard.map(|options| options.class()), Some(ReadClass::MustSeeMyWrite));
    }
}
