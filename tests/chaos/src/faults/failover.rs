//! A change of the primary.
//!
//! In most clusters nothing that was acknowledged is lost: commits wait for one standby to have them on disk. Of a primary that crashes, the standby that has most is promoted:
//! it has all that was acknowledged. Where the old primary is to go on answering, its other standbys first follow the
//! one that will be promoted: nobody else can acknowledge then, and once that one is promoted the old primary's commits
//! wait for ever.

use std::{thread, time::Duration};

use rand::RngExt;
use read_router_testkit::{Error, Node};

use super::{Injector, REGISTERS, registers};
use crate::{
    clock,
    history::{Action, Fault, LEAP, Operation, Outcome, Promotion, Server},
};

const LIMIT: Duration = Duration::from_secs(30);

impl Injector {
    pub(super) fn failover(&mut self) -> Result<(), Error> {
        if self.lossy {
            self.failover_with_a_loss()
        } else if self.random.random_bool(0.5) {
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
        let new = self.most_advanced()?;
        let mut promotion = Promotion { began: clock::now(), fenced, named: 0, kept: Vec::new() };
        self.node(new).promote()?;
        if self.random.random_bool(0.5) {
            promotion.named = self.rename(new);
            self.pause(0, 200);
            self.let_others_follow(new)?;
        } else {
            self.let_others_follow(new)?;
            self.pause(0, 200);
            promotion.named = self.rename(new);
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
        let named = self.rename(new);
        self.pause(0, 800);
        self.node(self.primary).crash()?;
        let promotion = Promotion { began, fenced: clock::now(), named, kept: Vec::new() };
        self.became_primary(new, "failover_beside", began, promotion);
        Ok(())
    }

    /// The primary goes on alone for a moment, and what it acknowledges then dies with it.
    fn failover_with_a_loss(&mut self) -> Result<(), Error> {
        self.cluster.wait_caught_up(LIMIT)?;
        self.standbys.iter().try_for_each(|standby| self.cluster.freeze_link(standby - 1))?;
        self.pause(20, 150);
        let began = clock::now();
        self.node(self.primary).crash()?;
        let fenced = clock::now();
        let new = self.most_advanced()?;
        let mut promotion = Promotion { began: clock::now(), fenced, named: 0, kept: Vec::new() };
        self.node(new).promote()?;
        promotion.kept = registers(self.node(new), REGISTERS)?;
        // Nobody but us can write there yet: the primary's name still leads to the old one.
        let tag = 2 + self.writes.len() as u64;
        let started = clock::now();
        let leap = format!("UPDATE register SET version = version + {LEAP}, tag = {tag} RETURNING id, version, tag");
        let values = registers(self.node(new), &leap)?;
        self.writes.push(Operation {
            id: tag,
            task: 0,
            session: 0,
            started,
            ended: clock::now(),
            action: Action::Write(values.iter().map(|value| value.register).collect()),
            outcome: Outcome::Done,
            values,
            server: Some(Server { port: self.node(new).port(), standby: false }),
            reason: None,
        });
        self.pause(0, 50);
        promotion.named = self.rename(new);
        self.let_others_follow(new)?;
        self.became_primary(new, "failover_lossy", began, promotion);
        Ok(())
    }

    /// Moves the primary's name; returns an instant before.
    fn rename(&self, new: usize) -> u64 {
        let before = clock::now();
        self.name.point_to(self.node(new));
        before
    }

    /// The standby that has most of a primary that is gone.
    fn most_advanced(&self) -> Result<usize, Error> {
        let mut most = (0, self.standbys[0]);
        for &standby in &self.standbys {
            most = most.max((received(self.node(standby))?, standby));
        }
        Ok(most.1)
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
