//! The loops that put the monitor's questions to the servers, and waits for what they learn.

use std::{pin::pin, sync::Arc, time::Duration};

use diesel::{ConnectionError, connection::InstrumentationEvent, result::Error};
use diesel_async::{AsyncConnection, AsyncPgConnection};
use read_router::{
    Answer, Ask, Epoch, Failure, Greeting, NodeId, Time,
    live::{GaveUp, SharedSession, Watch, now},
};

use super::{runtime::timeout, source::Server, text};
use crate::error::Fault;

/// How often one who waits for a replica's rows looks whether the replica still answers.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A probe connection with what its server said first.
pub(crate) struct Probe {
    pub(crate) connection: AsyncPgConnection,
    pub(crate) greeting: Greeting,
    pub(crate) sent_at: Time,
    pub(crate) answer: Answer,
}

/// Asks for a newer picture on behalf of one who has waited since `since`, and waits for it, until `until` at most.
pub(crate) async fn changed(watch: &Watch, ask: Ask, since: Time, until: Time) {
    let change = watch.changed(ask, since);
    let _ = timeout(until.since(now()), change).await;
}

/// Waits for what the session gave back and is being settled in the background, until `until` at most.
pub(crate) async fn returned(session: &SharedSession, until: Time) {
    while let Some(change) = session.being_returned() {
        if timeout(until.since(now()), change).await.is_err() {
            return;
        }
    }
}

/// Runs a read on a replica, within `limit` if there is one, and for no longer than the replica answers: a host that hangs
/// would hold its readers until the network gives it up.
pub(crate) async fn while_serving<T>(
    watch: &Watch,
    node: NodeId,
    limit: Option<Duration>,
    work: impl Future<Output = T>,
) -> Result<T, GaveUp> {
    let mut work = pin!(work);
    let mut left = limit.unwrap_or(Duration::MAX);
    loop {
        let pause = left.min(LOOK_AGAIN);
        if let Ok(done) = timeout(pause, &mut work).await {
            return Ok(done);
        }
        left -= pause;
        if left.is_zero() {
            return Err(GaveUp::TimeLimit);
        }
        if let Some(gave_up) = watch.gave_up(node) {
            return Err(gave_up);
        }
    }
}

/// Waits until the node's next probe is due.
async fn due(watch: &Watch, node: NodeId) {
    loop {
        match watch.due(node) {
            (Some(Duration::ZERO), _) => return,
            (Some(wait), change) => {
                let _ = timeout(wait, change).await;
            }
            (None, change) => change.await,
        }
    }
}

/// Probes one node for as long as the task lives. A node that hangs holds up no other.
pub(crate) async fn probe_node(
    watch: Arc<Watch>,
    node: NodeId,
    server: Server,
    first: Option<(AsyncPgConnection, Epoch)>,
) {
    let mut open = first;
    loop {
        due(&watch, node).await;
        if let Err((failure, error)) = probe_once(&watch, node, &server, &mut open).await {
            open = None;
            watch.failed(node, failure, &error);
        }
    }
}

/// Why a probe failed, and what the driver says.
pub(crate) type Failed = (Failure, ConnectionError);

async fn probe_once(
    watch: &Watch,
    node: NodeId,
    server: &Server,
    open: &mut Option<(AsyncPgConnection, Epoch)>,
) -> Result<(), Failed> {
    let limit = watch.config.probe_timeout;
    // The name may lead elsewhere by now; the old connection would go on answering.
    open.take_if(|(_, epoch)| !watch.is_open(node, *epoch));
    let (connection, epoch) = match open {
        Some(open) => open,
        None => {
            let (connection, greeting) = within(limit, connect(server)).await?;
            let epoch = watch.opened(node, &greeting);
            open.insert((connection, epoch))
        }
    };
    watch.sent(node);
    let answer = within(limit, position(connection)).await?;
    watch.answered(node, *epoch, &answer);
    Ok(())
}

/// Opens a probe connection and asks it once.
pub(crate) async fn first_probe(server: &Server, limit: Duration) -> Result<Probe, Failed> {
    within(limit, async {
        let (connection, greeting) = connect(server).await?;
        let sent_at = now();
        let answer = position(&connection).await?;
        Ok(Probe { connection, greeting, sent_at, answer })
    })
    .await
}

async fn connect(server: &Server) -> Result<(AsyncPgConnection, Greeting), Failed> {
    let mut connection = server.open().await?;
    // Its statements are not the application's: they stay out of its log.
    connection.set_instrumentation(|_: InstrumentationEvent<'_>| {});
    match text::greet(&connection, false).await {
        Ok(Some(greeting)) => Ok((connection, greeting)),
        Ok(None) => {
            Err((Failure::Answer, ConnectionError::BadConnection("the server does not say who it is".to_owned())))
        }
        Err(error) => Err(failed(error)),
    }
}

async fn position(connection: &AsyncPgConnection) -> Result<Answer, Failed> {
    text::position(connection).await.map_err(failed)
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, Failed>>) -> Result<T, Failed> {
    match timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => {
            Err((Failure::Timeout, ConnectionError::BadConnection("the server did not answer in time".to_owned())))
        }
    }
}

fn failed(error: Error) -> Failed {
    let failure = if Fault::of(&error) == Fault::Gone { Failure::Unreachable } else { Failure::Answer };
    (failure, ConnectionError::CouldntSetupConfiguration(error))
}
