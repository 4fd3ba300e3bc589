//! A small application: notes, and an index of them that a background job keeps.

use std::time::Duration;

use axum::{
    Json, Router,
    extract::{FromRef, Path, State},
    http::StatusCode,
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use axum_extra::extract::cookie::Key;
use sea_orm::{ActiveValue::Set, DbErr, PaginatorTrait, QueryOrder, QuerySelect, entity::prelude::*};
use sea_router::{Reader, RoutingConnection, Token, axum::RequestSession};
use serde::{Deserialize, Serialize};

use crate::{cookie, index, note};

/// What handlers share: the connection for sessions, and a reader for what needs no session.
#[derive(Clone)]
pub(crate) struct AppState {
    db: RoutingConnection,
    /// For lists and counts: a few seconds old is good enough.
    recent: Reader,
    /// Signs cookies; a real application has it from its configuration, the same in every process.
    key: Key,
}

impl FromRef<AppState> for RoutingConnection {
    fn from_ref(state: &AppState) -> Self {
        state.db.clone()
    }
}

impl FromRef<AppState> for Reader {
    fn from_ref(state: &AppState) -> Self {
        state.recent.clone()
    }
}

impl FromRef<AppState> for Key {
    fn from_ref(state: &AppState) -> Self {
        state.key.clone()
    }
}

pub(crate) fn app(db: RoutingConnection) -> Router {
    let recent = db.reader(sea_router::ReadClass::SecondsStale(Duration::from_secs(2)));
    let state = AppState { db, recent, key: Key::generate() };
    Router::new()
        .route("/notes", post(create).get(list))
        .route("/notes/{id}", get(read))
        .route("/notes/count", get(count))
        .layer(middleware::from_fn_with_state(state.clone(), cookie::carry))
        .with_state(state)
}

#[derive(Serialize, Deserialize)]
pub(crate) struct NewNote {
    pub(crate) text: String,
}

/// A note, and how many there were when the request read it back.
#[derive(Serialize, Deserialize)]
pub(crate) struct Created {
    pub(crate) id: i64,
    pub(crate) notes: u64,
}

/// Writes, reads its own write, and hands the session's token to a job that runs on its own.
async fn create(
    RequestSession(session): RequestSession,
    Json(new): Json<NewNote>,
) -> Result<impl IntoResponse, Failure> {
    let written = note::ActiveModel { text: Set(new.text), ..Default::default() }.insert(&session).await?;
    let notes = note::Entity::find().count(&session.must_see_my_write()).await?;
    tokio::spawn(add_to_index(session.clone(), session.token().await, written.id));
    Ok((StatusCode::CREATED, Json(Created { id: written.id, notes })))
}

/// The job could run in another process: all that it needs to see the note is the token.
async fn add_to_index(db: RoutingConnection, token: Token, id: i64) -> Result<(), DbErr> {
    let session = db.resume(token);
    let text = note::Entity::find_by_id(id).one(&session.must_see_my_write()).await?.map(|note| note.text);
    let Some(text) = text else { return Err(DbErr::RecordNotFound(format!("note {id}, which the token covers"))) };
    let words = i64::try_from(text.split_whitespace().count()).unwrap_or(i64::MAX);
    index::ActiveModel { note_id: Set(id), words: Set(words) }.insert(&session).await?;
    Ok(())
}

/// Reads with the shared reader: no session, no write, one signature.
async fn list(State(recent): State<Reader>) -> Result<Json<Vec<String>>, Failure> {
    let notes = note::Entity::find().order_by_desc(note::Column::Id).limit(20).all(&recent).await?;
    Ok(Json(notes.into_iter().map(|note| note.text).collect()))
}

/// Counts the notes, with all that this browser has written in earlier requests.
async fn count(RequestSession(session): RequestSession) -> Result<Json<u64>, Failure> {
    Ok(Json(note::Entity::find().count(&session.must_see_my_write()).await?))
}

/// Reads a note and its index in one READ ONLY transaction on one server.
async fn read(RequestSession(session): RequestSession, Path(id): Path<i64>) -> Result<Response, Failure> {
    use sea_orm::TransactionTrait;
    let reader = session.reader(sea_router::ReadClass::Eventual);
    let transaction = reader.begin().await?;
    let note = note::Entity::find_by_id(id).one(&transaction).await?;
    let index = index::Entity::find_by_id(id).one(&transaction).await?;
    transaction.commit().await?;
    Ok(match note {
        Some(note) => Json((note.text, index.map(|index| index.words))).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    })
}

/// An error of the database, as a status that says whether to come again.
pub(crate) struct Failure(DbErr);

impl From<DbErr> for Failure {
    fn from(error: DbErr) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        eprintln!("{}", self.0);
        let status = match self.0 {
            DbErr::ConnectionAcquire(_) | DbErr::Conn(_) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        status.into_response()
    }
}
