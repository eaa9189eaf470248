//! Acquire, renew, release and read by vote.

use std::sync::Arc;
use std::time::Duration;

use super::error::{Error, NodeFailure};
use super::fence::Token;
use super::key::LockKey;
use super::lease::{Lease, LeaseOptions};
use super::node::Node;
use super::owner::Owner;
use super::quorum::Quorum;
use super::redis_node::RedisNode;

/// How long to wait for a lock that another holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until it is granted.
    Forever,
    /// At most so long.
    For(Duration),
}

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lease was still held by a majority, and is gone from every node that answered.
    Held,
    /// The lease had already ended on a majority. What was left of it is gone.
    AlreadyExpired,
    /// Too few nodes answered to tell. What they hold of the lease ends by itself after its TTL.
    Unknown,
}

/// What a majority of nodes shows of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Value of the key on a majority of nodes: somebody holds the lock.
    pub holder: Option<String>,
    /// What is left of it on the node of that majority where the least is left, less drift and the time of the answer.
    pub remaining: Option<Duration>,
    /// Nodes that show this holder.
    pub votes: usize,
    /// The largest token that a node has seen for this lock.
    pub fence: Option<Token>,
    /// Nodes that did not answer, and why.
    pub failures: Vec<NodeFailure>,
}

/// A client of N independent nodes. Cheap to clone; clones share connections.
#[derive(Debug)]
pub struct Client<N: Node = RedisNode> {
    nodes: Arc<[N]>,
    node_timeout: Duration,
}

impl<N: Node> Clone for Client<N> {
    fn clone(&self) -> Self {
        Self { nodes: Arc::clone(&self.nodes), node_timeout: self.node_timeout }
    }
}

impl<N: Node> Client<N> {
    /// A client of these nodes. `node_timeout` limits each call to one node; 50 ms unless nodes are far apart.
    #[must_use]
    pub fn new(nodes: impl IntoIterator<Item = N>, node_timeout: Duration) -> Self {
        Self { nodes: nodes.into_iter().collect(), node_timeout }
    }

    /// Its nodes.
    #[must_use]
    pub fn nodes(&self) -> &[N] {
        &self.nodes
    }

    /// The majority of its nodes.
    #[must_use]
    pub fn quorum(&self) -> Quorum {
        Quorum::of(self.nodes.len())
    }

    /// Takes the lock if it is free now.
    pub async fn try_acquire(&self, _key: &LockKey, _options: &LeaseOptions) -> Result<Lease, Error> {
        todo!()
    }

    /// Takes the lock, waiting while another holds it or too few nodes answer. The error is the last attempt's.
    pub async fn acquire(&self, _key: &LockKey, _options: &LeaseOptions, _wait: Wait) -> Result<Lease, Error> {
        todo!()
    }

    /// Goes on with a grant that another process made: renews it once, and holds it if a majority still had it.
    pub async fn adopt(&self, _key: &LockKey, _owner: &Owner, _options: &LeaseOptions) -> Result<Lease, Error> {
        todo!()
    }

    /// Gives a grant back on all nodes. Never fails for long: ends within one limit on a call.
    pub async fn release(&self, _key: &LockKey, _owner: &Owner) -> Released {
        todo!()
    }

    /// Reads who holds the lock. [`Error::NoQuorum`] where too few nodes answer to tell.
    pub async fn read(&self, _key: &LockKey) -> Result<Observation, Error> {
        todo!()
    }
}
