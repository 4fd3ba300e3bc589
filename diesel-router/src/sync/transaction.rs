//! Transactions, whole on one connection.

use std::num::NonZeroU32;

use diesel::{
    Connection, PgConnection, QueryResult,
    connection::{AnsiTransactionManager, SimpleConnection, TransactionDepthChange, TransactionManagerStatus},
    result::Error,
};
use read_router::{
    NodeId, PrimaryReason, Proof, Served, Session, View,
    live::{Busy, Call, Missed, SchemaChanges},
};

use super::{
    checked::Checked,
    context::{Attempt, Context, Routed},
    control::{self, Control},
    doubt,
    handle::Run,
};
use crate::{
    error::{Refusal, lost, may_be_stale},
    kinds::Looked,
    left::{Left, leaves_something},
};

/// The transaction of a handle, if one is open.
///
/// Diesel's transaction manager sends texts and keeps its books in the connection's state. The state of an open
/// transaction is that of the connection that runs it, which follows what libpq says.
pub(super) struct Transaction {
    state: State,
}

enum State {
    /// None is open.
    None(AnsiTransactionManager),
    Open(Box<Open>),
    /// The connection broke under it, and its server has rolled it back. Until the caller does too, statements fail.
    Lost(Lost),
}

struct Lost {
    state: AnsiTransactionManager,
    /// It was begun by a text of the caller's, so that Diesel keeps no books of it.
    is_raw: bool,
}

struct Open {
    checked: Checked,
    place: Place,
    /// How deep it was when the caller was given its rows; `None` if nobody was.
    reading: Option<u32>,
    changed_schema: bool,
    /// What of it concerns the kinds of statements.
    changes: SchemaChanges,
    /// Whether the handle keeps the connection after it.
    keep: bool,
}

/// The server that runs it.
enum Place {
    Primary,
    Replica { node: NodeId, proof: Proof, served: Served, _busy: Busy },
}

/// How a statement left it.
enum After {
    Open,
    Over,
    Lost(Lost),
}

impl Transaction {
    pub(super) fn none() -> Self {
        Self { state: State::None(AnsiTransactionManager::default()) }
    }

    pub(super) fn is_open(&self) -> bool {
        !matches!(self.state, State::None(_))
    }

    /// Diesel's books.
    pub(super) fn state(&mut self) -> &mut AnsiTransactionManager {
        match &mut self.state {
            State::None(state) => state,
            State::Lost(books) => &mut books.state,
            State::Open(open) => open.checked.transaction_state(),
        }
    }

    pub(super) fn checked(&mut self) -> Option<&mut Checked> {
        match &mut self.state {
            State::Open(open) => Some(&mut open.checked),
            State::None(_) | State::Lost(_) => None,
        }
    }

    pub(super) fn connection(&mut self) -> Option<&mut PgConnection> {
        self.checked().map(|checked| &mut **checked)
    }

    /// A transaction that is open on this connection of the primary already.
    pub(super) fn adopt(&mut self, checked: Checked, keep: bool) {
        self.state = State::Open(Box::new(Open::new(checked, Place::Primary, keep)));
    }

    /// The transaction's connection for the caller, if it is the primary's.
    pub(super) fn on_primary(&mut self, context: &Context) -> QueryResult<&mut PgConnection> {
        match &self.state {
            State::Open(open) if matches!(open.place, Place::Primary) => self.reading(context, None),
            State::Open(_) => Err(Refusal::OnReplica.into()),
            State::None(_) | State::Lost(_) => Err(lost()),
        }
    }

    /// The transaction's connection for the caller, until the next [`settle`](Self::settle), to run this, or whatever it
    /// likes.
    pub(super) fn reading(&mut self, context: &Context, what: Option<&Looked>) -> QueryResult<&mut PgConnection> {
        match &mut self.state {
            State::Open(open) => {
                match what {
                    Some(looked) => {
                        open.changes.note(&looked.sql);
                        open.keep |= leaves_something(looked.kind, &looked.sql);
                    }
                    None => {
                        open.changes.unseen();
                        open.checked.lend(&context.wishes, &context.inner().watch);
                    }
                }
                open.touched(context);
                open.reading = Some(open.depth());
                Ok(&mut open.checked)
            }
            State::None(_) | State::Lost(_) => Err(lost()),
        }
    }

    /// The caller has done with what it was given.
    pub(super) fn settle(&mut self, context: &Context) {
        let State::Open(open) = &mut self.state else { return };
        let Some(depth) = open.reading.take() else { return };
        open.touched(context);
        if let Some(seen) = open.checked.end_looking(&context.wishes) {
            open.changed_schema |= seen.changed_schema != Some(false);
            open.keep |= seen.left == Left::Something;
        }
        if open.checked.depth().is_err() {
            self.state = State::Lost(open.lost(depth));
        }
    }

