//! Random walks through larger worlds, and the shrinking of what they find.

use stateright::Model;

use crate::{Action, Budget, Class, Schedule, State, World, rule::Off};

/// A stretched seed (SplitMix64): the same seed walks the same way on any machine.
#[derive(Clone, Debug)]
pub struct Draws(u64);

impl Draws {
    /// The draws of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end.max(1)).unwrap_or(1)).unwrap_or(0)
    }

    fn one_in(&mut self, parts: usize) -> bool {
        self.below(parts) == 0
    }

    fn upto(&mut self, most: u8) -> u8 {
        u8::try_from(self.below(usize::from(most) + 1)).unwrap_or(most)
    }
}

/// What one walk came to.
#[derive(Clone, Debug)]
pub struct Walk {
    /// The world it went through.
    pub world: World,
    /// Steps taken.
    pub steps: usize,
    /// Reads executed.
    pub reads: usize,
    /// What it broke, shrunk.
    pub broken: Option<Schedule>,
}

const LONGEST: usize = 160;
/// Kinds of actions, for the bias of a walk.
const KINDS: usize = 28;

/// Walks once through a world made for this walk alone: swarms of small, lopsided worlds find more than one large one.
#[must_use]
pub fn walk(draws: &mut Draws, off: Off) -> Walk {
    let world = random_world(draws, off);
    // In each walk some kinds of events are rare.
    let rarity: Vec<usize> = (0..KINDS).map(|_| if draws.one_in(3) { 12 } else { 1 + draws.below(3) }).collect();
    let hurry = draws.below(3);
    let mut walk = Walk { steps: 0, reads: 0, broken: None, world };
    let mut state = walk.world.start();
    let mut taken = Vec::new();
    while taken.len() < LONGEST {
        let Some((action, next)) = step(&walk.world, &state, draws, &rarity, hurry) else { break };
        walk.reads += usize::from(matches!(action, Action::ReadAnswered(_)));
        taken.push(action);
        state = next;
        if state.violation.is_some() {
            walk.broken = Some(shrink(&walk.world, taken.clone()));
            break;
        }
    }
    walk.steps = taken.len();
    walk
}

fn step(world: &World, state: &State, draws: &mut Draws, rarity: &[usize], hurry: usize) -> Option<(Action, State)> {
    let mut possible = Vec::new();
    world.actions(state, &mut possible);
    let is_pending = possible.iter().any(|action| is_progress(*action));
    for _ in 0..40 {
        if possible.is_empty() {
            return None;
        }
        let at = draws.below(possible.len());
        let action = possible[at];
        if !draws.one_in(rarity[kind(action)]) || is_pending && !is_progress(action) && draws.below(3) < hurry {
            continue;
        }
        match world.next_state(state, action) {
            Some(next) => return Some((action, next)),
            None => {
                possible.swap_remove(at);
            }
        }
    }
    None
}

/// Whether the action goes on with something begun.
fn is_progress(action: Action) -> bool {
    use Action::{ProbeAnswered, ProbeHeard, ReadAnswered, ReadHeard, Replay, Resume, WriteDone, WriteHeard};
    matches!(
        action,
        ProbeAnswered(..)
            | ProbeHeard(..)
            | ReadAnswered(_)
            | ReadHeard(_)
            | Replay(_)
            | Resume(..)
            | WriteDone(_)
            | WriteHeard(_)
    )
}

fn kind(action: Action) -> usize {
    use Action::*;
    match action {
        WriteSent => 0,
        WriteDone(_) => 1,
        WriteHeard(_) => 2,
        WriteDropped(_) => 3,
        WriteBroken(_) => 4,
        WriteSettled(_) => 5,
        Other(_) => 6,
        Replay(_) => 7,
        Crash(..) => 8,
        Promote(_) => 9,
        Follow(..) => 10,
        Rewind(_) => 11,
        Flush(_) => 12,
        Checkpoint(_) => 13,
        Move(_) => 14,
        ProbeSent(..) => 15,
        ProbeAnswered(..) => 16,
        ProbeHeard(..) => 17,
        ProbeFailed(..) => 18,
        Open(..) => 19,
        Park(_) => 20,
        Route(_, 0) => 21,
        Route(..) => 22,
        Resume(..) => 23,
        ReadAnswered(_) => 24,
        ReadHeard(_) => 25,
        Export | Tick => 26,
        Show(_) => 27,
    }
}

fn random_world(draws: &mut Draws, off: Off) -> World {
    let some = |draws: &mut Draws, most: u8| if draws.one_in(3) { 0 } else { 1 + draws.upto(most - 1) };
    let budget = Budget {
        writes: some(draws, 3),
        others: some(draws, 4),
        probes: 3 + draws.upto(9),
        reads: 2 + draws.upto(4),
        crashes: some(draws, 2),
        promotions: some(draws, 2),
        drops: some(draws, 2),
        exports: some(draws, 2),
        opens: some(draws, 4),
        moves: some(draws, 2),
        failures: some(draws, 3),
        ticks: 12,
    };
    let processes = if budget.exports > 0 { 2 } else { 1 };
    let (servers, names): (usize, &'static [usize]) = match draws.below(6) {
        0 => (2, &[0, 1]),
        1 => (2, &[0, 0, 1]),
        _ => (3, &[0, 1, 2]),
    };
    let pairs = (0..processes).flat_map(|process| (0..names.len()).map(move |node| (process, node)));
    let probed = pairs.filter(|_| !draws.one_in(4)).collect();
    let optional = [Class::Plain, Class::Eventual, Class::Bounded];
    let classes = std::iter::once(Class::Strict).chain(optional.into_iter().filter(|_| draws.one_in(3))).collect();
    World {
        servers,
        names,
        processes,
        prefix: Vec::new(),
        budget,
        classes,
        targets: (0..names.len()).collect(),
        probed,
        crashing: (0..servers).collect(),
        promotable: (1..servers).collect(),
        tasks: 1 + draws.below(3),
        parking: draws.one_in(2),
        sticky: draws.one_in(2),
        two_steps: draws.one_in(2),
        late_answers: draws.one_in(2),
        // They void the promises across a crash, which is documented.
        asynchronous: false,
        hides: draws.one_in(4),
        slow_replay: draws.one_in(3),
        monotonic_fallback: draws.one_in(3),
        coarse: draws.one_in(4),
        // It may not see that a standby follows a new primary, which is documented.
        ordinary_role: false,
        unexcused: false,
        unfenced: draws.one_in(2),
        off,
    }
}

/// Leaves out step after step for as long as a promise still breaks.
fn shrink(world: &World, mut schedule: Vec<Action>) -> Schedule {
    let mut best = replay(world, &schedule).unwrap_or_else(|| panic!("a walk that cannot be walked again"));
    let mut at = 0;
    while at < schedule.len() {
        let mut shorter = schedule.clone();
        shorter.remove(at);
        match replay(world, &shorter) {
            Some(found) if found.actions.len() < schedule.len() => {
                schedule.clone_from(&found.actions);
                best = found;
                at = 0;
            }
            _ => at += 1,
        }
    }
    best
}

/// Takes those of the steps that are possible, up to the first broken promise.
fn replay(world: &World, schedule: &[Action]) -> Option<Schedule> {
    let mut state = world.start();
    let mut actions = Vec::new();
    for action in schedule {
        let mut possible = Vec::new();
        world.actions(&state, &mut possible);
        let Some(next) = possible.contains(action).then(|| world.next_state(&state, *action)).flatten() else {
            continue;
        };
        actions.push(*action);
        state = next;
        if let Some(violation) = state.violation {
            return Some(Schedule { actions, violation });
        }
    }
    None
}
