//! A bounded world: which servers and processes there are, and how much may happen.

use read_router::Session;
use stateright::{Model, Property};

use crate::{Action, Class, State, rule::Off};

/// How often what may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Writes of the session.
    pub writes: u8,
    /// Commits of others.
    pub others: u8,
    /// Probes.
    pub probes: u8,
    /// Reads of the session.
    pub reads: u8,
    /// Crashes and rewinds.
    pub crashes: u8,
    /// Promotions.
    pub promotions: u8,
    /// Writes whose caller goes away.
    pub drops: u8,
    /// Tokens that go to the other process.
    pub exports: u8,
    /// New pooled connections.
    pub opens: u8,
    /// Moves of the primary's name.
    pub moves: u8,
    /// Probe connections given up.
    pub failures: u8,
    /// Ticks of a coarse clock.
    pub ticks: u8,
}

impl Budget {
    /// Enough for any prefix.
    const PREFIX: Self = Self {
        writes: 99,
        others: 99,
        probes: 99,
        reads: 99,
        crashes: 99,
        promotions: 99,
        drops: 99,
        exports: 99,
        opens: 99,
        moves: 99,
        failures: 99,
        ticks: 99,
    };
}

/// A world to be searched.
#[derive(Clone, Debug)]
pub struct World {
    /// The number of servers; server 0 starts as the primary and the others as its standbys.
    pub servers: usize,
    /// The server that each node's name leads to; node 0 is the primary's name, which may move.
    pub names: &'static [usize],
    /// The number of processes.
    pub processes: usize,
    /// What happens first.
    pub prefix: Vec<Action>,
    /// What may happen then.
    pub budget: Budget,
    /// The classes of the session's reads.
    pub classes: Vec<Class>,
    /// The nodes that reads go to.
    pub targets: Vec<usize>,
    /// The (process, node) pairs that are probed.
    pub probed: Vec<(usize, usize)>,
    /// The servers that crash.
    pub crashing: Vec<usize>,
    /// The servers that may be promoted.
    pub promotable: Vec<usize>,
    /// How many statements of the session may be under way at once.
    pub tasks: usize,
    /// Whether reads that must wait keep the session as it was when they came.
    pub parking: bool,
    /// Whether the session stays on its last replica.
    pub sticky: bool,
    /// Whether a probe's two statements are answered one at a time.
    pub two_steps: bool,
    /// Whether answers of closed probe connections may still come.
    pub late_answers: bool,
    /// Whether commits are asynchronous: a crash of the primary loses those not written out.
    pub asynchronous: bool,
    /// Whether a primary shows a commit only once it is acknowledged, as with a synchronous standby.
    pub hides: bool,
    /// Whether a standby may show a commit before its position has passed it.
    pub slow_replay: bool,
    /// Whether the session asks for monotonic fallback.
    pub monotonic_fallback: bool,
    /// Whether several events may have one instant.
    pub coarse: bool,
    /// Whether the probes' role sees no timeline of a standby but the control file's.
    pub ordinary_role: bool,
    /// Whether reads are judged without the excuses that the documentation makes: for what a fallback may miss of a
    /// replica read (rule 1), and for what a node showed on a timeline that nobody had heard of (rule 6).
    pub unexcused: bool,
    /// Whether others commit on an old primary too.
    pub unfenced: bool,
    /// The rules that are switched off.
    pub off: Off,
}

impl Default for World {
    fn default() -> Self {
        Self {
            servers: 2,
            names: &[0, 1],
            processes: 1,
            prefix: Vec::new(),
            budget: Budget::default(),
            classes: vec![Class::Strict],
            targets: vec![0, 1, 2],
            probed: vec![(0, 0), (0, 1), (0, 2)],
            crashing: vec![1, 2],
            promotable: vec![1, 2],
            tasks: 1,
            parking: false,
            sticky: false,
            two_steps: false,
            late_answers: false,
            asynchronous: false,
            hides: false,
            slow_replay: false,
            monotonic_fallback: false,
            coarse: false,
            ordinary_role: false,
            unexcused: false,
            unfenced: false,
            off: Off::default(),
        }
    }
}

impl World {
    /// Whether bounded reads are judged, for which samples carry what had been acknowledged.
    pub(crate) fn judges_bounds(&self) -> bool {
        self.classes.contains(&Class::Bounded)
    }

    pub(crate) fn session(&self, session: Session) -> Session {
        if self.monotonic_fallback { session.with_monotonic_fallback() } else { session }
    }

    /// The state after the prefix.
    ///
    /// # Panics
    /// If a step of the prefix cannot happen.
    #[must_use]
    pub fn start(&self) -> State {
        let mut state = State::new(self);
        state.budget = Budget::PREFIX;
        for action in &self.prefix {
            let next = self.next_state(&state, *action);
            state = next.unwrap_or_else(|| panic!("the prefix breaks off before: {action}\n{state:#?}"));
        }
        state.budget = self.budget;
        state
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violation.is_none() {
            self.possible(state, actions);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        self.off.apply();
        let mut next = state.clone();
        next.take(self, action)?;
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("the promises", |_, state: &State| state.violation.is_none())]
    }
}
