//! A query in a form that may wait for its server.

use std::{any::Any, sync::Arc};

use diesel::{
    QueryResult,
    pg::{Pg, PgMetadataLookup, PgTypeMetadata},
    query_builder::{CollectedQuery, MoveableBindCollector, QueryFragment, bind_collector::RawBytesBindCollector},
};

use super::schema::{Oids, TypeName, Types};

/// A query's text and binds. A query itself is not `Send`, so it is written out before the first `await`.
///
/// The binds may name types by OID, in arrays and composites also inside of a value. Where they do is remembered: a type may
/// not be known yet, or be made anew by somebody else.
pub(crate) struct Collected {
    pub(crate) sql: Arc<str>,
    is_cacheable: bool,
    binds: RawBytesBindCollector<Pg>,
    types: Vec<(TypeName, Option<Oids>)>,
    /// Where in which bind's value an OID stands, and the false one that stood there first.
    places: Vec<(usize, usize, u32)>,
    /// Which binds' types are such, with the false ones.
    typed: Vec<(usize, Oids)>,
}

/// The first false OID. Only the places where two passes with different ones differ are ever replaced, so that a real OID
/// or a value of the same bytes does no harm.
const FALSE: u32 = 0xA5A5_0000;

/// The two false OIDs, of a type and of its arrays, of the type at this index. In the second pass each of their bytes is
/// another, so that the passes differ in whole OIDs.
fn false_oids(index: usize, second: bool) -> Oids {
    let oid = FALSE.wrapping_add(u32::try_from(index * 2).unwrap_or(u32::MAX));
    let (oid, array) = (oid, oid.wrapping_add(1));
    if second { (!oid, !array) } else { (oid, array) }
}

/// What the false OID stands for: the index of its type, and whether it is that of its arrays.
fn meaning(oid: u32) -> (usize, bool) {
    let index = usize::try_from(oid.wrapping_sub(FALSE)).unwrap_or(usize::MAX);
    (index / 2, index % 2 == 1)
}

impl Collected {
    /// Writes out the query that has this text; `types` are the types known up to now.
    pub(crate) fn new<T: QueryFragment<Pg>>(sql: Arc<str>, query: &T, types: &Arc<Types>) -> QueryResult<Self> {
        let is_cacheable = query.is_safe_to_cache_prepared(&Pg)?;
        let mut lookup = Lookup { names: Vec::new(), second: false };
        let mut binds = RawBytesBindCollector::new();
        query.collect_binds(&mut binds, &mut lookup, &Pg)?;
        let (mut places, mut typed) = (Vec::new(), Vec::new());
        if !lookup.names.is_empty() {
            let mut other = Lookup { names: lookup.names.clone(), second: true };
            let mut others = RawBytesBindCollector::<Pg>::new();
            query.collect_binds(&mut others, &mut other, &Pg)?;
            for (index, (mine, theirs)) in binds.binds.iter().zip(&others.binds).enumerate() {
                let (Some(mine), Some(theirs)) = (mine, theirs) else { continue };
                let at = |at| Some((index, at, u32::from_be_bytes(*mine.get(at..)?.first_chunk()?)));
                places.extend(differing(mine, theirs).into_iter().filter_map(at));
            }
            let pairs = binds.metadata.iter().zip(&others.metadata).enumerate();
            typed.extend(pairs.filter(|(_, (mine, theirs))| mine != theirs).map(|(index, (mine, _))| {
                (index, (mine.oid().unwrap_or_default(), mine.array_oid().unwrap_or_default()))
            }));
        }
        let known = |name: TypeName| {
            let oids = types.get(&name).copied();
            (name, oids)
        };
        let types = lookup.names.into_iter().map(known).collect();
        let mut collected = Self { sql, is_cacheable, binds, types, places, typed };
        collected.fill_in();
        Ok(collected)
    }

    /// A text without binds, that is not kept prepared.
    pub(crate) fn text(sql: &str) -> Self {
        Self::with_texts(sql, &[], false)
    }

    /// A text with binds that are texts.
    pub(crate) fn with_texts(sql: &str, texts: &[&str], is_cacheable: bool) -> Self {
        const TEXT: (u32, u32) = (25, 1009);
        let mut binds = RawBytesBindCollector::new();
        for text in texts {
            binds.metadata.push(PgTypeMetadata::new(TEXT.0, TEXT.1));
            binds.binds.push(Some(text.as_bytes().to_vec()));
        }
        let (types, places, typed) = (Vec::new(), Vec::new(), Vec::new());
        Self { sql: sql.into(), is_cacheable, binds, types, places, typed }
    }

    /// Has it prepared anew each time.
    pub(crate) fn uncached(mut self) -> Self {
        self.is_cacheable = false;
        self
    }

    /// Whether it may be kept prepared.
    pub(crate) fn is_cacheable(&self) -> bool {
        self.is_cacheable
    }

    /// Whether it names types that were looked up.
    pub(crate) fn has_types(&self) -> bool {
        !self.types.is_empty()
    }

    /// Whether it names types that must be looked up before it can run.
    pub(crate) fn has_unknown(&self) -> bool {
        self.types.iter().any(|(_, oids)| oids.is_none())
    }

    /// The types that must be looked up before it can run.
    pub(crate) fn unknown(&self) -> Vec<TypeName> {
        self.types.iter().filter(|(_, oids)| oids.is_none()).map(|(name, _)| name.clone()).collect()
    }

