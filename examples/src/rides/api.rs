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
use sea_orm::{ActiveValue::Set, DbErr, IntoActiveModel, TransactionTrait, prelude::*};
use sea_router::{NodeId, RoutingConnection, Served};
use serde::{Deserialize, Serialize};

use crate::{ride, user};

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
    db: RoutingConnection,
    reads: Reads,
    /// What each user must see: the article's `min_lsn`, which here moves on by itself at every write.
    ///
    /// A real application forgets a session when it forgets the user's login. With several processes it hands the
    /// session's token to the client, and resumes the session from it.
    sessions: Mutex<HashMap<i64, RoutingConnection>>,
}

impl Api {
    pub(crate) fn new(db: RoutingConnection, reads: Reads) -> Arc<Self> {
        Arc::new(Self { db, reads, sessions: Mutex::default() })
    }

    pub(crate) fn router(self: Arc<Self>) -> Router {
        Router::new()
            .route("/users", post(create_user))
            .route("/rides", post(create_ride))
            .route("/rides/{id}", get(read_ride).put(update_ride))
            .with_state(self)
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<i64, RoutingConnection>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A random replica, past all routing.
    fn any_replica(&self) -> Option<(NodeId, &DatabaseConnection)> {
        let replicas =
            u16::try_from(self.db.topology().nodes().len()).ok()?.checked_sub(1).filter(|&count| count > 0)?;
        let node = NodeId::replica(rand::random_range(0..replicas));
        Some((node, self.db.node(node)?))
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

impl From<ride::Model> for RideBody {
    fn from(ride: ride::Model) -> Self {
        Self { id: ride.id, distance: ride.distance }
    }
}

/// `POST /users`: the session begins with the user's first write.
async fn create_user(State(api): State<Arc<Api>>, Json(new): Json<NewUser>) -> Result<impl IntoResponse, Refusal> {
    let db = api.db.new_session();
    let user = user::ActiveModel { email: Set(new.email), ..Default::default() }.insert(&db).await?;
    api.sessions().insert(user.id, db);
    Ok((StatusCode::CREATED, Json(UserBody { id: user.id })))
}

/// `POST /rides`.
async fn create_ride(caller: Caller, Json(new): Json<NewRide>) -> Result<impl IntoResponse, Refusal> {
    let ride = ride::ActiveModel { distance: Set(new.distance), user_id: Set(caller.id), ..Default::default() };
    let ride = ride.insert(&caller.db).await?;
    Ok((StatusCode::CREATED, Json(RideBody::from(ride))))
}

/// `PUT /rides/{id}`: the read that decides the write runs with it, in a transaction on the primary.
async fn update_ride(
    caller: Caller,
    Path(id): Path<i64>,
    Json(new): Json<NewRide>,
) -> Result<impl IntoResponse, Refusal> {
    let transaction = caller.db.begin().await?;
    let own = ride::Entity::find_by_id(id).filter(ride::Column::UserId.eq(caller.id));
    let mut ride = own.one(&transaction).await?.ok_or(Refusal::NoRide)?.into_active_model();
    ride.distance = Set(new.distance);
    let ride = ride.update(&transaction).await?;
    transaction.commit().await?;
    Ok(Json(RideBody::from(ride)))
}

/// `GET /rides/{id}`: the read that this program is about.
async fn read_ride(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<impl IntoResponse, Refusal> {
    let find = ride::Entity::find_by_id(id);
    let (ride, headers) = match api.reads {
        Reads::Gated => {
            let db = caller.db.must_see_my_write();
            (find.one(&db).await?, db.last_served().map(served).unwrap_or_default())
        }
        Reads::Naive => {
            let (node, replica) = api.any_replica().ok_or(Refusal::NoReplica)?;
            (find.one(replica).await?, vec![(SERVED_BY, node.to_string())])
        }
    };
    let body = ride.map(|ride| Json(RideBody::from(ride))).ok_or(Refusal::NoRide);
    Ok((AppendHeaders(headers), body))
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
    db: RoutingConnection,
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
    NoReplica,
    Database(DbErr),
}

impl From<DbErr> for Refusal {
    fn from(error: DbErr) -> Self {
        Self::Database(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::NoUser => (StatusCode::UNAUTHORIZED, "no such user"),
            Self::NoRide => (StatusCode::NOT_FOUND, "no such ride"),
            Self::NoReplica => (StatusCode::SERVICE_UNAVAILABLE, "no replica is configured"),
            // A real application would log it, and not tell a client.
            Self::Database(error) => return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
        .into_response()
    }
}
