//! Rows one by one, with the session kept in step.

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
};

use diesel::{QueryResult, result::Error};
use diesel_async::{AsyncConnectionCore, AsyncPgConnection};
use futures_util::{FutureExt, Stream, StreamExt, stream::BoxStream};
use read_router::{
    NodeId, Opened, Proof, Served, WriteId,
    live::{Busy, GaveUp, SharedSession, Watch},
};

use super::{
    collected::Collected,
    doubt,
    node::Checked,
    router::Inner,
    runtime::{sleep, spawn},
    watch::LOOK_AGAIN,
};
use crate::error::{Fault, unsent};

/// A row as diesel-async's own connection gives it.
pub(crate) type Row = <AsyncPgConnection as AsyncConnectionCore>::Row<'static, 'static>;

/// The rows of a statement that ran on a routing connection.
///
/// They hold the connection that they come from until the last one, or until they are dropped. Rows of a statement that
/// may write, if they are dropped early, are read to their end in the background: until then the session counts the write
/// as in doubt.
pub struct AsyncRows {
    ahead: VecDeque<Row>,
    rest: Option<BoxStream<'static, QueryResult<Row>>>,
    source: Source,
    /// When to look whether the replica still answers, while its next row does not come.
    look: Option<Pin<Box<tokio::time::Sleep>>>,
}

/// The rows that were there at once, and the rest if there may be more.
pub(crate) struct Begun {
    ahead: VecDeque<Row>,
    rest: Option<BoxStream<'static, QueryResult<Row>>>,
}

/// So many rows are taken before the statement counts as begun, if they are there.
const AHEAD: usize = 64;

/// Where the rows come from and what the session must hear of them.
pub(crate) enum Source {
    Replica {
        session: SharedSession,
        watch: Arc<Watch>,
        node: NodeId,
        proof: Proof,
        served: Served,
        rest: Held,
    },
    PrimaryRead {
        session: SharedSession,
        watch: Arc<Watch>,
        opened: Option<Opened>,
        rest: Held,
    },
    Write {
        session: SharedSession,
        watch: Arc<Watch>,
        inner: Weak<Inner>,
        write: WriteId,
        opened: Option<Opened>,
        rest: Held,
    },
    /// A transaction's: its connection stays with the handle.
    Pinned {
        session: SharedSession,
        watch: Arc<Watch>,
        place: Seen,
    },
    Ended,
}

/// What is kept until the last row: the connection, and the read's place in the count of those under way.
pub(crate) struct Held {
    pub(crate) connection: Checked,
    pub(crate) _busy: Option<Busy>,
}

/// What a statement of a transaction tells the session.
#[derive(Clone, Copy)]
pub(crate) enum Seen {
    Primary(Option<Opened>),
    Replica { node: NodeId, proof: Proof, served: Served },
}

impl Seen {
    pub(crate) fn tell(&self, session: &SharedSession, watch: &Watch) {
        match self {
            Self::Primary(opened) => session.contact(watch, *opened),
            Self::Replica { node, proof, served } => session.read_done(watch, *node, proof, *served),
        }
    }
}

impl Begun {
    /// Runs the query up to its first row or its end; what else has come with it is taken too.
    pub(crate) async fn run(connection: &mut AsyncPgConnection, query: &Collected) -> QueryResult<Self> {
        let mut rows = AsyncConnectionCore::load(connection, query.query()).await?;
        let mut ahead = VecDeque::new();
        let mut next = rows.next().await;
        loop {
            match next {
                None => return Ok(Self { ahead, rest: None }),
                Some(row) => ahead.push_back(row?),
            }
            if ahead.len() >= AHEAD {
                return Ok(Self { ahead, rest: Some(rows) });
            }
            next = match rows.next().now_or_never() {
                Some(next) => next,
                None => return Ok(Self { ahead, rest: Some(rows) }),
            };
        }
    }

    /// The rows with where they come from.
    pub(crate) fn from(self, source: Source) -> Box<AsyncRows> {
        let mut rows = Box::new(AsyncRows { ahead: self.ahead, rest: self.rest, source, look: None });
        match rows.rest {
            Some(_) => rows.source.seen(),
            None => rows.source.ended(None),
        }
        rows
    }
}

