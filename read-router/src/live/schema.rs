//! When the catalogue is read, and what its reading brings.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    time::Duration,
};

use event_listener::Event;

use super::{Watch, now, watch::Change};
use crate::{Catalogue, SchemaChange, Time, UnexpectedAnswer, events};

/// How long a reading of the catalogue may take.
pub const CATALOGUE_LIMIT: Duration = Duration::from_secs(10);
/// From a failed reading to the next.
const RETRY: Duration = Duration::from_secs(1);

/// What is asked for and what there is.
#[derive(Debug, Default)]
pub(super) struct Schema {
    state: Mutex<State>,
    due: Event,
}

#[derive(Debug, Default)]
struct State {
    /// Changes that were seen.
    changes: u64,
    /// Those of them that the last reading has in it, and when it came.
    read: Option<(u64, Time)>,
    failed_at: Option<Time>,
}

/// A reading under way: it shows all changes that were seen before it began.
#[derive(Debug)]
#[must_use = "it is to be handed in with the rows"]
pub struct CatalogueReading {
    changes: u64,
}

impl Schema {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// When the catalogue is to be read: at once if the time is zero, else when it is over or the change comes. It is to be
    /// read from the primary, by [`Catalogue::QUERY`], within [`CATALOGUE_LIMIT`].
    pub fn catalogue_due(&self) -> (Duration, Change) {
        let change = Change::new(self.schema.due.listen());
        let state = self.schema.state();
        let wait = match (state.read, state.failed_at) {
            (_, Some(failed)) => RETRY.saturating_sub(now().since(failed)),
            (Some((seen, at)), None) if seen == state.changes => {
                self.config.catalogue_interval.saturating_sub(now().since(at))
            }
            _ => Duration::ZERO,
        };
        (wait, change)
    }

    /// A reading of the catalogue is about to be sent.
    pub fn catalogue_asked(&self) -> CatalogueReading {
        CatalogueReading { changes: self.schema.state().changes }
    }

    /// The rows came: from here on statements are judged by them.
    ///
    /// # Errors
    /// If they are not those of the query; all stays as it was.
    pub fn catalogue_read<'a>(
        &self,
        reading: CatalogueReading,
        rows: impl IntoIterator<Item = [Option<&'a str>; 7]>,
    ) -> Result<(), UnexpectedAnswer> {
        let known = self.kinds.known();
        let catalogue = Catalogue::read(rows, known.pins())?;
        let mut state = self.schema.state();
        state.failed_at = None;
        state.read = Some((reading.changes, now()));
        // What changed while it was read is not in it: it stays suspended, and is read again.
        let is_behind = reading.changes != state.changes && known.is_suspended();
        // An equal one keeps what is remembered of statements.
        if known.catalogue() != Some(&catalogue) || known.is_suspended() != is_behind {
            let known = known.with_catalogue(catalogue);
            self.kinds.set_known(if is_behind { known.suspended() } else { known });
        }
        Ok(())
    }

    /// The catalogue could not be read: what is known stays. The first time it is told with its cause.
    pub fn catalogue_failed(&self, cause: &dyn std::fmt::Display) {
        let mut state = self.schema.state();
        if state.failed_at.replace(now()).is_none() {
            events::no_catalogue(state.read.is_some(), cause);
        }
    }

    /// A statement that changes the schema is done, or its transaction is: the catalogue is read again. Where it may have
    /// made something harmful of what was known as harmless, nothing is a read until then.
    pub fn schema_changed(&self, change: SchemaChange) {
        let mut state = self.schema.state();
        state.changes += 1;
        if change == SchemaChange::Code {
            let known = self.kinds.known();
            if known.catalogue().is_some() && !known.is_suspended() {
                self.kinds.set_known(known.suspended());
            }
        }
        drop(state);
        self.schema.due.notify(usize::MAX);
    }
}

/// What the statements of a transaction have changed of the schema, until it is committed.
#[derive(Debug, Default)]
pub struct SchemaChanges(AtomicU8);

impl SchemaChanges {
    /// A statement was run.
    pub fn note(&self, sql: &str) {
        match SchemaChange::of(sql) {
            None => {}
            Some(SchemaChange::Tables) => self.unseen(),
            Some(SchemaChange::Code) => drop(self.0.fetch_max(2, Relaxed)),
        }
    }

