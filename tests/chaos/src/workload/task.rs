//! One task: call after call, each recorded.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use sea_orm::{DbErr, IsolationLevel};
use sea_router::{ReadClass, ReadOptions, RoutingConnection};

use super::{
    Client, HandOver, Handle,
    calls::{self, End, Progress, Shape, Shown},
};
use crate::{
    cause, clock,
    history::{Action, Class, Operation, Outcome},
    plan::{Gate, REGISTERS},
};

/// Longer than anything that ends by itself.
const LIMIT: Duration = Duration::from_secs(20);

pub(super) struct Task {
    client: Arc<Client>,
    id: u32,
    random: StdRng,
    own: Handle,
    /// Calls until the own session is replaced.
    left: u32,
    /// The register that most calls are about, so that reads meet writes.
    focus: u16,
    log: Vec<Operation>,
}

/// A call that has begun.
struct Begun {
    id: u64,
    session: u64,
    started: u64,
}

impl Task {
    pub(super) fn new(client: Arc<Client>, task: u32, seed: u64) -> Self {
        let own = client.new_session();
        let id = (client.plan.process << 16) | task;
        Self { client, id, random: StdRng::seed_from_u64(seed), own, left: 20, focus: 0, log: Vec::new() }
    }

    pub(super) async fn run(mut self) -> Vec<Operation> {
        while !self.client.is_over() {
            if self.left == 0 {
                self.renew();
            }
            self.left -= 1;
            let done = self.log.len();
            self.step().await;
            // Who finds a server gone does not ask again at once: that would keep the machine busy with errors.
            if self.log[done..].iter().any(|operation| matches!(operation.outcome, Outcome::Failed(_))) {
                tokio::time::sleep(Duration::from_millis(self.random.random_range(10..80))).await;
            }
        }
        self.log
    }

    fn renew(&mut self) {
        let (handle, entry) = self.client.next_session(self.id, &mut self.random);
        self.log.extend(entry);
        self.own = handle;
        self.left = if self.random.random_bool(0.6) {
            self.random.random_range(2..30)
        } else {
            self.random.random_range(50..400)
        };
        self.focus = self.random.random_range(0..REGISTERS);
        if self.random.random_bool(0.1) {
            let mut shared = self.client.shared();
            let place = self.random.random_range(0..shared.len());
            shared[place] = self.own.clone();
        }
    }

    async fn step(&mut self) {
        let handle = self.handle();
        match self.random.random_range(0..100) {
            0..22 => self.write(&handle).await,
            22..26 => self.write_all(&handle).await,
            26..78 => {
                for _ in 0..self.random.random_range(1..=5) {
                    self.read(&handle, Class::Strict).await;
                }
            }
            78..87 => {
                let bound = [30, 100, 300, 1000, 3000][self.random.random_range(0..5)];
                self.read(&handle, Class::Bounded(bound * 1_000_000)).await;
            }
            87..94 => self.read(&handle, Class::Eventual).await,
            94..96 => self.read(&handle, Class::Unannotated).await,
            96..97 => self.read(&handle, Class::Primary).await,
            _ => self.export(&handle).await,
        }
    }

    fn handle(&mut self) -> Handle {
        match self.random.random_range(0..20) {
            0..14 => self.own.clone(),
            14..19 => {
                let shared = self.client.shared();
                shared[self.random.random_range(0..shared.len())].clone()
            }
            _ => self.client.process_wide(),
        }
    }

    fn register(&mut self) -> u16 {
        if self.random.random_bool(0.75) { self.focus } else { self.random.random_range(0..REGISTERS) }
    }

    /// Different registers in rising order, as whoever locks several must take them.
    fn registers(&mut self, count: usize) -> Vec<u16> {
        let mut registers: Vec<u16> = (0..count).map(|_| self.register()).collect();
        registers.sort_unstable();
        registers.dedup();
        registers
    }

    async fn write(&mut self, handle: &Handle) {
        let register = self.register();
        let begun = self.begin(handle);
        let work = calls::write(&handle.db, register, begun.id);
        let out = cut_short(&mut self.random, work).await;
        let (outcome, written) = match out {
            Some(Ok(written)) => (Outcome::Done, Some(written)),
            Some(Err(error)) => (failed(&error), None),
            None => (Outcome::Cancelled, None),
        };
        let mut operation = self.done(begun, Action::Write(vec![register]), outcome);
        if let Some((value, server)) = written {
            operation.values.push(value);
            operation.server = server;
        }
        self.log.push(operation);
    }

