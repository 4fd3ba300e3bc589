//! Rows one by one, with the session kept in step.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{Stream, StreamExt};
use read_router::{
    NodeId, Opened, PrimaryReason, Proof, ReadOptions, Served, WriteId,
    live::{Busy, Call, GaveUp, SharedSession, Watch},
};
use sea_orm::{DbErr, QueryResult, QueryStream, Statement};

use crate::{
    RoutingConnection,
    connection::Inner,
    doubt, error,
    metric::{Place, StreamMeter},
    node::Node,
    routing::{Access, Attempt, Missed, Outcome},
    spans::StreamSpan,
    watch::{LOOK_AGAIN, while_serving},
};

/// The rows of a statement that a [`RoutingConnection`](crate::RoutingConnection) streams.
///
/// It holds its connection until it ends or is dropped. A stream of a statement that may write, if it is dropped
/// early, is read to its end in the background, as the pool would do: until then the session counts the write as
/// in doubt.
pub struct RoutedStream {
    rows: Option<QueryStream>,
    first: Option<Option<Result<QueryResult, DbErr>>>,
    source: Source,
    polled: bool,
    /// When to look whether the replica still answers, while its next row does not come.
    look: Option<Pin<Box<tokio::time::Sleep>>>,
    meter: Option<StreamMeter>,
    span: Option<StreamSpan>,
}

/// Where the rows come from and what the session must hear of them.
pub(crate) enum Source {
    Replica { session: SharedSession, watch: Arc<Watch>, node: NodeId, proof: Proof, served: Served, _busy: Busy },
    PrimaryRead { session: SharedSession, watch: Arc<Watch>, opened: Option<Opened>, shown: bool },
    Write { session: SharedSession, watch: Arc<Watch>, inner: Weak<Inner>, write: WriteId, opened: Option<Opened> },
    Ended,
}

impl RoutedStream {
    /// The stream whose first item, or end, has been taken from it already.
    pub(crate) fn begun(rows: QueryStream, first: Option<Result<QueryResult, DbErr>>, source: Source) -> Self {
        source.seen();
        Self { rows: Some(rows), first: Some(first), source, polled: true, look: None, meter: None, span: None }
    }

    pub(crate) fn new(rows: QueryStream, source: Source) -> Self {
        Self { rows: Some(rows), first: None, source, polled: false, look: None, meter: None, span: None }
    }

    /// The span that is entered for its rows.
    pub(crate) fn in_span(mut self, span: StreamSpan) -> Self {
        self.span = Some(span);
        self
    }

    fn metered(mut self, meter: Option<StreamMeter>) -> Self {
        self.meter = meter;
        self
    }
}

impl RoutingConnection {
    pub(crate) async fn stream_read(
        &self,
        statement: Statement,
        options: ReadOptions,
        access: Access,
    ) -> Result<RoutedStream, DbErr> {
        let mut call = Call::new(options);
        match self.serve(&mut call, &StreamOnce { statement: &statement }).await? {
            Outcome::Served(stream) => Ok(stream),
            Outcome::Misrouted(reason) if access == Access::Full => self.stream_write(statement, reason).await,
            Outcome::Misrouted(reason) | Outcome::Primary(reason) => {
                self.stream_from(self.primary_for(access), statement, Some(&call), reason).await
            }
        }
    }

    pub(crate) async fn stream_from_primary(
        &self,
        statement: Statement,
        call: Option<&Call>,
        reason: PrimaryReason,
    ) -> Result<RoutedStream, DbErr> {
        self.stream_from(self.inner.primary(), statement, call, reason).await
    }

    /// The same from this pool of the primary.
    pub(crate) async fn stream_from(
        &self,
        primary: &Node,
        statement: Statement,
        call: Option<&Call>,
        reason: PrimaryReason,
    ) -> Result<RoutedStream, DbErr> {
        let (checked, reason) = self.acquire_primary(primary, call, reason).await?;
        self.count_primary(self.view.class(), reason, call.map_or(Duration::ZERO, Call::waited));
        let opened = checked.opened;
        let source = Source::PrimaryRead {
            session: self.session.clone(),
            watch: self.inner.watch.clone(),
            opened,
            shown: false,
        };
        let meter = StreamMeter::new(self.metering.as_ref(), Place::primary(reason), &statement);
        Ok(RoutedStream::new(QueryStream::from((checked.connection, statement, None)), source).metered(meter))
    }

    pub(crate) async fn stream_write(
        &self,
        statement: Statement,
        reason: PrimaryReason,
    ) -> Result<RoutedStream, DbErr> {
        self.count_primary(self.view.class(), reason, Duration::ZERO);
        let checked = self.inner.primary().acquire().await?;
        let source = Source::Write {
            write: self.session.with(read_router::Session::write_sent),
            session: self.session.clone(),
            watch: self.inner.watch.clone(),
            inner: self.inner.downgrade(),
            opened: checked.opened,
        };
        let meter = StreamMeter::new(self.metering.as_ref(), Place::primary(reason), &statement);
        Ok(RoutedStream::new(QueryStream::from((checked.connection, statement, None)), source).metered(meter))
    }
}

struct StreamOnce<'a> {
    statement: &'a Statement,
}

