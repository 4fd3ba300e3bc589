//! What the borrower of a connection has done with it.

use std::sync::Arc;

use diesel::connection::InstrumentationEvent;
use read_router::{
    StatementKind,
    live::{SchemaChanges, Watch},
};

use crate::{
    control::{changes_schema, leaves_open},
    left::Left,
};

/// What the texts say of them that have run on a connection since it was lent: Diesel tells its instrumentation of each
/// before it is sent.
pub(crate) struct Traces {
    watch: Arc<Watch>,
    changes: SchemaChanges,
    /// Whether any may have changed the schema.
    pub(crate) changed_schema: bool,
    /// Whether a transaction may be open, of which Diesel need not know.
    pub(crate) may_be_open: bool,
    pub(crate) left: Left,
    /// Whether a read has run that no catalogue was there to judge: it may have called anything, through a view too.
    #[cfg(feature = "sync")]
    pub(crate) has_unjudged: bool,
}

impl Traces {
    pub(crate) fn new(watch: Arc<Watch>) -> Self {
        let changes = SchemaChanges::default();
        Self {
            watch,
            changes,
            changed_schema: false,
            may_be_open: false,
            left: Left::Nothing,
            #[cfg(feature = "sync")]
            has_unjudged: false,
        }
    }

    /// Something happens on the connection.
    pub(crate) fn see(&mut self, event: &InstrumentationEvent<'_>) {
        match event {
            InstrumentationEvent::StartQuery { query, .. } => self.see_text(&query.to_string()),
            // Within a transaction nobody else sees it yet.
            InstrumentationEvent::FinishQuery { .. } if !self.may_be_open => self.changes.committed(&self.watch),
            _ => {}
        }
    }

    fn see_text(&mut self, sql: &str) {
        // With its binds a text is another one each time: it would take the place of those that are remembered.
        let known = self.watch.kinds.known();
        let kind = StatementKind::known(sql, &known);
        if kind.is_read() {
            #[cfg(feature = "sync")]
            {
                self.has_unjudged |= known.catalogue().is_none();
            }
            return;
        }
        self.left = self.left.max(Left::by(kind, sql));
        self.changed_schema |= changes_schema(kind, sql);
        self.changes.note(sql);
        self.may_be_open = leaves_open(sql, self.may_be_open);
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // What it had open may have been committed.
        self.changes.committed(&self.watch);
    }
}
