//! What the engine asks of a node: six calls, each answered for itself.
//!
//! The engine is generic over this trait, so that the same code runs on Redis servers and on simulated nodes.

use std::future::Future;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::error::NodeError;
use super::fence::Token;
use super::key::LockKey;
use super::owner::Owner;

/// A node's answer to [`Node::acquire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// The key is set for this owner, its token is the largest so far, and the node is armed.
    Yes,
    /// Another owner has the key.
    Held,
    /// The key is set, but the node has seen as large a token for this lock: give it back and propose a larger one.
    StaleToken,
}

/// A node's answer to [`Node::renew`] and [`Node::seed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The key is this owner's, now for the full TTL.
    Yes,
    /// The node does not have the key.
    Missing,
    /// Another owner has the key.
    Other,
}

/// What a node knows of a lock: the answer to [`Node::read`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Value of the key, ours or another library's.
    pub owner: Option<String>,
    /// What is left of it on the node's clock; `None` without a key, or for a key that never expires (not ours).
    pub remaining: Option<Duration>,
    /// The largest token seen for this lock.
    pub fence: Option<Token>,
}

/// An independent master that keeps locks. Every call ends by `deadline` at the latest, with [`NodeError::Timeout`], and a
/// call whose future is dropped may or may not have been executed.
pub trait Node: Send + Sync + 'static {
    /// What the node is called in errors and logs.
    fn name(&self) -> &str;

    /// Sets the key for `owner` and `ttl` if it is free, and votes on the owner's token.
    fn acquire(
        &self,
        key: &LockKey,
        owner: &Owner,
        ttl: Duration,
        deadline: Instant,
    ) -> impl Future<Output = Result<Vote, NodeError>> + Send;

    /// Resets the expiry to `ttl` if the key is `owner`'s. Never creates a key: nothing expired is revived.
    fn renew(
        &self,
        key: &LockKey,
        owner: &Owner,
        ttl: Duration,
        deadline: Instant,
    ) -> impl Future<Output = Result<Kept, NodeError>> + Send;

    /// Sets the key for `owner` where the node lacks it, never over another's. Only for a holder whose own validity runs.
    fn seed(
        &self,
        key: &LockKey,
        owner: &Owner,
        ttl: Duration,
        deadline: Instant,
    ) -> impl Future<Output = Result<Kept, NodeError>> + Send;

    /// Deletes the key if it is `owner`'s, and with `wake` wakes those who wait for it. Answers whether it was.
    fn release(
        &self,
        key: &LockKey,
        owner: &Owner,
        wake: bool,
        deadline: Instant,
    ) -> impl Future<Output = Result<bool, NodeError>> + Send;

    /// Reads owner, remaining time and fence.
    fn read(&self, key: &LockKey, deadline: Instant) -> impl Future<Output = Result<Reading, NodeError>> + Send;

    /// Sends `index` to `wake` at each release of the key on this node, from the moment the call returns until the
    /// receiver is closed.
    fn subscribe(
        &self,
        key: &LockKey,
        index: usize,
        wake: mpsc::UnboundedSender<usize>,
        deadline: Instant,
    ) -> impl Future<Output = Result<(), NodeError>> + Send;
}