    /// Something was run past us.
    pub fn unseen(&self) {
        self.0.fetch_max(1, Relaxed);
    }

    /// The transaction is committed.
    pub fn committed(&self, watch: &Watch) {
        match self.0.swap(0, Relaxed) {
            0 => {}
            1 => watch.schema_changed(SchemaChange::Tables),
            _ => watch.schema_changed(SchemaChange::Code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, NotRead, Pins, StatementKind};

    /// As few rows as there can be, and a view that is harmful or not.
    fn rows(view: &'static str) -> Vec<[Option<&'static str>; 7]> {
        vec![
            [Some("G"), Some("0"), None, None, Some("UTF8"), None, None],
            [Some("B"), Some("1574"), None, Some("nextval"), Some("v"), None, None],
            [Some("B"), Some("870"), None, Some("lower"), Some("i"), None, None],
            [Some("P"), Some("0"), None, Some("="), None, None, None],
            [Some("E"), Some("20000"), Some("public"), Some("v"), Some("r"), None, Some(view)],
        ]
    }

    fn read(watch: &Watch, view: &'static str) {
        let reading = watch.catalogue_asked();
        watch.catalogue_read(reading, rows(view)).unwrap();
    }

    const SQL: &str = "TABLE v";

    #[test]
    fn kinds_follow_the_catalogue_at_once() {
        let watch = Watch::new(Vec::new(), Config::default());
        assert!(watch.kinds.kind(SQL).is_read(), "the text is all there is");
        assert_eq!(watch.catalogue_due().0, Duration::ZERO);
        read(&watch, "f1574");
        assert_eq!(watch.kinds.kind(SQL), StatementKind::Primary(NotRead::Relation));
        read(&watch, "f870");
        assert!(watch.kinds.kind(SQL).is_read());
        assert!(watch.catalogue_due().0 > Duration::from_secs(50));
    }

    #[test]
    fn a_change_of_code_suspends_reads_until_a_reading_that_began_after_it() {
        let watch = Watch::new(Vec::new(), Config::default());
        watch.schema_changed(SchemaChange::Code);
        assert!(watch.kinds.kind(SQL).is_read(), "without a catalogue there is nothing to go out of date");
        read(&watch, "f870");
        let early = watch.catalogue_asked();
        let changes = SchemaChanges::default();
        changes.note("CREATE OR REPLACE VIEW v AS SELECT nextval('s')");
        assert!(watch.kinds.kind(SQL).is_read(), "nobody sees it yet");
        changes.committed(&watch);
        let outdated = StatementKind::Primary(NotRead::Outdated);
        assert_eq!(watch.kinds.kind(SQL), outdated);
        watch.catalogue_read(early, rows("f870")).unwrap();
        assert_eq!(watch.kinds.kind(SQL), outdated);
        assert_eq!(watch.catalogue_due().0, Duration::ZERO);
        read(&watch, "f1574");
        assert_eq!(watch.kinds.kind(SQL), StatementKind::Primary(NotRead::Relation));
        changes.note("CREATE TABLE t ()");
        changes.committed(&watch);
        assert_eq!(watch.kinds.kind("SELECT 1"), StatementKind::Read);
        assert_eq!(watch.catalogue_due().0, Duration::ZERO);
    }

    #[test]
    fn a_failed_reading_leaves_what_is_known_and_is_tried_again() {
        let watch = Watch::new(Vec::new(), Config::default());
        let mut pins = Pins::new();
        pins.table("v", crate::Access::Read).unwrap();
        watch.kinds.set_known(crate::Known::new(pins));
        read(&watch, "f1574");
        assert!(watch.kinds.kind(SQL).is_read(), "pinned");
        watch.catalogue_failed(&"no permission");
        let wait = watch.catalogue_due().0;
        assert!(!wait.is_zero() && wait <= RETRY);
        let reading = watch.catalogue_asked();
        assert!(watch.catalogue_read(reading, [[None; 7]]).is_err());
        assert!(watch.kinds.kind(SQL).is_read());
    }
}