    /// All types that it names.
    pub(crate) fn types(&self) -> Vec<TypeName> {
        self.types.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Puts the OIDs of these types in their places; whether any is another than before.
    pub(crate) fn resolve(&mut self, names: &[TypeName], oids: &[Oids]) -> bool {
        let mut has_changed = false;
        for (name, known) in &mut self.types {
            let found = names.iter().zip(oids).find(|(found, _)| *found == name).map(|(_, oids)| *oids);
            has_changed |= found.is_some() && found != *known;
            *known = found.or(*known);
        }
        self.fill_in();
        has_changed
    }

    fn fill_in(&mut self) {
        let real = |oid: u32| {
            let (index, is_array) = meaning(oid);
            let oids = self.types.get(index).and_then(|(_, oids)| *oids);
            oids.map_or(oid, |(own, array)| if is_array { array } else { own })
        };
        for (index, (own, array)) in &self.typed {
            let Some(metadata) = self.binds.metadata.get_mut(*index) else { continue };
            *metadata = PgTypeMetadata::new(real(*own), real(*array));
        }
        for (index, at, oid) in &self.places {
            let value = self.binds.binds.get_mut(*index).and_then(Option::as_mut);
            let Some(bytes) = value.and_then(|value| value.get_mut(*at..)?.first_chunk_mut::<4>()) else { continue };
            *bytes = real(*oid).to_be_bytes();
        }
    }

    /// The query for one run.
    pub(crate) fn query(&self) -> CollectedQuery<RawBytesBindCollector<Pg>> {
        CollectedQuery::new(String::from(&*self.sql), self.is_cacheable, self.binds.moveable())
    }
}

/// Where the two values differ, four bytes at a time.
fn differing(mine: &[u8], theirs: &[u8]) -> Vec<usize> {
    let mut places = Vec::new();
    let mut at = 0;
    while at + 4 <= mine.len().min(theirs.len()) {
        if mine[at] == theirs[at] {
            at += 1;
        } else {
            places.push(at);
            at += 4;
        }
    }
    places
}

/// Answers with false OIDs.
struct Lookup {
    names: Vec<TypeName>,
    second: bool,
}

impl PgMetadataLookup for Lookup {
    fn lookup_type(&mut self, type_name: &str, schema: Option<&str>) -> PgTypeMetadata {
        let name = TypeName { schema: schema.map(str::to_owned), name: type_name.to_owned() };
        let index = self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        });
        let (oid, array) = false_oids(index, self.second);
        PgTypeMetadata::new(oid, array)
    }

    fn as_any<'a>(&mut self) -> &mut (dyn Any + 'a)
    where
        Self: 'a,
    {
        self
    }
}

#[cfg(test)]
mod tests {
    use diesel::{
        serialize::{IsNull, Output, ToSql, WriteTuple},
        sql_types::{Array, Integer, SqlType},
    };

    use super::*;

    #[derive(SqlType)]
    #[diesel(postgres_type(name = "mood"))]
    struct Mood;

    #[derive(SqlType)]
    #[diesel(postgres_type(name = "pair", schema = "other"))]
    struct Pair;

    #[derive(Debug, diesel::expression::AsExpression)]
    #[diesel(sql_type = Mood)]
    struct Sad;

    #[derive(Debug, diesel::expression::AsExpression)]
    #[diesel(sql_type = Pair)]
    struct SadTwice;

    impl ToSql<Mood, Pg> for Sad {
        fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Pg>) -> diesel::serialize::Result {
            std::io::Write::write_all(out, b"sad")?;
            Ok(IsNull::No)
        }
    }

    impl ToSql<Pair, Pg> for SadTwice {
        fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Pg>) -> diesel::serialize::Result {
            WriteTuple::<(Integer, Mood, Mood)>::write_tuple(&(-1_515_913_216, Sad, Sad), out)
        }
    }

    const MOOD: Oids = (16_400, 16_399);
    const PAIR: Oids = (16_500, 16_499);

    fn oids_of(collected: &Collected) -> Vec<Oids> {
        collected.unknown().iter().map(|name| if name.schema.is_some() { PAIR } else { MOOD }).collect()
    }

    /// Types that are looked up later leave the same bytes as those that were known.
    #[test]
    fn unknown_types_are_filled_in() {
        use diesel::IntoSql;
        let name =
            |schema: Option<&str>, name: &str| TypeName { schema: schema.map(str::to_owned), name: name.to_owned() };
        let known = Arc::new(Types::from([(name(None, "mood"), MOOD), (name(Some("other"), "pair"), PAIR)]));
        let none = Arc::new(Types::new());
        let query = diesel::select((
            Sad.into_sql::<Mood>(),
            vec![Sad, Sad].into_sql::<Array<Mood>>(),
            SadTwice.into_sql::<Pair>(),
            vec![SadTwice].into_sql::<Array<Pair>>(),
            7.into_sql::<Integer>(),
        ));
        let expected = Collected::new("".into(), &query, &known).unwrap();
        assert!(expected.unknown().is_empty());
        let mut collected = Collected::new("".into(), &query, &none).unwrap();
        assert_eq!(collected.unknown().len(), 2);
        let (names, oids) = (collected.unknown(), oids_of(&collected));
        assert!(collected.resolve(&names, &oids));
        assert!(!collected.resolve(&names, &oids));
        assert_eq!(collected.binds.binds, expected.binds.binds);
        assert_eq!(collected.binds.metadata, expected.binds.metadata);
        assert!(collected.unknown().is_empty());
        let anew = oids.iter().map(|(own, array)| (own + 1_000, array + 1_000)).collect::<Vec<_>>();
        assert!(collected.resolve(&names, &anew));
        assert!(collected.resolve(&names, &oids));
        assert_eq!(collected.binds.binds, expected.binds.binds);
        assert_eq!(collected.binds.metadata, expected.binds.metadata);
    }
}
