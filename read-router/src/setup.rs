//! What the first answers of all nodes say together.

use crate::{Answer, Greeting, NodeId, Role};

/// Why these servers cannot be used together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The server that the primary's address leads to is a replica.
    #[error(
        "no primary: the primary's URL leads to a server in recovery (a replica); give the URL of the server that accepts writes"
    )]
    NoPrimary,
    /// A replica's address leads to a second server that accepts writes.
    #[error(
        "two primaries: {node} accepts writes but is not the primary that was given; promote one of them to be the primary's URL and make the other follow it"
    )]
    TwoPrimaries {
        /// The node given as a replica.
        node: NodeId,
    },
    /// A replica's address leads to a server of another cluster.
    #[error(
        "{node} belongs to another cluster (system identifier {found}) than the primary ({expected}); reads there would show other data"
    )]
    ForeignCluster {
        /// The node given as a replica.
        node: NodeId,
        /// Its system identifier.
        found: u64,
        /// The primary's system identifier.
        expected: u64,
    },
    /// A replica's address names another database than the primary's.
    #[error(
        "{node} is another database than the primary's; reads there would show other data: give both URLs the same database"
    )]
    OtherDatabase {
        /// The node given as a replica.
        node: NodeId,
    },
    /// Two replicas have the same address.
    #[error("{second} has the same URL as {first}; list each replica once")]
    ListedTwice {
        /// The first of the two.
        first: NodeId,
        /// The second of the two.
        second: NodeId,
    },
    /// A replica has the primary's own pool, whose connections would become read-only.
    #[error(
        "{node} has the same pool as the primary, which must stay writable; give it a pool, or the URL, of its own"
    )]
    SharedPool {
        /// The node given as a replica.
        node: NodeId,
    },
}

/// Checks the first answers of nodes, the primary's first; `None` stands for a node that gave none.
///
/// # Errors
/// If they are not one primary and replicas of it. A primary that did not answer is taken at its word.
pub fn check_first_answers(answers: impl IntoIterator<Item = Option<(Greeting, Answer)>>) -> Result<(), SetupError> {
    let mut primary = None;
    for (index, answer) in answers.into_iter().enumerate() {
        let node = NodeId::from_index(index);
        let Some((greeting, answer)) = answer else { continue };
        let (instance, database) = (greeting.instance, greeting.database);
        match (node.is_primary(), answer.role, primary) {
            (true, Role::Replica, _) => return Err(SetupError::NoPrimary),
            (true, Role::Primary, _) => primary = Some((instance, database)),
            (false, _, Some((primary, _))) if instance.system != primary.system => {
                return Err(SetupError::ForeignCluster { node, found: instance.system.0, expected: primary.system.0 });
            }
            (false, _, Some((_, named))) if database != named => return Err(SetupError::OtherDatabase { node }),
            (false, Role::Primary, Some((primary, _))) if instance != primary => {
                return Err(SetupError::TwoPrimaries { node });
            }
            (false, ..) => {}
        }
    }
    Ok(())
}

/// Checks that no two replicas have the same address.
///
/// # Errors
/// If two do.
pub fn check_addresses<A: PartialEq>(replicas: &[A]) -> Result<(), SetupError> {
    for (second, address) in replicas.iter().enumerate() {
        if let Some(first) = replicas[..second].iter().position(|other| other == address) {
            return Err(SetupError::ListedTwice {
                first: NodeId::from_index(first + 1),
                second: NodeId::from_index(second + 1),
            });
        }
    }
    Ok(())
}