    /// The handle goes away: whatever is open is rolled back.
    pub(super) fn abandon(&mut self, context: &Context) {
        if let State::Open(open) = &mut self.state {
            open.touched(context);
            // Its connection is closed, without a wait for the server.
            open.checked.spoil();
        }
    }

    /// Begins one where it belongs: on the primary, or, READ ONLY and with a class, on one replica that is proven now.
    pub(super) fn begin(
        &mut self,
        context: &mut Context,
        view: View,
        looked: &Looked,
        run: Run<'_>,
    ) -> QueryResult<()> {
        let (is_read_only, is_serializable) = control::begins_read_only(&looked.sql);
        let View::Read(options) = view else {
            return self.begin_on_primary(context, view, None, PrimaryReason::Transaction, looked, run);
        };
        // A text that goes on behind its BEGIN may end what it began, and go on with a write.
        if !is_read_only || control::is_several(&looked.sql) {
            return self.begin_on_primary(context, view, None, PrimaryReason::Transaction, looked, run);
        }
        let mut call = Call::new(options);
        let routed = if !is_serializable {
            context.route(&mut call, looked, |context, call, node, proof, busy| {
                match begin_on_replica(context, call, node, proof, busy, run) {
                    Ok(open) => {
                        self.state = State::Open(Box::new(open));
                        Attempt::Served
                    }
                    Err(missed) => missed,
                }
            })?
        } else if call.may_fall_back() {
            Routed::Primary(PrimaryReason::Isolation)
        } else {
            return Err(context.refuse(&call, PrimaryReason::Isolation));
        };
        match routed {
            Routed::Served => Ok(()),
            Routed::Primary(reason) | Routed::Write(reason) => {
                self.begin_on_primary(context, view, Some(&call), reason, looked, run)
            }
            Routed::Judge(_) => {
                self.begin_on_primary(context, view, Some(&call), PrimaryReason::ReplicaFailed, looked, run)
            }
        }
    }

    fn begin_on_primary(
        &mut self,
        context: &mut Context,
        view: View,
        call: Option<&Call>,
        reason: PrimaryReason,
        looked: &Looked,
        run: Run<'_>,
    ) -> QueryResult<()> {
        let (mut again, mut told) = (true, None);
        loop {
            let is_home = context.home.is_some();
            let (mut checked, reason) = context.acquire_primary(None, call, reason)?;
            if told.replace(reason) != Some(reason) {
                context.to_primary(view.class(), reason, call);
            }
            // A text that goes on behind its BEGIN may write, and may end what it began.
            let is_several = control::is_several(&looked.sql);
            let write = is_several.then(|| context.session.with(Session::write_sent));
            let out = run(&mut checked);
            if checked.is_lost(out.as_ref().err()) {
                let opened = checked.opened;
                checked.discard();
                if let Some(write) = write {
                    doubt::settle_later(context.inner().this.clone(), context.session.clone(), write, opened);
                    return out;
                }
                // The connection was idle while its server went away, and nothing was begun.
                if std::mem::take(&mut again) && !is_home {
                    continue;
                }
                return out;
            }
            if let Some(write) = write {
                context.session.acknowledged(context.watch(), write, checked.opened);
                context.watch().was_run(&looked.sql);
                checked.schema_changed();
            }
            let is_open = match is_several {
                true => checked.has_open_transaction(&context.wishes),
                false => out.is_ok(),
            };
            let keep = is_home || is_several && leaves_something(looked.kind, &looked.sql);
            if is_open {
                self.adopt(checked, keep);
            } else {
                context.give_back(checked, keep);
            }
            return out;
        }
    }

    /// Runs a statement of the transaction.
    pub(super) fn run(
        &mut self,
        context: &mut Context,
        looked: &Looked,
        control: Control,
        run: Run<'_>,
    ) -> QueryResult<()> {
        let open = match &mut self.state {
            State::Open(open) => open,
            State::Lost(books) => {
                if control == Control::Rollback || control == Control::Commit && books.is_raw {
                    self.state = State::None(AnsiTransactionManager::default());
                }
                return if control == Control::Rollback { Ok(()) } else { Err(lost()) };
            }
            State::None(_) => return Err(Error::NotInTransaction),
        };
        let (out, after) = open.run(context, looked, control, run);
        let next = match after {
            After::Open => return out,
            After::Over => State::None(AnsiTransactionManager::default()),
            After::Lost(books) => State::Lost(books),
        };
        let is_over = matches!(next, State::None(_));
        if let State::Open(open) = std::mem::replace(&mut self.state, next)
            && is_over
        {
            let Open { checked, place, changed_schema, keep, .. } = *open;
            if changed_schema {
                checked.schema_changed();
            }
            match place {
                Place::Primary => context.give_back(checked, keep),
                // No handle keeps a replica's connection.
                Place::Replica { .. } if keep => checked.discard(),
                Place::Replica { .. } => {}
            }
        }
        out
    }
}

