//! The tables and types of both differential suites.

use std::io::Write;

use diesel::{
    deserialize::{self, FromSql, FromSqlRow},
    expression::AsExpression,
    pg::{Pg, PgValue, sql_types::Int4range},
    prelude::*,
    serialize::{self, IsNull, Output, ToSql, WriteTuple},
    sql_types::{BigInt, Integer, Nullable, Record, Text},
};

#[derive(diesel::sql_types::SqlType, diesel::query_builder::QueryId)]
#[diesel(postgres_type(name = "mood"))]
pub struct MoodType;

#[derive(AsExpression, FromSqlRow, Debug, Clone, Copy, PartialEq)]
#[diesel(sql_type = MoodType)]
pub(crate) enum Mood {
    Good,
    Bad,
}

impl ToSql<MoodType, Pg> for Mood {
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Pg>) -> serialize::Result {
        out.write_all(match self {
            Self::Good => b"good",
            Self::Bad => b"bad",
        })?;
        Ok(IsNull::No)
    }
}

impl FromSql<MoodType, Pg> for Mood {
    fn from_sql(value: PgValue<'_>) -> deserialize::Result<Self> {
        match value.as_bytes() {
            b"good" => Ok(Self::Good),
            b"bad" => Ok(Self::Bad),
            _ => Err("neither good nor bad".into()),
        }
    }
}

#[derive(diesel::sql_types::SqlType, diesel::query_builder::QueryId)]
#[diesel(postgres_type(name = "place"))]
pub struct PlaceType;

#[derive(AsExpression, FromSqlRow, Debug, Clone, PartialEq)]
#[diesel(sql_type = PlaceType)]
pub(crate) struct Place(pub(crate) i32, pub(crate) String);

impl ToSql<PlaceType, Pg> for Place {
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Pg>) -> serialize::Result {
        WriteTuple::<(Integer, Text)>::write_tuple(&(self.0, self.1.as_str()), out)
    }
}

impl FromSql<PlaceType, Pg> for Place {
    fn from_sql(value: PgValue<'_>) -> deserialize::Result<Self> {
        let (number, name) = FromSql::<Record<(Integer, Text)>, Pg>::from_sql(value)?;
        Ok(Self(number, name))
    }
}

diesel::table! {
    use diesel::sql_types::*;
    use super::{MoodType, PlaceType};

    author (id) {
        id -> Integer,
        name -> Text,
        tags -> Array<Text>,
        notes -> Jsonb,
        mood -> MoodType,
        home -> Nullable<PlaceType>,
    }
}

diesel::table! {
    book (id) {
        id -> Integer,
        author_id -> Integer,
        title -> Text,
        pages -> BigInt,
        shelf -> Nullable<Int4range>,
    }
}

diesel::joinable!(book -> author (author_id));
diesel::allow_tables_to_appear_in_same_query!(author, book);

#[derive(Queryable, Selectable, Identifiable, AsChangeset, Debug, Clone, PartialEq)]
#[diesel(table_name = book)]
pub(crate) struct Book {
    pub(crate) id: i32,
    pub(crate) author_id: i32,
    pub(crate) title: String,
    pub(crate) pages: i64,
}

#[derive(Insertable)]
#[diesel(table_name = book, treat_none_as_default_value = false)]
pub(crate) struct NewBook<'a> {
    pub(crate) author_id: i32,
    pub(crate) title: &'a str,
    pub(crate) pages: i64,
}

/// A changeset without all columns, which is `Copy`, as diesel-async asks of one that is saved.
#[derive(Identifiable, AsChangeset, Clone, Copy)]
#[diesel(table_name = book)]
pub(crate) struct Retitled<'a> {
    pub(crate) id: i32,
    pub(crate) title: &'a str,
}

#[derive(QueryableByName)]
pub(crate) struct Counted {
    #[diesel(sql_type = BigInt)]
    pub(crate) count: i64,
}

pub(crate) const SCHEMA: &str =
    "CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE TYPE place AS (number int, name text);
    CREATE TABLE author (id serial PRIMARY KEY, name text NOT NULL UNIQUE, tags text[] NOT NULL DEFAULT '{}',
        notes jsonb NOT NULL DEFAULT '{}', mood mood NOT NULL DEFAULT 'good', home place);
    CREATE TABLE book (id serial PRIMARY KEY, author_id int NOT NULL REFERENCES author ON DELETE CASCADE,
        title text NOT NULL CHECK (title <> ''), pages bigint NOT NULL, shelf int4range);
    CREATE TABLE late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)";

/// The table has a column more than the changeset.
pub(crate) struct SavedBook(pub(crate) Book);

impl Queryable<(Integer, Integer, Text, BigInt, Nullable<Int4range>), Pg> for SavedBook {
    type Row = (i32, i32, String, i64, Option<(std::ops::Bound<i32>, std::ops::Bound<i32>)>);

    fn build((id, author_id, title, pages, _): Self::Row) -> deserialize::Result<Self> {
        Ok(Self(Book { id, author_id, title, pages }))
    }
}
