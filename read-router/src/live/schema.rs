//! When the catalogue is read, and what its reading brings.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use event_listener::Event;

use super::{Watch, now, watch::Change};
use crate::{Catalogue, SchemaChange, Time, UnexpectedAnswer, events};

/// How long a reading of the catalogue may take.
pub const CATALOGUE_LIMIT: Duration = Duration::from_secs(10);
/// From a failed reading to the next.
const RETRY: Duration = Duration::from_secs(1);
/// More changes than this are not told apart.
const MOST_PENDING: usize = 256;

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
    /// Those that are not in it and may have made something harmful, each with its number.
    pending: Vec<(u64, SchemaChange)>,
    failed_at: Option<Time>,
}

/// A reading under way: it shows all changes that were seen before it began.
#[derive(Debug)]
#[must_use = "it is to be handed in with the rows"]
pub struct CatalogueReading {
    changes: u64,
}

impl Schema {
    fn state(&self) -> MutexGuard<'_, State> {
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
        let catalogue = Catalogue::read(rows, self.kinds.known().pins())?;
        let mut state = self.schema.state();
        state.failed_at = None;
        if state.read.is_some_and(|(changes, _)| changes > reading.changes) {
            return Ok(());
        }
        state.read = Some((reading.changes, now()));
        // What changed while it was read is not in it: that stays out of date, and is read again.
        state.pending.retain(|(number, _)| *number > reading.changes);
        let known = self.kinds.known();
        let read = known.with_catalogue(catalogue);
        let read = state.pending.iter().fold(read, |read, (_, change)| read.outdated_by(change));
        // An equal one keeps what is remembered of statements.
        if *known != read {
            self.kinds.set_known(read);
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

    /// A statement that changes the schema is done, or its transaction is: the catalogue is read again. What it may have
    /// made something harmful of, and all that uses that, is no read until then.
    pub fn schema_changed(&self, change: SchemaChange) {
        let mut state = self.schema.state();
        state.changes += 1;
        if change != SchemaChange::Tables {
            let known = self.kinds.known();
            let outdated = known.as_ref().clone().outdated_by(&change);
            if *known != outdated {
                self.kinds.set_known(outdated);
            }
            state.pend(change);
        }
        drop(state);
        self.schema.due.notify(usize::MAX);
    }
}

impl State {
    /// Keeps a change until a reading has it. Where none comes, many are as good as one of everything.
    fn pend(&mut self, change: SchemaChange) {
        if self.pending.len() >= MOST_PENDING {
            self.pending.clear();
            self.pending.push((self.changes, SchemaChange::Code));
        } else {
            self.pending.push((self.changes, change));
        }
    }
}

/// What the statements of a transaction have changed of the schema, until it is committed.
#[derive(Debug, Default)]
pub struct SchemaChanges(Mutex<Option<SchemaChange>>);

impl SchemaChanges {
    /// A statement was run.
    pub fn note(&self, sql: &str) {
        if let Some(change) = SchemaChange::of(sql) {
            self.add(change);
        }
    }

    /// Something was run past us.
    pub fn unseen(&self) {
        self.add(SchemaChange::Tables);
    }

    /// The transaction is committed.
    pub fn committed(&self, watch: &Watch) {
        let change = self.noted().take();
        if let Some(change) = change {
            watch.schema_changed(change);
        }
    }

    fn add(&self, change: SchemaChange) {
        let mut noted = self.noted();
        *noted = Some(match noted.take() {
            Some(before) => before.and(change),
            None => change,
        });
    }

