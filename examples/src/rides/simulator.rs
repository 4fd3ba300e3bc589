//! Users who write a ride and read it back at once.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use crate::{
    api::NewRide,
    client::{Answer, Client},
    failure::Failure,
};

/// Rounds that may be done and not yet reported: whoever reads our output slowly slows the users down.
const UNREPORTED: usize = 1024;

/// The rounds that are left, shared by the users.
#[derive(Debug)]
pub(crate) struct Rounds(AtomicU64);

/// What one round saw.
#[derive(Debug)]
pub(crate) struct Round {
    /// The ride's id.
    pub(crate) ride: i64,
    /// How long the write took, as its user sees it.
    pub(crate) write: Duration,
    /// The read after it.
    pub(crate) read: Answer,
    /// The ride was missing, or as it was before the write.
    pub(crate) stale: bool,
}

impl Rounds {
    pub(crate) fn new(count: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(count)))
    }

    /// Takes one: a number that no other round has, or `None` when all are done.
    fn take(&self) -> Option<u64> {
        self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).ok()
    }

    /// Lets each user finish the round that is under way, and begin no other.
    pub(crate) fn stop(&self) {
        self.0.store(0, Relaxed);
    }
}

/// Has `users` users share the rounds; each sends what it saw. The channel closes when all are done.
pub(crate) fn start(
    api: SocketAddr,
    users: u64,
    rounds: &Arc<Rounds>,
) -> Result<mpsc::Receiver<Result<Round, Failure>>, Failure> {
    // The way to ourselves does not lead through the proxy that the environment may name.
    let http = reqwest::Client::builder().no_proxy().build().map_err(Failure::run)?;
    let (sender, receiver) = mpsc::channel(UNREPORTED);
    for number in 0..users {
        let (http, rounds, sender) = (http.clone(), rounds.clone(), sender.clone());
        tokio::spawn(async move {
            let signed_up = Client::sign_up(http, api, format!("rider{number}@example.com")).await;
            let outcome = match signed_up {
                Ok(client) => ride(&client, &rounds, &sender).await,
                Err(failure) => Err(failure),
            };
            if let Err(failure) = outcome {
                // If nobody listens any more, the run is over.
                let _ = sender.send(Err(failure)).await;
            }
        });
    }
    Ok(receiver)
}

/// By turns a new ride, and a new distance for it: a replica can lack the one as well as the other.
async fn ride(client: &Client, rounds: &Rounds, sender: &mpsc::Sender<Result<Round, Failure>>) -> Result<(), Failure> {
    let mut last = None;
    while let Some(number) = rounds.take() {
        let new = NewRide { distance: i64::try_from(number).unwrap_or(i64::MAX) };
        let started = Instant::now();
        let written = match last {
            None => client.create(&new).await?,
            Some(id) => client.update(id, &new).await?,
        };
        let write = started.elapsed();
        let read = client.read(written.id).await?;
        last = if last.is_none() { Some(written.id) } else { None };
        let stale = read.ride.as_ref() != Some(&written);
        if sender.send(Ok(Round { ride: written.id, write, read, stale })).await.is_err() {
            break;
        }
    }
    Ok(())
}