impl AsyncRows {
    /// How many rows there are.
    pub(crate) async fn count(mut self) -> QueryResult<usize> {
        let mut count = 0;
        while let Some(row) = self.next().await {
            row?;
            count += 1;
        }
        Ok(count)
    }
}

impl Source {
    /// Rows have been shown: their snapshot lies before this moment.
    fn seen(&self) {
        match self {
            Self::Replica { session, watch, node, proof, served, .. } => {
                session.read_done(watch, *node, proof, *served);
            }
            Self::PrimaryRead { session, watch, opened, .. } => session.contact(watch, *opened),
            Self::Pinned { session, watch, place } => place.tell(session, watch),
            Self::Write { .. } | Self::Ended => {}
        }
    }

    /// Why the next row, which has not come, is no longer waited for, if that is so: a host that hangs would hold its
    /// readers until the network gives it up.
    fn gave_up(&self, look: &mut Option<Pin<Box<tokio::time::Sleep>>>, context: &mut Context<'_>) -> Option<GaveUp> {
        let (watch, node) = match self {
            Self::Replica { watch, node, .. } => (watch, *node),
            Self::Pinned { watch, place: Seen::Replica { node, .. }, .. } => (watch, *node),
            _ => return None,
        };
        while look.get_or_insert_with(|| Box::pin(sleep(LOOK_AGAIN))).as_mut().poll(context).is_ready() {
            *look = None;
            if let Some(gave_up) = watch.gave_up(node) {
                return Some(gave_up);
            }
        }
        None
    }

    /// The server is done with the statement.
    fn ended(&mut self, error: Option<&Error>) {
        self.seen();
        match std::mem::replace(self, Self::Ended) {
            Self::Write { session, watch, inner, write, opened, rest } => match error.map(Fault::of) {
                Some(Fault::Gone) => doubt::settle_later(inner, session, write, opened),
                Some(Fault::Unclear) => doubt::look(inner, session, write, rest.connection),
                _ => session.acknowledged(&watch, write, opened),
            },
            Self::Replica { rest, .. } | Self::PrimaryRead { rest, .. }
                if error.map(Fault::of) == Some(Fault::Gone) =>
            {
                rest.connection.discard()
            }
            _ => {}
        }
    }
}

impl AsyncRows {
    /// Those of a statement that has none.
    pub(crate) fn none() -> Self {
        Self { ahead: VecDeque::new(), rest: None, source: Source::Ended, look: None }
    }
}

impl Stream for AsyncRows {
    type Item = QueryResult<Row>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Some(row) = this.ahead.pop_front() {
            return Poll::Ready(Some(Ok(row)));
        }
        let Some(rows) = &mut this.rest else { return Poll::Ready(None) };
        let item = match rows.poll_next_unpin(context) {
            Poll::Ready(item) => item,
            Poll::Pending => match this.source.gave_up(&mut this.look, context) {
                Some(gave_up) => Some(Err(unsent(gave_up.as_str()))),
                None => return Poll::Pending,
            },
        };
        this.look = None;
        match &item {
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                this.rest = None;
                this.source.ended(Some(error));
            }
            None => {
                this.rest = None;
                this.source.ended(None);
            }
        }
        Poll::Ready(item)
    }
}

impl Drop for AsyncRows {
    fn drop(&mut self) {
        if self.rest.take_if(|_| !matches!(self.source, Source::Write { .. })).is_some()
            && let Source::Replica { rest, .. } | Source::PrimaryRead { rest, .. } = &mut self.source
        {
            rest.connection.reading(true);
        }
        let Source::Write { session, write, .. } = &self.source else { return self.source.ended(None) };
        session.with(|session| session.in_doubt(*write));
        let Some(mut rows) = self.rest.take() else { return };
        let mut source = std::mem::replace(&mut self.source, Source::Ended);
        spawn(async move {
            // A lost connection says so for every row that is asked for: its first error is the end.
            let failed = loop {
                match rows.next().await {
                    None => break None,
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break Some(error),
                }
            };
            source.ended(failed.as_ref());
        });
    }
}

impl fmt::Debug for AsyncRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AsyncRows")
    }
}
