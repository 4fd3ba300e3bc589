//! A change of the primary that loses nothing that was acknowledged.
//!
//! Commits wait for one standby to have them on disk. Of a primary that crashes, the standby that has most is promoted:
//! it has all that was acknowledged. Where the old primary is to go on answering, its other standbys first follow the
//! one that will be promoted: nobody else can acknowledge then, and once that one is promoted the old primary's commits
//! wait for ever.

use std::{thread, time::Duration};

use rand::RngExt;
use read_router_testkit::{Error, Node};

use super::Injector;
use crate::{
    clock,
    history::{Fault, Promotion},
};

const LIMIT: Duration = Duration::from_secs(30);

impl Injector {
    pub(super) fn failover(&mut self) -> Result<(), Error> {
        if self.random.random_bool(0.5) {
            self.failover_of_a_dead_primary()
        } else {
            self.failover_beside_the_old_one()
        }
    }

    fn failover_of_a_dead_primary(&mut self) -> Result<(), Error> {
        self.cluster.wait_caught_up(LIMIT)?;
        let began = clock::now();
        self.node(self.primary).crash()?;
        let fenced = clock::now();
        let mut most = (0, self.standbys[0]);
        for &standby in &self.standbys {
            most = most.max((received(self.node(standby))?, standby));
        }
        let new = most.1;
        let promotion = Promotion { began: clock::now(), fenced };
        self.node(new).promote()?;
        if self.random.random_bool(0.5) {
            self.name.point_to(self.node(new));
            self.pause(0, 200);
            self.let_others_follow(new)?;
        } else {
            self.let_others_follow(new)?;
            self.pause(0, 200);
            self.name.point_to(self.node(new));
        }
        self.became_primary(new, "failover_dead", began, promotion);
        Ok(())
    }

    fn failover_beside_the_old_one(&mut self) -> Result<(), Error> {
        let new = self.standbys[self.random.random_range(0..self.standbys.len())];
        self.let_others_follow(new)?;
        self.cluster.wait_caught_up(LIMIT)?;
        let began = clock::now();
        self.node(new).promote()?;
        self.pause(0, 300);
        self.name.point_to(self.node(new));
        self.pause(0, 800);
        self.node(self.primary).crash()?;
        let promotion = Promotion { began, fenced: clock::now() };
        self.became_primary(new, "failover_beside", began, promotion);
        Ok(())
    }

    fn let_others_follow(&self, new: usize) -> Result<(), Error> {
        let others = self.standbys.iter().filter(|standby| **standby != new);
        others.copied().try_for_each(|standby| self.cluster.follow(standby - 1, self.node(new)))
    }

    fn became_primary(&mut self, new: usize, kind: &str, began: u64, promotion: Promotion) {
        let node = self.node(new).name().to_owned();
        let (kind, promotion) = (kind.to_owned(), Some(promotion));
        self.log.push(Fault { kind, node, began, ended: clock::now(), promotion });
        self.primary = new;
        self.standbys.retain(|standby| *standby != new);
    }
}

/// All that a standby has, once it receives nothing more.
fn received(standby: &Node) -> Result<u64, Error> {
    let sql = "SELECT (GREATEST(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0')::bigint,
        NOT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')";
    loop {
        let rows = standby.sql(sql)?;
        let mut columns = rows.iter().flatten().map(Option::as_deref);
        let (lsn, is_over) = (columns.next().flatten(), columns.next().flatten() == Some("t"));
        if let Some(lsn) = lsn.and_then(|lsn| lsn.parse().ok()).filter(|_| is_over) {
            return Ok(lsn);
        }
        thread::sleep(Duration::from_millis(5));
    }
}
