//! The HTTP API: users, and their rides.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    Json, Router,
    extract::{FromRequestParts, Path, State},
    http::{StatusCode, request::Parts},
    response::{AppendHeaders, IntoResponse, Response},
    routing::{get, post},
};
use sea_router::Served;
use serde::{Deserialize, Serialize};

use crate::store::{Failed, Session, Store};

/// Header of a request: who asks. A real application would authenticate.
pub(crate) const USER: &str = "user";
/// Header of a response: the server that was read, such as `replica0`.
pub(crate) const SERVED_BY: &str = "served-by";
/// Header of a response: why that was the primary, such as `behind`.
pub(crate) const SERVED_BECAUSE: &str = "served-because";
/// Header of a response: microseconds that the read waited for a replica to catch up.
pub(crate) const WAITED_US: &str = "waited-us";

/// Where rides are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// On a replica that has the user's last write, else on the primary.
    Gated,
    /// On any replica.
    Naive,
}

/// The application's state.
pub(crate) struct Api {
    db: Arc<dyn Store>,
    reads: Reads,
    /// What each user must see: the article's `min_lsn`, which here moves on by itself at every write.
    ///
    /// A real application forgets a session when it forgets the user's login. With several processes it hands the
    /// session's token to the client, and resumes the session from it.
    sessions: Mutex<HashMap<i64, Arc<dyn Session>>>,
}

impl Api {
    pub(crate) fn new(db: Arc<dyn Store>, reads: Reads) -> Arc<Self> {
        Arc::new(Self { db, reads, sessions: Mutex::default() })
    }

    pub(crate) fn router(self: Arc<Self>) -> Router {
        Router::new()
            .route("/users", post(create_user))
            .route("/rides", post(create_ride))
            .route("/rides/{id}", get(read_ride).put(update_ride))
            .with_state(self)
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<i64, Arc<dyn Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct NewUser {
    pub(crate) email: String,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct UserBody {
    pub(crate) id: i64,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct NewRide {
    pub(crate) distance: i64,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RideBody {
    pub(crate) id: i64,
    pub(crate) distance: i64,
}

/// `POST /users`: the session begins with the user's first write.
async fn create_user(State(api): State<Arc<Api>>, Json(new): Json<NewUser>) -> Result<impl IntoResponse, Refusal> {
    let db = api.db.new_session();
    let id = db.create_user(new.email).await?;
    api.sessions().insert(id, db);
    Ok((StatusCode::CREATED, Json(UserBody { id })))
}

/// `POST /rides`.
async fn create_ride(caller: Caller, Json(new): Json<NewRide>) -> Result<impl IntoResponse, Refusal> {
    Ok((StatusCode::CREATED, Json(caller.db.create_ride(caller.id, new.distance).await?)))
}

/// `PUT /rides/{id}`.
async fn update_ride(
    caller: Caller,
    Path(id): Path<i64>,
    Json(new): Json<NewRide>,
) -> Result<impl IntoResponse, Refusal> {
    let ride = caller.db.update_ride(caller.id, id, new.distance).await?;
    ride.map(Json).ok_or(Refusal::NoRide)
}

/// `GET /rides/{id}`: the read that this program is about.
async fn read_ride(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<impl IntoResponse, Refusal> {
    let (ride, read) = caller.db.read_ride(id, api.reads).await?;
    let headers = read.map(served).unwrap_or_default();
    Ok((AppendHeaders(headers), ride.map(Json).ok_or(Refusal::NoRide)))
}

/// Tells the client where it was served. A user's requests come one after another, so the last one is this one.
fn served(served: Served) -> Vec<(&'static str, String)> {
    let mut headers = vec![(SERVED_BY, served.node.to_string()), (WAITED_US, served.waited.as_micros().to_string())];
    headers.extend(served.reason.map(|reason| (SERVED_BECAUSE, reason.as_str().to_owned())));
    headers
}

/// Who asks, and that user's session.
struct Caller {
    id: i64,
    db: Arc<dyn Session>,
}

impl FromRequestParts<Arc<Api>> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Refusal> {
        let header = parts.headers.get(USER).and_then(|value| value.to_str().ok());
        let id = header.and_then(|value| value.parse().ok()).ok_or(Refusal::NoUser)?;
        let db = api.sessions().get(&id).cloned().ok_or(Refusal::NoUser)?;
        Ok(Self { id, db })
    }
}

/// Why a request got no ride.
enum Refusal {
    NoUser,
    NoRide,
    Database(Failed),
}

impl From<Failed> for Refusal {
    fn from(error: Failed) -> Self {
        Self::Database(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::NoUser => (StatusCode::UNAUTHORIZED, "no such user"),
            Self::NoRide => (StatusCode::NOT_FOUND, "no such ride"),
            // A real application would log it, and not tell a client.
            Self::Database(error) => return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
        .into_response()
    }
}
