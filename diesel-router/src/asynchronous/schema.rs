//! What is remembered of the database's schema.

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use diesel::{QueryResult, result::Error};
use diesel_async::AsyncPgConnection;

use super::{collected::Collected, text::texts};

/// A type's OID and that of its arrays.
pub(crate) type Oids = (u32, u32);

/// The types that have been looked up.
pub(crate) type Types = HashMap<TypeName, Oids>;

/// The name by which a type is looked up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TypeName {
    pub(crate) schema: Option<String>,
    pub(crate) name: String,
}

/// The OIDs of custom types, which primary and replicas share, and which version of the schema they and prepared statements
/// are of.
#[derive(Debug)]
pub(crate) struct Schema {
    version: AtomicU64,
    types: ArcSwap<Types>,
    learning: Mutex<()>,
}

/// No two schemas have a version in common: a pool may serve two routers.
static VERSIONS: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(1));

impl Schema {
    pub(crate) fn new() -> Self {
        let version = VERSIONS.fetch_add(1, Ordering::AcqRel);
        Self { version: AtomicU64::new(version), types: ArcSwap::default(), learning: Mutex::default() }
    }

    /// The version that is valid now.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn types(&self) -> Arc<Types> {
        self.types.load_full()
    }

    /// A statement may have changed the schema: what was remembered counts no more.
    pub(crate) fn changed(&self) {
        let _turn = self.learning.lock().unwrap_or_else(PoisonError::into_inner);
        self.version.store(VERSIONS.fetch_add(1, Ordering::AcqRel), Ordering::Release);
        self.types.store(Arc::default());
    }

    /// Remembers types that were looked up while the schema had this version.
    pub(crate) fn learn(&self, version: u64, names: &[TypeName], oids: &[Oids]) {
        let _turn = self.learning.lock().unwrap_or_else(PoisonError::into_inner);
        if self.version() == version {
            let mut types = Types::clone(&self.types.load());
            types.extend(names.iter().cloned().zip(oids.iter().copied()));
            self.types.store(Arc::new(types));
        }
    }

    /// These types may have been made anew.
    pub(crate) fn forget(&self, names: &[TypeName]) {
        let _turn = self.learning.lock().unwrap_or_else(PoisonError::into_inner);
        let mut types = Types::clone(&self.types.load());
        types.retain(|name, _| !names.contains(name));
        self.types.store(Arc::new(types));
    }

    /// Looks up on this connection what the query has of unknown types, and remembers it.
    pub(crate) async fn resolve(&self, query: &mut Collected, connection: &AsyncPgConnection) -> QueryResult<()> {
        if !query.has_unknown() {
            return Ok(());
        }
        let version = self.version();
        let names = query.unknown();
        let oids = Box::pin(look_up(connection, &names)).await?;
        self.learn(version, &names, &oids);
        query.resolve(&names, &oids);
        Ok(())
    }

    /// Looks up the query's types anew, after it has failed; whether any of them is another than it was.
    pub(crate) async fn renew(&self, query: &mut Collected, connection: &AsyncPgConnection) -> bool {
        if !query.has_types() {
            return false;
        }
        let names = query.types();
        let Ok(oids) = Box::pin(look_up(connection, &names)).await else { return false };
        let has_changed = query.resolve(&names, &oids);
        if has_changed {
            self.changed();
            self.learn(self.version(), &names, &oids);
        }
        has_changed
    }
}

/// The OIDs of the types of these names, as this connection sees them.
pub(crate) async fn look_up(connection: &AsyncPgConnection, names: &[TypeName]) -> QueryResult<Vec<Oids>> {
    let mut oids = Vec::with_capacity(names.len());
    for TypeName { schema, name } in names {
        let query = match schema {
            Some(schema) => Collected::with_texts(
                "SELECT t.oid::text, t.typarray::text FROM pg_catalog.pg_type AS t \
                 JOIN pg_catalog.pg_namespace AS n ON t.typnamespace = n.oid \
                 WHERE t.typname = $1 AND n.nspname = $2",
                &[name, schema],
                false,
            ),
            None => Collected::with_texts(
                "SELECT t.oid::text, t.typarray::text FROM pg_catalog.pg_type AS t \
                 WHERE t.oid = pg_catalog.quote_ident($1)::pg_catalog.regtype::oid",
                &[name],
                false,
            ),
        };
        let rows = texts(connection, &query).await?;
        let number = |column: usize| rows.first()?.get(column)?.as_deref()?.parse::<u32>().ok();
        oids.push(number(0).zip(number(1)).ok_or(Error::NotFound)?);
    }
    Ok(oids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_looked_up_before_a_change_is_not_learnt() {
        let schema = Schema::new();
        let name = TypeName { schema: None, name: "mood".to_owned() };
        let before = schema.version();
        schema.changed();
        schema.learn(before, std::slice::from_ref(&name), &[(1, 2)]);
        assert!(schema.types().is_empty());
        schema.learn(schema.version(), &[name], &[(1, 2)]);
        assert_eq!(schema.types().len(), 1);
        schema.changed();
        assert!(schema.types().is_empty());
    }
}