    fn noted(&self) -> MutexGuard<'_, Option<SchemaChange>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// The view, and those that use it or call a function.
    fn more_rows() -> Vec<[Option<&'static str>; 7]> {
        let mut rows = rows("f870");
        rows.push([
            Some("F"),
            Some("20001"),
            Some("public"),
            Some("f"),
            Some("f s sql - -"),
            Some("SELECT g(1)"),
            None,
        ]);
        rows.push([Some("E"), Some("20002"), Some("public"), Some("w"), Some("r"), None, Some("r20000 f20001")]);
        rows
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
    fn only_what_a_change_reaches_is_no_read_until_a_reading_that_has_it() {
        let watch = Watch::new(Vec::new(), Config::default());
        let asked = watch.catalogue_asked();
        watch.catalogue_read(asked, more_rows()).unwrap();
        let reads = |expected: &[&str]| {
            let all = ["SELECT 1", "TABLE v", "TABLE w", "TABLE t", "SELECT f()"];
            let found: Vec<_> = all.into_iter().filter(|sql| watch.kinds.kind(sql).is_read()).collect();
            assert_eq!(found, expected);
        };
        let change = |sql: &str| watch.schema_changed(SchemaChange::of(sql).unwrap());
        reads(&["SELECT 1", "TABLE v", "TABLE w", "TABLE t", "SELECT f()"]);
        change("CREATE OR REPLACE VIEW v AS SELECT 1");
        reads(&["SELECT 1", "TABLE t", "SELECT f()"]);
        let early = watch.catalogue_asked();
        change("CREATE FUNCTION g(int) RETURNS int LANGUAGE sql AS 'SELECT 1'");
        reads(&["SELECT 1", "TABLE t"]);
        watch.catalogue_read(early, more_rows()).unwrap();
        reads(&["SELECT 1", "TABLE v", "TABLE t"]);
        change("CREATE CAST (a AS b) WITHOUT FUNCTION AS IMPLICIT");
        reads(&[]);
        let asked = watch.catalogue_asked();
        watch.catalogue_read(asked, more_rows()).unwrap();
        reads(&["SELECT 1", "TABLE v", "TABLE w", "TABLE t", "SELECT f()"]);
    }

    #[test]
    fn what_makes_nothing_harmful_forgets_nothing() {
        let watch = Watch::new(Vec::new(), Config::default());
        read(&watch, "f870");
        let before = std::sync::Arc::as_ptr(&watch.kinds.known());
        for sql in ["CREATE TYPE colour AS ENUM ('red')", "CREATE TABLE t (id int, FOREIGN KEY (id) REFERENCES u (id))"]
        {
            watch.schema_changed(SchemaChange::of(sql).unwrap());
            assert_eq!(watch.catalogue_due().0, Duration::ZERO);
            read(&watch, "f870");
        }
        assert_eq!(std::sync::Arc::as_ptr(&watch.kinds.known()), before);
    }

    #[test]
    fn a_change_during_the_first_reading_and_a_late_reading_count() {
        let watch = Watch::new(Vec::new(), Config::default());
        let first = watch.catalogue_asked();
        watch.schema_changed(SchemaChange::of("CREATE OR REPLACE VIEW v AS SELECT nextval('s')").unwrap());
        let second = watch.catalogue_asked();
        watch.catalogue_read(first, rows("f870")).unwrap();
        let first = watch.catalogue_asked();
        assert_eq!(watch.kinds.kind(SQL), StatementKind::Primary(NotRead::Outdated));
        watch.schema_changed(SchemaChange::Tables);
        read(&watch, "f1574");
        for late in [first, second] {
            watch.catalogue_read(late, rows("f870")).unwrap();
            assert_eq!(watch.kinds.kind(SQL), StatementKind::Primary(NotRead::Relation));
        }
    }

    #[test]
    fn changes_that_no_reading_takes_up_are_bounded() {
        let watch = Watch::new(Vec::new(), Config::default());
        for number in 0..3 * MOST_PENDING {
            watch.schema_changed(SchemaChange::of(&format!("CREATE VIEW v{number} AS SELECT 1")).unwrap());
        }
        assert!(watch.schema.state().pending.len() <= MOST_PENDING);
        assert!(watch.kinds.kind(SQL).is_read());
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