impl Attempt for StreamOnce<'_> {
    type Out = RoutedStream;

    fn sql(&self) -> &str {
        &self.statement.sql
    }

    /// The first row is taken before the stream is handed out: up to there another server can still serve it.
    async fn attempt(
        &self,
        routing: &RoutingConnection,
        call: &Call,
        node: NodeId,
        proof: &Proof,
        busy: Busy,
    ) -> Result<RoutedStream, Missed> {
        let watch = &routing.inner.watch;
        let checked = routing.acquire_proven(call, node, proof).await?;
        let mut rows = QueryStream::from((checked.connection, self.statement.clone(), None));
        let mut meter = StreamMeter::new(routing.metering.as_ref(), Place::replica(node), self.statement);
        meter.iter_mut().for_each(StreamMeter::asked);
        let first = while_serving(watch, node, call.limit(watch), rows.next()).await;
        let failed = !matches!(first, Ok(None | Some(Ok(_))));
        meter.iter_mut().for_each(|meter| meter.answered(failed));
        let first = first.map_err(|gave_up| routing.gave_up(node, gave_up))?;
        let first = match first {
            Some(Err(error)) => match routing.missed(node, error) {
                Missed::Statement(error) => Some(Err(error)),
                missed => return Err(missed),
            },
            row => row,
        };
        let served = routing.count_replica(call, node);
        let (session, watch) = (routing.session.clone(), watch.clone());
        let source = Source::Replica { session, watch, node, proof: *proof, served, _busy: busy };
        Ok(RoutedStream::begun(rows, first, source).metered(meter))
    }
}

impl Source {
    /// Rows have been shown: their snapshot lies before this moment.
    fn seen(&self) {
        match self {
            Self::Replica { session, watch, node, proof, served, .. } => {
                session.read_done(watch, *node, proof, *served)
            }
            Self::PrimaryRead { session, watch, opened, .. } => session.contact(watch, *opened),
            Self::Write { .. } | Self::Ended => {}
        }
    }

    /// A row is shown; before the first one nothing was. A replica's was noted when the stream began.
    fn first_row(&mut self) {
        if let Self::PrimaryRead { shown: shown @ false, .. } = self {
            *shown = true;
            self.seen();
        }
    }

    /// Why the next row, which has not come, is no longer waited for, if that is so: a host that hangs would hold its
    /// readers until the network gives it up.
    fn gave_up(&self, look: &mut Option<Pin<Box<tokio::time::Sleep>>>, context: &mut Context<'_>) -> Option<GaveUp> {
        let Self::Replica { watch, node, .. } = self else { return None };
        while look.get_or_insert_with(|| Box::pin(tokio::time::sleep(LOOK_AGAIN))).as_mut().poll(context).is_ready() {
            *look = None;
            if let Some(gave_up) = watch.gave_up(*node) {
                return Some(gave_up);
            }
        }
        None
    }

    /// The server is done with the statement.
    fn ended(&mut self, error: Option<&DbErr>) {
        self.seen();
        if let Self::Write { session, watch, inner, write, opened } = std::mem::replace(self, Self::Ended) {
            match error.and_then(error::driver) {
                Some(error) if error::leaves_in_doubt(error) => doubt::settle_later(inner, session, write, opened),
                _ => session.acknowledged(&watch, write, opened),
            }
        }
    }
}

impl Stream for RoutedStream {
    type Item = Result<QueryResult, DbErr>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        this.polled = true;
        let item = match (this.first.take(), &mut this.rows) {
            (Some(first), _) => first,
            (None, Some(rows)) => {
                this.meter.iter_mut().for_each(StreamMeter::asked);
                let polled = match &this.span {
                    Some(span) => span.enter(|| Pin::new(rows).poll_next(context)),
                    None => Pin::new(rows).poll_next(context),
                };
                let item = match polled {
                    Poll::Ready(item) => item,
                    Poll::Pending => match this.source.gave_up(&mut this.look, context) {
                        Some(gave_up) => Some(Err(error::gave_up(gave_up))),
                        None => return Poll::Pending,
                    },
                };
                this.look = None;
                let failed = matches!(item, Some(Err(_)));
                this.meter.iter_mut().for_each(|meter| meter.answered(failed));
                item
            }
            (None, None) => None,
        };
        match &item {
            Some(Ok(_)) => this.source.first_row(),
            Some(Err(error)) => this.source.ended(Some(error)),
            None => {
                this.source.ended(None);
                this.rows = None;
            }
        }
        if let (Some(span), None | Some(Err(_))) = (&this.span, &item) {
            span.ended(item.as_ref().and_then(|item| item.as_ref().err()));
        }
        Poll::Ready(item)
    }
}

impl Drop for RoutedStream {
    fn drop(&mut self) {
        let Source::Write { session, write, .. } = &self.source else { return self.source.ended(None) };
        if !self.polled {
            // Nothing was sent, and nothing will be.
            session.with(|session| session.unsent(*write));
            self.source = Source::Ended;
            return;
        }
        session.with(|session| session.in_doubt(*write));
        let Some(mut rows) = self.rows.take() else { return };
        let mut source = std::mem::replace(&mut self.source, Source::Ended);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
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
}

impl std::fmt::Debug for RoutedStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RoutedStream")
    }
}
