//! What a connection does with a statement.

use std::any::Any;

use diesel::{
    Connection, PgConnection, QueryResult,
    connection::{
        AnsiTransactionManager, CacheSize, Instrumentation, SimpleConnection, TransactionManager,
        TransactionManagerStatus,
    },
    pg::{GetPgMetadataCache, Pg, PgMetadataCache, PgMetadataLookup, PgTypeMetadata},
    query_builder::{QueryFragment, QueryId, bind_collector::RawBytesBindCollector},
};
use read_router::{
    Destination, NodeId, NotRead, PrimaryReason, Session, StatementKind, View,
    live::{Call, SharedSession},
};

use super::{
    checked::Checked,
    context::{Context, Routed},
    control::{self, Control},
    doubt,
    rows::Rows,
    transaction::Transaction,
};
use crate::{
    error::{Fault, Refusal, may_be_stale},
    instrument::{Forwarder, Listener},
    kinds::Looked,
    left::{Left, leaves_something},
};

/// A session's connections: those of the pools, and those that it holds now.
pub(super) struct Handle {
    pub(super) context: Context,
    pub(super) transaction: Transaction,
    /// The primary's connection that was given to the caller.
    given: Option<Checked>,
    /// Connections whose rows the caller reads one by one, and those on which that failed first.
    pub(super) rows: [Option<Rows>; 4],
    teller: Forwarder,
    metadata: PgMetadataCache,
}

/// A statement on its way. `run` may be called again where it has done nothing.
pub(super) type Run<'a> = &'a mut dyn FnMut(&mut PgConnection) -> QueryResult<()>;

impl Handle {
    pub(super) fn new(context: Context) -> Self {
        let teller = teller(context.wishes.listener.as_ref());
        Self {
            context,
            transaction: Transaction::none(),
            given: None,
            rows: [None, None, None, None],
            teller,
            metadata: PgMetadataCache::new(),
        }
    }

    pub(super) fn session(&self) -> &SharedSession {
        &self.context.session
    }

    /// Settles what the caller was given before, since it has come back.
    pub(super) fn settle(&mut self) {
        self.take_back(false);
    }

    /// Settles it; `is_last`: the handle goes away, and asks no server anything.
    fn take_back(&mut self, is_last: bool) {
        for rows in self.rows.iter_mut().filter_map(Option::take) {
            if let Some((checked, keep)) = rows.settle(&mut self.context, is_last) {
                self.transaction.adopt(checked, keep);
            }
        }
        self.transaction.settle(&self.context);
        if let Some(mut given) = self.given.take() {
            let opened = given.opened;
            let returned = given.end_loan(&self.context.wishes, is_last);
            returned.tell(self.context.watch());
            if given.depth().is_err() {
                let write = self.context.session.with(Session::write_sent);
                self.doubt(write, opened);
            } else if returned.is_open {
                // It was begun there and goes on here.
                self.transaction.adopt(given, true);
            } else if given.is_spoiled() || returned.left != Left::Nothing {
                self.context.give_back(given, true);
            }
            self.context.contact(opened);
            self.context.session.with(Session::taken_back);
        }
    }

    fn doubt(&self, write: read_router::WriteId, opened: Option<read_router::Opened>) {
        doubt::settle_later(self.context.inner().this.clone(), self.session().clone(), write, opened);
    }

    /// Runs a query where it belongs, and returns what `run` left.
    pub(super) fn query<Q, R>(
        &mut self,
        view: View,
        query: &Q,
        mut run: impl FnMut(&mut PgConnection, &Q) -> QueryResult<R>,
    ) -> QueryResult<R>
    where
        Q: QueryFragment<Pg> + QueryId,
    {
        self.settle();
        let looked = self.look(query)?;
        let mut out = None;
        let mut run = |connection: &mut PgConnection| {
            out = Some(run(connection, query)?);
            Ok(())
        };
        let is_open = self.transaction.is_open();
        if let Err(error) = self.statement(view, &looked, &mut run) {
            // A type may have been made anew by somebody else. With the old one's number a statement of data does nothing,
            // and with the right one nothing that lasts before it fails.
            let is_harmless = !is_open && !looked.kind.is_read() && control::is_data(&looked.sql);
            if !is_harmless || !may_be_stale(&error) || !names_types(query) {
                return Err(error);
            }
            self.statement(view, &looked, &mut run)?;
        }
        out.ok_or(diesel::result::Error::NotFound)
    }