    async fn write_all(&mut self, handle: &Handle) {
        let registers = self.registers(3);
        let end = match self.random.random_range(0..10) {
            0..7 => End::Commit,
            7..9 => End::Rollback,
            _ => End::Drop,
        };
        let begun = self.begin(handle);
        let mut progress = Progress::default();
        let work = calls::write_all(&handle.db, &registers, begun.id, end, &mut progress);
        let out = cut_short(&mut self.random, work).await;
        let outcome = match out {
            Some(Ok(())) if progress.committing => Outcome::Done,
            _ if !progress.committing => Outcome::RolledBack,
            Some(Err(error)) => failed(&error),
            _ => Outcome::Cancelled,
        };
        let operation = self.done(begun, Action::Write(registers), outcome);
        self.log.push(Operation { values: progress.values, server: progress.server, ..operation });
    }

    async fn read(&mut self, handle: &Handle, class: Class) {
        let count = if self.random.random_bool(0.15) { 3 } else { 1 };
        let registers = self.registers(count);
        let shape = match self.random.random_range(0..20) {
            0 => Shape::Stream,
            1 if class != Class::Unannotated && class != Class::Primary => {
                Shape::Transaction(self.random.random_bool(0.5).then_some(IsolationLevel::RepeatableRead))
            }
            _ => Shape::Rows,
        };
        let view = self.view(&handle.db, class);
        let begun = self.begin(handle);
        let mut seen: Vec<Shown> = Vec::new();
        let out = cut_short(&mut self.random, calls::read(&view, &registers, shape, &mut seen)).await;
        let reason = handle.db.last_served().and_then(|served| served.reason);
        let reason = reason.map(|reason| reason.as_str().to_owned());
        // What was shown counts, however the call ended after it.
        for (index, Shown { values, server, ended }) in seen.into_iter().enumerate() {
            if class == Class::Strict {
                self.client.strict_reads.fetch_add(1, Relaxed);
            }
            let id = if index == 0 { begun.id } else { self.client.next() };
            let (task, session, started) = (self.id, begun.session, begun.started);
            let (action, outcome, reason) = (Action::Read(class), Outcome::Done, reason.clone());
            self.log.push(Operation { id, task, session, started, ended, action, outcome, values, server, reason });
        }
        let outcome = match out {
            Some(Ok(())) => return,
            Some(Err(error)) => failed(&error),
            None => Outcome::Cancelled,
        };
        let begun = Begun { id: self.client.next(), ..begun };
        let operation = self.done(begun, Action::Read(class), outcome);
        self.log.push(operation);
    }

    fn view(&mut self, db: &RoutingConnection, class: Class) -> RoutingConnection {
        let read_class = match (class, self.client.plan.gate) {
            (Class::Unannotated, _) => return db.clone(),
            (Class::Primary, _) => return db.on_primary(),
            (Class::Eventual, _) | (_, Gate::Off) => ReadClass::Eventual,
            (Class::Strict, Gate::On) => ReadClass::MustSeeMyWrite,
            (Class::Bounded(bound), Gate::On) => ReadClass::SecondsStale(Duration::from_nanos(bound)),
        };
        let options = ReadOptions::new(read_class);
        db.read(match self.random.random_range(0..10) {
            0 => options.wait(Duration::ZERO),
            1 => options.wait(Duration::from_millis(self.random.random_range(1..300))),
            2 => options.or_error(),
            _ => options,
        })
    }

    async fn export(&mut self, handle: &Handle) {
        let begun = self.begin(handle);
        let token = handle.db.token().await;
        let over = HandOver { export: begun.id, token: token.to_string() };
        let operation = self.done(begun, Action::Export, Outcome::Done);
        self.log.push(operation);
        if self.random.random_bool(0.7) {
            // The other process may be gone already.
            let _ = self.client.leaving.send(over);
        } else {
            self.client.arrived(over);
        }
    }

    fn begin(&self, handle: &Handle) -> Begun {
        Begun { id: self.client.next(), session: handle.session, started: clock::now() }
    }

    fn done(&self, begun: Begun, action: Action, outcome: Outcome) -> Operation {
        let Begun { id, session, started } = begun;
        let (task, ended) = (self.id, clock::now());
        Operation { id, task, session, started, ended, action, outcome, values: Vec::new(), server: None, reason: None }
    }
}

fn failed(error: &DbErr) -> Outcome {
    Outcome::Failed(cause::of(error))
}

/// Runs a call; now and then its caller goes away in the middle.
async fn cut_short<T>(random: &mut StdRng, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    match random.random_range(0..60) {
        // After so many turns of the other tasks: earlier than any timer could.
        0 => {
            let turns = random.random_range(0..30);
            let patience = async {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! { biased; out = &mut work => Some(out), () = patience => None }
        }
        1 => tokio::time::timeout(Duration::from_millis(random.random_range(0..8)), work).await.ok(),
        _ => tokio::time::timeout(LIMIT, work).await.ok(),
    }
}
