//! The thread that reads the primary's catalogue.

use std::{sync::Arc, time::Duration};

use read_router::{
    SchemaChange,
    live::{CATALOGUE_LIMIT, Watch},
};

use super::{
    monitor::{Monitors, Target},
    question,
};

impl Monitors {
    /// Starts the thread that reads the catalogue when it is due.
    pub(super) fn start_catalogue(self: &Arc<Self>, target: Target) {
        let this = self.clone();
        self.spawn("read-router catalogue".to_owned(), move || {
            while this.is_catalogue_due() {
                read_once(&this.watch, &target, CATALOGUE_LIMIT);
            }
        });
    }

    /// Waits until it is due; `false` if it will not be.
    fn is_catalogue_due(&self) -> bool {
        loop {
            let (wait, change) = self.watch.catalogue_due();
            if self.is_stopped() {
                return false;
            }
            if wait.is_zero() {
                return true;
            }
            change.wait(wait);
        }
    }

    /// Has the thread look whether it is to end.
    pub(super) fn wake_catalogue(&self) {
        self.watch.schema_changed(SchemaChange::Tables);
    }
}

/// Reads it over a connection that is held for no longer than that, and waited for so long at most.
pub(super) fn read_once(watch: &Watch, target: &Target, wait: Duration) {
    let mut connection = match target.connect(wait, CATALOGUE_LIMIT) {
        Ok(connection) => connection,
        Err(failed) => return watch.catalogue_failed(&failed.source),
    };
    let reading = watch.catalogue_asked();
    let rows = match question::catalogue(&mut connection) {
        Ok(rows) => rows,
        Err(error) => return watch.catalogue_failed(&error),
    };
    let rows = rows.iter().map(|row| row.each_ref().map(Option::as_deref));
    if let Err(error) = watch.catalogue_read(reading, rows) {
        watch.catalogue_failed(&error);
    }
}