/// The proof must be the monitor's, and the connection older than it: a sample inside of the transaction would take the
/// snapshot first.
fn begin_on_replica(
    context: &mut Context,
    call: &Call,
    node: NodeId,
    proof: &Proof,
    busy: Busy,
    run: Run<'_>,
) -> Result<Open, Attempt> {
    let unproven = || Attempt::Missed(Missed::Unproven, None);
    let server = context.inner().nodes.get(node.index()).ok_or_else(unproven)?;
    let acquired = server.acquire(&context.wishes);
    let mut checked = acquired.map_err(|error| context.elsewhere(call, node, "no connection", error))?;
    if !call.trusts(checked.opened, proof) || !call.is_still_fresh(proof) {
        return Err(unproven());
    }
    let started = checked.taken;
    // The time limit of single reads is not that of a transaction, nor of what follows it on this connection.
    let limit = checked.own_limit();
    let wishes = context.wishes.clone();
    let begun = run(&mut checked).and_then(|()| {
        if checked.has_limit() {
            let text = format!("SET LOCAL statement_timeout = {limit}");
            checked.quietly(&wishes, |connection| connection.batch_execute(&text))?;
        }
        Ok(())
    });
    if let Err(error) = begun {
        let is_lost = checked.is_lost(Some(&error));
        checked.discard();
        return Err(context.judge(call, node, is_lost, started, error));
    }
    let served = call.served(context.watch(), node);
    context.session.served(served);
    Ok(Open::new(checked, Place::Replica { node, proof: *proof, served, _busy: busy }, false))
}

impl Open {
    fn new(checked: Checked, place: Place, keep: bool) -> Self {
        Self { checked, place, reading: None, changed_schema: false, changes: SchemaChanges::default(), keep }
    }

    /// A statement is done; it may have shown any commit.
    fn touched(&self, context: &Context) {
        match &self.place {
            Place::Primary => context.contact(self.checked.opened),
            Place::Replica { node, proof, served, .. } => {
                context.session.read_done(context.watch(), *node, proof, *served);
            }
        }
    }

    /// How deep it is as Diesel counts; zero where it was begun by a text of the caller's.
    fn depth(&mut self) -> u32 {
        self.checked.depth().ok().flatten().map_or(0, NonZeroU32::get)
    }

    /// The books of the transaction, when it was so deep and its connection is lost: it can only be rolled back, as one
    /// that has failed.
    fn lost(&mut self, depth: u32) -> Lost {
        let status = self.checked.status();
        *status = TransactionManagerStatus::default();
        if let TransactionManagerStatus::Valid(valid) = status {
            for _ in 0..depth {
                // A depth can always be raised.
                let _ = valid.change_transaction_depth(TransactionDepthChange::IncreaseDepth);
            }
        }
        status.set_requires_rollback_maybe_up_to_top_level(true);
        let state = std::mem::take(self.checked.transaction_state());
        self.checked.spoil();
        Lost { state, is_raw: depth == 0 }
    }

    fn run(
        &mut self,
        context: &mut Context,
        looked: &Looked,
        control: Control,
        run: Run<'_>,
    ) -> (QueryResult<()>, After) {
        let before = self.depth();
        // A text of several statements may have a COMMIT among them.
        let may_commit = control == Control::Commit || control::is_several(&looked.sql);
        let writes = may_commit && matches!(self.place, Place::Primary);
        let write = writes.then(|| context.session.with(Session::write_sent));
        let out = run(&mut self.checked);
        let is_lost = self.checked.is_lost(out.as_ref().err());
        self.changes.note(&looked.sql);
        if may_commit {
            self.changes.committed(context.watch());
        }
        match write {
            Some(write) if is_lost => {
                let opened = self.checked.opened;
                doubt::settle_later(context.inner().this.clone(), context.session.clone(), write, opened);
            }
            Some(write) => context.session.acknowledged(context.watch(), write, self.checked.opened),
            None => self.touched(context),
        }
        if is_lost {
            self.checked.spoil();
            if let Place::Replica { node, .. } = &self.place {
                context.watch().read_failed(*node);
            }
            let is_over = matches!(control, Control::Commit | Control::Rollback);
            return (out, if is_over { After::Over } else { After::Lost(self.lost(before)) });
        }
        if out.as_ref().is_err_and(may_be_stale) {
            // The transaction has failed, but the next one finds what somebody else has changed.
            self.checked.outdate();
        }
        self.changed_schema |= control::changes_schema(looked.kind, &looked.sql);
        self.keep |= leaves_something(looked.kind, &looked.sql);
        let is_over = match before {
            // Begun by a text, so that Diesel keeps no books of it.
            0 => {
                let may_end = control != Control::None || control::is_several(&looked.sql);
                may_end && !self.checked.has_open_transaction(&context.wishes)
            }
            // Diesel follows what libpq says.
            _ => self.depth() == 0,
        };
        (out, if is_over { After::Over } else { After::Open })
    }
}
