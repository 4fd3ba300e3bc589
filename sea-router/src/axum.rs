//! A session for each request of an [axum](https://docs.rs/axum) application (feature `axum`).

use std::{convert::Infallible, ops::Deref};

use axum_core::extract::{FromRef, FromRequestParts};
use http::request::Parts;

use crate::RoutingConnection;

/// The request's own session: everything that the request writes, its `MustSeeMyWrite` reads see.
///
/// The state holds the [`RoutingConnection`], alone or behind `FromRef`. All extractions of one request are the same
/// session. A middleware or an earlier extractor that knows more, such as a token from an authenticated cookie, puts the
/// session that [`resume`](RoutingConnection::resume) gives into the request's extensions; it is then taken from there.
/// `examples/src/web/cookie.rs` is such a middleware.
///
/// A handler takes the connection out of it in its signature, as out of axum's own extractors. Functions over
/// `&impl ConnectionTrait` then take it as `&session`.
///
/// ```
/// use axum::{Router, extract::State, routing::{get, post}};
/// use sea_orm::{ConnectionTrait, DbErr, Statement, DbBackend};
/// use sea_router::{Reader, RoutingConnection, axum::RequestSession};
///
/// async fn create(RequestSession(session): RequestSession) -> Result<(), String> {
///     let insert = Statement::from_string(DbBackend::Postgres, "INSERT INTO note (text) VALUES ('new')");
///     session.execute_raw(insert).await.map_err(|error| error.to_string())?;
///     // What this handler reads from here on has the note:
///     let count = Statement::from_string(DbBackend::Postgres, "SELECT count(*) FROM note");
///     session.must_see_my_write().query_one_raw(count).await.map_err(|error| error.to_string())?;
///     Ok(())
/// }
///
/// fn app(db: RoutingConnection) -> Router {
///     Router::new().route("/notes", post(create)).with_state(db)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct RequestSession(pub RoutingConnection);

impl<S> FromRequestParts<S> for RequestSession
where
    S: Send + Sync,
    RoutingConnection: FromRef<S>,
{
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let session = parts.extensions.get::<RoutingConnection>().cloned();
        let session = session.unwrap_or_else(|| RoutingConnection::from_ref(state).new_session());
        parts.extensions.insert(session.clone());
        Ok(Self(session))
    }
}

impl Deref for RequestSession {
    type Target = RoutingConnection;

    fn deref(&self) -> &RoutingConnection {
        &self.0
    }
}
