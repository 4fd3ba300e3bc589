//! Which of several nodes that would do takes a read.

use crate::{InFlight, NodeId};

/// The power of two choices in one pass: two of the offered nodes, of which the less busy wins, which spreads the load
/// evenly without a shared counter.
///
/// Each pair is as likely as any other where the weights are equal; else a node is drawn by its weight, and it is as
/// busy as what runs on it divided by that.
pub(crate) struct TwoChoices {
    random: u64,
    offered: u64,
    rank: u32,
    first: Option<Offer>,
    second: Option<Offer>,
    /// All weights up to here are equal.
    plain: bool,
}

#[derive(Clone, Copy)]
struct Offer {
    node: NodeId,
    busy: u32,
    weight: u32,
    /// The smaller, the better placed, where weights differ.
    key: f64,
}

impl TwoChoices {
    /// `plain` says that all nodes have the same weight.
    pub(crate) fn new(draw: u64, plain: bool) -> Self {
        Self { random: draw, offered: 0, rank: u32::MAX, first: None, second: None, plain }
    }

    /// Offers a node. Of those of the lowest rank two are drawn.
    pub(crate) fn offer(&mut self, node: NodeId, rank: u32, weight: u32, in_flight: &InFlight) {
        if rank > self.rank {
            return;
        }
        if rank < self.rank {
            (self.rank, self.offered, self.first, self.second) = (rank, 0, None, None);
        }
        self.offered += 1;
        let mut offer = Offer { node, busy: in_flight.count(node), weight, key: 0.0 };
        if !self.plain {
            self.offer_by_weight(&mut offer);
        } else if self.first.is_none() {
            self.first = Some(offer);
        } else if self.second.is_none() {
            self.second = Some(offer);
        } else {
            // Reservoir sampling: the n-th offer takes one of the two places with probability 2/n.
            match self.below(self.offered) {
                0 => self.first = Some(offer),
                1 => self.second = Some(offer),
                _ => {}
            }
        }
    }

    /// Exponential draws: the node of the least is a given one with a probability in proportion to its weight, and the
    /// second least likewise among the others.
    fn offer_by_weight(&mut self, offer: &mut Offer) {
        // Never 0, whose logarithm is infinite.
        let uniform = ((self.next_random() >> 11) | 1) as f64 / (1_u64 << 53) as f64;
        offer.key = -uniform.ln() / f64::from(offer.weight);
        match (self.first, self.second) {
            (Some(first), _) if offer.key < first.key => (self.first, self.second) = (Some(*offer), Some(first)),
            (None, _) => self.first = Some(*offer),
            (_, Some(second)) if offer.key >= second.key => {}
            _ => self.second = Some(*offer),
        }
    }

    /// The lowest rank offered; the highest there is before the first offer.
    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    pub(crate) fn winner(mut self) -> Option<NodeId> {
        let (Some(first), Some(second)) = (self.first, self.second) else {
            return self.first.map(|offer| offer.node);
        };
        let load = |mine: Offer, other: Offer| u64::from(mine.busy) * u64::from(other.weight);
        let take_first = match load(first, second).cmp(&load(second, first)) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Greater => false,
            // Drawn by weight, the first is the one that the draw meant.
            std::cmp::Ordering::Equal => !self.plain || self.below(2) == 0,
        };
        Some(if take_first { first.node } else { second.node })
    }

    /// A number below `bound`, by a multiplication where a division would cost most of the choice.
    fn below(&mut self, bound: u64) -> u64 {
        ((self.next_random() >> 32) * bound) >> 32
    }

    /// SplitMix64: one draw is stretched into as many as there are nodes.
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each node wins, of 12,000 draws, with these (rank, weight, busy).
    fn shares(nodes: &[(u32, u32, u32)]) -> Vec<u32> {
        let in_flight = InFlight::new(nodes.len());
        let id = |index: usize| NodeId(u16::try_from(index).unwrap());
        for (index, (_, _, busy)) in nodes.iter().enumerate() {
            (0..*busy).for_each(|_| in_flight.begin(id(index)));
        }
        let plain = nodes.iter().all(|(_, weight, _)| *weight == nodes[0].1);
        let mut wins = vec![0; nodes.len()];
        for draw in 0..12_000 {
            let mut choice = TwoChoices::new(draw * 7919, plain);
            for (index, (rank, weight, _)) in nodes.iter().enumerate() {
                choice.offer(id(index), *rank, *weight, &in_flight);
            }
            wins[choice.winner().unwrap().index()] += 1;
        }
        wins
    }

    #[test]
    fn idle_nodes_share_by_weight() {
        for (weights, expected) in [
            (vec![1, 1], vec![6_000, 6_000]),
            (vec![1, 1, 1], vec![4_000, 4_000, 4_000]),
            (vec![3, 1], vec![9_000, 3_000]),
            (vec![8, 1, 1], vec![9_600, 1_200, 1_200]),
            (vec![2, 2], vec![6_000, 6_000]),
        ] {
            let nodes: Vec<_> = weights.iter().map(|weight| (1, *weight, 0)).collect();
            for (got, expected) in shares(&nodes).into_iter().zip(expected) {
                assert!(got.abs_diff(expected) < 300, "{weights:?}: {:?}", shares(&nodes));
            }
        }
    }

    #[test]
    fn the_less_busy_of_two_wins_and_a_heavy_one_bears_more() {
        assert_eq!(shares(&[(1, 1, 5), (1, 1, 4)]), [0, 12_000]);
        assert_eq!(shares(&[(1, 3, 5), (1, 1, 2)]), [12_000, 0]);
        assert_eq!(shares(&[(1, 3, 6), (1, 1, 1)]), [0, 12_000]);
    }

    #[test]
    fn a_lower_rank_goes_first_whatever_its_load() {
        assert_eq!(shares(&[(3, 9, 0), (1, 1, 50), (3, 1, 0)]), [0, 12_000, 0]);
    }
}
