//! A client of the API: one user, over real HTTP.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;

use crate::{
    api::{NewRide, NewUser, RideBody, SERVED_BECAUSE, SERVED_BY, USER, UserBody, WAITED_US},
    failure::Failure,
};

/// The router's own limits are shorter.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// A user who has signed up.
pub(crate) struct Client {
    http: reqwest::Client,
    api: SocketAddr,
    user: i64,
}

/// A ride read back, and where.
#[derive(Debug)]
pub(crate) struct Answer {
    /// `None` if there is no such ride.
    pub(crate) ride: Option<RideBody>,
    /// The server, such as `replica0`.
    pub(crate) node: String,
    /// Why it was the primary; `None` for a replica.
    pub(crate) reason: Option<String>,
    /// How long the read waited for a replica to catch up; part of `took`.
    pub(crate) waited: Duration,
    /// How long it took, as the user sees it.
    pub(crate) took: Duration,
}

impl Client {
    /// Makes a new user.
    pub(crate) async fn sign_up(http: reqwest::Client, api: SocketAddr, email: String) -> Result<Self, Failure> {
        let url = format!("http://{api}/users");
        let UserBody { id } = body(send(http.post(url).json(&NewUser { email })).await?).await?;
        Ok(Self { http, api, user: id })
    }

    /// Makes a new ride.
    pub(crate) async fn create(&self, ride: &NewRide) -> Result<RideBody, Failure> {
        body(send(self.request(Method::POST, "rides").json(ride)).await?).await
    }

    /// Changes a ride.
    pub(crate) async fn update(&self, id: i64, ride: &NewRide) -> Result<RideBody, Failure> {
        body(send(self.request(Method::PUT, &format!("rides/{id}")).json(ride)).await?).await
    }

    /// Reads a ride.
    pub(crate) async fn read(&self, id: i64) -> Result<Answer, Failure> {
        let started = Instant::now();
        let response = send(self.request(Method::GET, &format!("rides/{id}"))).await?;
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let node = header(SERVED_BY).unwrap_or("nobody knows").to_owned();
        let reason = header(SERVED_BECAUSE).map(str::to_owned);
        let waited = header(WAITED_US).and_then(|micros| micros.parse().ok()).map(Duration::from_micros);
        let ride = if response.status() == StatusCode::NOT_FOUND { None } else { Some(body(response).await?) };
        Ok(Answer { ride, node, reason, waited: waited.unwrap_or_default(), took: started.elapsed() })
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("http://{}/{path}", self.api)).header(USER, self.user)
    }
}

async fn send(request: RequestBuilder) -> Result<Response, Failure> {
    request.timeout(REQUEST_LIMIT).send().await.map_err(Failure::run)
}

/// What a response says, if it is a good one.
async fn body<T: DeserializeOwned>(response: Response) -> Result<T, Failure> {
    let (status, url) = (response.status(), response.url().clone());
    if status.is_success() {
        return response.json().await.map_err(Failure::run);
    }
    let text = response.text().await.unwrap_or_default();
    Err(Failure::Run(format!("{url} answered {status}: {text}")))
}