    pub(super) fn look<Q: QueryFragment<Pg> + QueryId>(&self, query: &Q) -> QueryResult<Looked> {
        let inner = self.context.inner();
        inner.queries.look(&inner.watch.kinds, query)
    }

    /// Runs a text that may have several statements.
    pub(super) fn batch(&mut self, view: View, sql: &str) -> QueryResult<()> {
        self.settle();
        let looked = Looked::text(sql, &self.context.watch().kinds);
        self.statement(view, &looked, &mut |connection| connection.batch_execute(sql))
    }

    /// Runs something on the primary whose statements are not seen, but which is one write.
    pub(super) fn unseen<R, E: From<diesel::result::Error>>(
        &mut self,
        view: View,
        work: impl FnOnce(&mut PgConnection) -> Result<R, E>,
    ) -> Result<R, E> {
        self.settle();
        let (mut work, mut out) = (Some(work), None);
        let ran = self.statement(view, &Looked::unseen(), &mut |connection| {
            let Some(work) = work.take() else { return Ok(()) };
            out = Some(work(connection));
            match &out {
                // Whether the link broke the error may not say.
                Some(Err(_)) => check(connection),
                _ => Ok(()),
            }
        });
        match (out, ran) {
            (Some(out), _) => out,
            (None, Err(error)) => Err(error.into()),
            (None, Ok(())) => Err(diesel::result::Error::NotFound.into()),
        }
    }

    /// The primary's own connection, for as long as the caller holds it.
    pub(super) fn primary(&mut self, view: View) -> QueryResult<&mut PgConnection> {
        self.settle();
        if self.transaction.is_open() {
            return self.transaction.on_primary(&self.context);
        }
        let mut checked = self.context.take_primary()?;
        checked.lend(&self.context.wishes, &self.context.inner().watch);
        self.context.to_primary(view.class(), PrimaryReason::GivenOut, None);
        self.context.session.with(Session::given_out);
        Ok(self.given.insert(checked))
    }

    /// The connection that this handle keeps, or that runs its transaction.
    pub(super) fn kept(&mut self) -> Option<&mut PgConnection> {
        self.settle();
        self.transaction.connection().or(self.context.home.as_deref_mut())
    }

    pub(super) fn statement(&mut self, view: View, looked: &Looked, run: Run<'_>) -> QueryResult<()> {
        let control = if looked.kind.is_read() { Control::None } else { Control::of(&looked.sql) };
        if self.transaction.is_open() {
            return self.transaction.run(&mut self.context, looked, control, run);
        }
        if control == Control::Begin {
            return self.transaction.begin(&mut self.context, view, looked, run);
        }
        let view = looked.class.map_or(view, View::Read);
        let context = &mut self.context;
        match destination(context, view, looked)? {
            Destination::Write(reason) => self.write(view, looked, reason, run),
            Destination::Primary(reason) => context.read_on_primary(view.class(), None, reason, run),
            Destination::Read(options) => {
                let mut call = Call::new(options);
                let class = Some(options.class());
                let routed = context.route(&mut call, looked, |context, call, node, proof, _busy| {
                    context.read_on_replica(call, node, proof, run)
                })?;
                match routed {
                    Routed::Served => Ok(()),
                    Routed::Primary(reason) => context.read_on_primary(class, Some(&call), reason, run),
                    Routed::Write(reason) => self.write(View::Read(options), looked, reason, run),
                    Routed::Judge(node) => {
                        context.read_on_primary(class, Some(&call), PrimaryReason::ReplicaFailed, run)?;
                        judged(context, &call, node, looked);
                        Ok(())
                    }
                }
            }
        }
    }

