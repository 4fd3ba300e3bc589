//! Rows that the caller reads one by one, on a connection that is kept for as long.

use std::{
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use diesel::{
    PgConnection, QueryResult,
    connection::LoadConnection,
    expression::QueryMetadata,
    pg::{Pg, PgRowByRowLoadingMode},
    query_builder::{AstPass, Query, QueryFragment, QueryId},
};
use read_router::{
    Destination, NodeId, PrimaryReason, Proof, Session, View, WriteId,
    live::{Busy, Call, Missed},
};

use super::{
    checked::Checked,
    context::{Attempt, Context, Routed},
    control, doubt,
    handle::{Handle, destination, judged},
};
use crate::{
    error::{Fault, lost},
    kinds::Looked,
    left::leaves_something,
};

/// What reads rows one by one, as the plain connection has it.
pub(super) type Cursor<'conn, 'query> = <PgConnection as LoadConnection<PgRowByRowLoadingMode>>::Cursor<'conn, 'query>;

/// A connection whose rows are read one by one.
pub(super) struct Rows {
    checked: Checked,
    end: End,
    /// Whether there were none, but an error. Known only once the connection cannot be reached any more.
    failed: Arc<AtomicBool>,
    keep: bool,
}

/// What their end means for the session.
enum End {
    Replica { node: NodeId, proof: Proof, _busy: Busy },
    Primary,
    Write(WriteId, Looked),
}

/// A query that may be run again: a cursor owns its query.
struct Again<T>(Rc<T>);

impl<T> Clone for Again<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: QueryFragment<Pg>> QueryFragment<Pg> for Again<T> {
    fn walk_ast<'b>(&'b self, pass: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        self.0.walk_ast(pass)
    }
}

impl<T: QueryId> QueryId for Again<T> {
    type QueryId = T::QueryId;

    const HAS_STATIC_QUERY_ID: bool = T::HAS_STATIC_QUERY_ID;
    const IS_WINDOW_FUNCTION: bool = T::IS_WINDOW_FUNCTION;
}

impl<T: Query> Query for Again<T> {
    type SqlType = T::SqlType;
}

impl Rows {
    fn new(checked: Checked, end: End, keep: bool) -> Self {
        Self { checked, end, failed: Arc::default(), keep }
    }

