//! The kind of a query, whose text is mostly known from its type.

use std::{
    any::TypeId,
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use arc_swap::ArcSwap;
use diesel::{
    pg::{Pg, PgQueryBuilder},
    query_builder::{QueryBuilder, QueryFragment, QueryId},
    result::QueryResult,
};
use read_router::{ReadOptions, StatementKind, StatementKinds};

use crate::class::hear;

/// How queries read, by their type. A program has so many types of queries and no more.
///
/// Their kind is not kept here, since it changes with the catalogue: [`StatementKinds`] remembers it by the text.
#[derive(Default)]
pub(crate) struct QueryKinds {
    known: ArcSwap<HashMap<TypeId, Known, BuildHasherDefault<TypeIdHasher>>>,
}

#[derive(Clone)]
struct Known {
    sql: Arc<str>,
    /// It says a class when it is walked, which may differ from one value to the next.
    has_class: bool,
}

/// What a query is, and what it says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Looked {
    pub(crate) kind: StatementKind,
    pub(crate) sql: Arc<str>,
    pub(crate) class: Option<ReadOptions>,
}

impl Looked {
    /// A text that is no query of Diesel's.
    pub(crate) fn text(sql: &str, kinds: &StatementKinds) -> Self {
        Self { kind: kinds.kind(sql), sql: sql.into(), class: None }
    }

    /// What is run on the primary unseen.
    #[cfg(feature = "sync")]
    pub(crate) fn unseen() -> Self {
        Self { kind: StatementKind::Primary(read_router::NotRead::Write), sql: Arc::from(""), class: None }
    }
}

impl QueryKinds {
    /// Looks at a query: one that has a static identity is walked the first time only.
    pub(crate) fn look<Q: QueryFragment<Pg> + QueryId>(
        &self,
        kinds: &StatementKinds,
        query: &Q,
    ) -> QueryResult<Looked> {
        let id = Q::query_id();
        if let Some(known) = id.and_then(|id| self.known.load().get(&id).cloned()) {
            let class = known.has_class.then(|| hear(true, || query.is_noop(&Pg)).1).flatten();
            return Ok(Looked { kind: kinds.kind(&known.sql), sql: known.sql, class });
        }
        let mut builder = PgQueryBuilder::default();
        let (walked, class) = hear(false, || query.to_sql(&mut builder, &Pg));
        walked?;
        let sql: Arc<str> = builder.finish().into();
        if let Some(id) = id {
            self.insert(id, &Known { sql: sql.clone(), has_class: class.is_some() });
        }
        Ok(Looked { kind: kinds.kind(&sql), sql, class })
    }

    fn insert(&self, id: TypeId, known: &Known) {
        self.known.rcu(|map| {
            let mut map = HashMap::clone(map);
            map.insert(id, known.clone());
            map
        });
    }
}

/// An identity is a hash already.
#[derive(Default)]
struct TypeIdHasher(u64);

impl Hasher for TypeIdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 ^= u64::from_le_bytes(word);
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 ^= word;
    }
}

#[cfg(test)]
mod tests {
    use diesel::{prelude::*, query_builder::AsQuery};
    use read_router::{Access, NotRead, Pins, ReadClass};

    use super::*;
    use crate::QueryClass;

    diesel::table! { ride { id -> Integer, } }

    #[test]
    fn a_class_is_heard_each_time_though_the_kind_is_remembered() {
        let (queries, kinds) = (QueryKinds::default(), StatementKinds::with_key([1, 2]));
        for class in [ReadClass::Eventual, ReadClass::MustSeeMyWrite, ReadClass::Eventual] {
            let looked = queries.look(&kinds, &ride::table.read_class(class)).unwrap();
            assert_eq!(looked.class.map(|options| options.class()), Some(class));
            assert!(looked.kind.is_read());
            let plain = queries.look(&kinds, &ride::table.as_query()).unwrap();
            assert_eq!((plain.class, plain.sql), (None, looked.sql));
        }
    }

    #[test]
    fn what_a_replica_refused_is_a_read_no_more() {
        let (queries, kinds) = (QueryKinds::default(), StatementKinds::with_key([1, 2]));
        let query = ride::table.filter(ride::id.gt(1));
        kinds.refuse(&queries.look(&kinds, &query).unwrap().sql);
        let kind = queries.look(&kinds, &query).unwrap().kind;
        assert_eq!(kind, StatementKind::Primary(NotRead::Refused));
    }

    #[test]
    fn the_kind_of_a_type_follows_what_is_known() {
        let (queries, kinds) = (QueryKinds::default(), StatementKinds::with_key([1, 2]));
        let query = ride::table.filter(ride::id.gt(1));
        assert!(queries.look(&kinds, &query).unwrap().kind.is_read());
        let mut pins = Pins::new();
        pins.table("ride", Access::Primary).unwrap();
        kinds.set_known(read_router::Known::new(pins));
        let kind = queries.look(&kinds, &query).unwrap().kind;
        assert_eq!(kind, StatementKind::Primary(NotRead::Pinned));
    }
}