    /// Runs on the primary what may write.
    fn write(&mut self, view: View, looked: &Looked, reason: PrimaryReason, run: Run<'_>) -> QueryResult<()> {
        let context = &mut self.context;
        let is_home = context.home.is_some();
        let mut checked = context.take_primary()?;
        context.to_primary(view.class(), reason, None);
        let write = context.session.with(Session::write_sent);
        let mut out = run(&mut checked);
        let is_stale = !checked.is_new() && out.as_ref().is_err_and(may_be_stale);
        // A read that only waits for the catalogue may be run again, as other reads are.
        if is_stale && looked.kind == StatementKind::Primary(NotRead::Outdated) && !is_home {
            checked.forget_schema();
            out = run(&mut checked);
        }
        context.watch().was_run(&looked.sql);
        if control::changes_schema(looked.kind, &looked.sql) {
            checked.schema_changed();
        }
        if checked.is_lost(out.as_ref().err()) {
            let opened = checked.opened;
            checked.discard();
            self.doubt(write, opened);
            return out;
        }
        context.session.acknowledged(context.watch(), write, checked.opened);
        if is_stale {
            checked.outdate();
        }
        // What a text has committed, and a lock, stays also where the text fails in the end.
        let keep = is_home || leaves_something(looked.kind, &looked.sql);
        if control::may_open(&looked.sql) && checked.has_open_transaction(&context.wishes) {
            self.transaction.adopt(checked, keep);
        } else {
            context.give_back(checked, keep);
        }
        out
    }

    pub(super) fn transaction_state(&mut self) -> &mut AnsiTransactionManager {
        if let Some(given) = &mut self.given {
            return given.transaction_state();
        }
        self.transaction.state()
    }

    pub(super) fn instrumentation(&mut self) -> &mut dyn Instrumentation {
        &mut self.teller
    }

    pub(super) fn listen(&mut self, listener: Option<Listener>) {
        self.settle();
        self.teller = teller(listener.as_ref());
        (self.context.wishes.listener, self.context.wishes.is_explicit) = (listener, true);
        let Context { wishes, home, .. } = &mut self.context;
        for checked in home.iter_mut().chain(self.transaction.checked()) {
            if let Some(listener) = &wishes.listener {
                checked.listen(listener);
            }
        }
    }

    pub(super) fn set_cache_size(&mut self, size: CacheSize) {
        self.settle();
        self.context.wishes.cache = size;
        for checked in self.context.home.iter_mut().chain(self.transaction.checked()) {
            checked.set_cache(size);
        }
    }

    pub(super) fn metadata(&mut self) -> &mut PgMetadataCache {
        // Nobody tells when a type is made anew.
        self.metadata = PgMetadataCache::new();
        match self.transaction.connection() {
            Some(connection) => connection.get_metadata_cache(),
            None => &mut self.metadata,
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.take_back(true);
        self.transaction.abandon(&self.context);
    }
}

/// Where a statement belongs.
pub(super) fn destination(context: &Context, view: View, looked: &Looked) -> QueryResult<Destination> {
    if view == View::Unannotated && looked.kind.is_read() {
        context.watch().count_unannotated(&looked.sql);
    }
    let destination = view.destination(looked.kind, context.inner().unannotated);
    destination.ok_or_else(|| Refusal::Unannotated.into())
}

/// The primary has served what a replica could not: the replica was at fault, and may be the next time.
pub(super) fn judged(context: &Context, call: &Call, node: NodeId, looked: &Looked) {
    call.misrouted(context.watch(), node, &looked.sql, context.inner().misrouted, false);
}

/// Whether a bind has a type whose number differs from one creation to the next.
fn names_types<Q: QueryFragment<Pg>>(query: &Q) -> bool {
    struct Seen(bool);
    impl PgMetadataLookup for Seen {
        fn lookup_type(&mut self, _: &str, _: Option<&str>) -> PgTypeMetadata {
            self.0 = true;
            PgTypeMetadata::new(0, 0)
        }

        fn as_any<'a>(&mut self) -> &mut (dyn Any + 'a)
        where
            Self: 'a,
        {
            self
        }
    }
    let mut seen = Seen(false);
    query.collect_binds(&mut RawBytesBindCollector::new(), &mut seen, &Pg).is_ok() && seen.0
}

fn teller(listener: Option<&Listener>) -> Forwarder {
    listener.map_or_else(Forwarder::default, |listener| listener.on(None))
}

/// Whether the connection is still there, for those who have an error that does not say.
fn check(connection: &mut PgConnection) -> QueryResult<()> {
    let status = AnsiTransactionManager::transaction_manager_status_mut(connection);
    let is_idle = matches!(status, TransactionManagerStatus::Valid(status) if status.transaction_depth().is_none());
    match is_idle.then(|| connection.batch_execute("SELECT 1")) {
        Some(Err(error)) if Fault::of(&error) == Fault::Gone => Err(error),
        _ => Ok(()),
    }
}