    fn load<'conn, 'query, T>(&'conn mut self, source: &Again<T>) -> QueryResult<Cursor<'conn, 'query>>
    where
        T: Query + QueryFragment<Pg> + QueryId + 'query,
        Pg: QueryMetadata<T::SqlType>,
    {
        let failed = self.failed.clone();
        let rows = LoadConnection::<PgRowByRowLoadingMode>::load(&mut *self.checked, source.clone());
        if rows.is_err() {
            failed.store(true, Ordering::Relaxed);
        }
        rows
    }

    /// The caller has read them, or will not. `is_last`: the handle goes away, and asks no server anything.
    /// Returns the connection if a transaction is open on it, and whether the handle keeps it after that.
    pub(super) fn settle(self, context: &mut Context, is_last: bool) -> Option<(Checked, bool)> {
        let Self { mut checked, end, failed, keep } = self;
        let mut is_open = false;
        let opened = checked.opened;
        let is_lost = checked.is_lost(None);
        if failed.load(Ordering::Relaxed) {
            // What it meant for the session was said at once.
            match is_lost || is_last {
                true => checked.spoil(),
                false => checked.forget_schema(),
            }
        } else {
            match end {
                End::Replica { node, proof, .. } => {
                    context.session.checked_in(context.watch(), node, &proof);
                    if is_lost {
                        context.watch().read_failed(node);
                    }
                }
                End::Primary => {
                    context.contact(opened);
                    context.session.with(Session::taken_back);
                }
                End::Write(write, looked) if is_lost => {
                    context.watch().was_run(&looked.sql);
                    doubt::settle_later(context.inner().this.clone(), context.session.clone(), write, opened);
                }
                End::Write(write, looked) => {
                    context.session.acknowledged(context.watch(), write, opened);
                    context.watch().was_run(&looked.sql);
                    if control::changes_schema(looked.kind, &looked.sql) {
                        checked.schema_changed();
                    }
                    is_open = control::may_open(&looked.sql);
                }
            }
        }
        if is_open && is_last {
            checked.spoil();
        } else if is_open && checked.has_open_transaction(&context.wishes) {
            return Some((checked, keep));
        }
        context.give_back(checked, keep && !is_lost);
        None
    }
}

impl Handle {
    /// Runs a query where it belongs and lets the caller read its rows one by one.
    ///
    /// An attempt's connection cannot be had back before the rows are done, so each attempt has a place of its own.
    pub(super) fn rows<'conn, 'query, T>(&'conn mut self, view: View, source: T) -> QueryResult<Cursor<'conn, 'query>>
    where
        T: Query + QueryFragment<Pg> + QueryId + 'query,
        Pg: QueryMetadata<T::SqlType>,
    {
        self.settle();
        let looked = self.look(&source)?;
        if self.transaction.is_open() {
            let connection = self.transaction.reading(&self.context, Some(&looked))?;
            return LoadConnection::<PgRowByRowLoadingMode>::load(connection, source);
        }
        let source = Again(Rc::new(source));
        let view = looked.class.map_or(view, View::Read);
        let Self { context, rows, .. } = self;
        let mut places = rows.iter_mut();
        let destination = destination(context, view, &looked)?;
        let (mut call, mut found, mut suspect) = (None, None, None);
        let reason = match destination {
            Destination::Write(reason) => {
                let place = places.next().ok_or_else(lost)?;
                return write(context, view, &looked, reason, place, &source);
            }
            Destination::Primary(reason) => reason,
            Destination::Read(options) => {
                let call = call.insert(Call::new(options));
                let routed = context.route(call, &looked, |context, call, node, proof, busy| {
                    // A place is used by what is run, at most twice on replicas and twice on the primary.
                    let checked = match context.acquire_proven(call, node, proof) {
                        Ok(checked) => checked,
                        Err(missed) => return missed,
                    };
                    let Some(place) = places.next() else { return Attempt::Missed(Missed::Untracked, None) };
                    let end = End::Replica { node, proof: *proof, _busy: busy };
                    match on_replica(context, call, checked, end, proof, place, &source) {
                        Ok(rows) => {
                            found = Some(rows);
                            Attempt::Served
                        }
                        Err(missed) => missed,
                    }
                })?;
                match routed {
                    Routed::Served => return found.ok_or_else(lost),
                    Routed::Primary(reason) => reason,
                    Routed::Write(reason) => {
                        let place = places.next().ok_or_else(lost)?;
                        return write(context, view, &looked, reason, place, &source);
                    }
                    Routed::Judge(node) => {
                        suspect = Some(node);
                        PrimaryReason::ReplicaFailed
                    }
                }
            }
        };
        let call = call.as_ref();
        let (mut failure, mut told) = (None, None);
        for place in places {
            let again = failure.is_some();
            let keep = context.home.is_some();
            let (mut checked, reason) = context.acquire_primary(None, call, reason)?;
            if told.replace(reason) != Some(reason) {
                context.to_primary(view.class(), reason, call);
            }
            if failure == Some(Fault::Unclear) {
                checked.forget_schema();
            }
            let (opened, is_new) = (checked.opened, checked.is_new());
            match place.insert(Rows::new(checked, End::Primary, keep)).load(&source) {
                Ok(rows) => {
                    context.session.with(Session::given_out);
                    if let Some((node, call)) = suspect.zip(call) {
                        judged(context, call, node, &looked);
                    }
                    return Ok(rows);
                }
                Err(error) => {
                    context.contact(opened);
                    let fault = Fault::of(&error);
                    let may_help = fault == Fault::Gone || fault == Fault::Unclear && !is_new;
                    if again || keep || !may_help {
                        return Err(error);
                    }
                    failure = Some(fault);
                }
            }
        }
        Err(lost())
    }
}

fn on_replica<'conn, 'query, T>(
    context: &Context,
    call: &Call,
    mut checked: Checked,
    end: End,
    proof: &Proof,
    place: &'conn mut Option<Rows>,
    source: &Again<T>,
) -> Result<Cursor<'conn, 'query>, Attempt>
where
    T: Query + QueryFragment<Pg> + QueryId + 'query,
    Pg: QueryMetadata<T::SqlType>,
{
    let node = checked.node;
    // Of its rows the caller decides how long they take, but their first must come in time.
    if let Err(error) = checked.limit(call.limit(context.watch())) {
        checked.discard();
        return Err(context.elsewhere(call, node, "no answer", error));
    }
    let started = checked.taken;
    let rows = place.insert(Rows::new(checked, end, false)).load(source);
    match rows {
        Ok(rows) => {
            let served = call.served(context.watch(), node);
            context.session.checked_out(context.watch(), node, proof, served);
            Ok(rows)
        }
        Err(error) => {
            let is_lost = Fault::of(&error) == Fault::Gone;
            Err(context.judge(call, node, is_lost, started, error))
        }
    }
}

/// Of a write the outcome is open until its rows have been read.
fn write<'conn, 'query, T>(
    context: &mut Context,
    view: View,
    looked: &Looked,
    reason: PrimaryReason,
    place: &'conn mut Option<Rows>,
    source: &Again<T>,
) -> QueryResult<Cursor<'conn, 'query>>
where
    T: Query + QueryFragment<Pg> + QueryId + 'query,
    Pg: QueryMetadata<T::SqlType>,
{
    let keep = context.home.is_some() || leaves_something(looked.kind, &looked.sql);
    let checked = context.take_primary()?;
    context.to_primary(view.class(), reason, None);
    let write = context.session.with(Session::write_sent);
    let opened = checked.opened;
    match place.insert(Rows::new(checked, End::Write(write, looked.clone()), keep)).load(source) {
        Ok(rows) => {
            context.session.with(|session| session.in_doubt(write));
            Ok(rows)
        }
        Err(error) => {
            context.watch().was_run(&looked.sql);
            if Fault::of(&error) == Fault::Gone {
                doubt::settle_later(context.inner().this.clone(), context.session.clone(), write, opened);
            } else {
                context.session.acknowledged(context.watch(), write, opened);
            }
            Err(error)
        }
    }
}
