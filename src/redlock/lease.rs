//! A held lock: watched by its holder, renewed until it is released or lost.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::client::Released;
use super::key::LockKey;
use super::owner::Owner;

/// How a lease is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// A watchdog renews it back to the full TTL so often.
    Every(Duration),
    /// Nobody renews it: it ends after its TTL.
    None,
}

/// What a lease shall be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseOptions {
    /// Who asks: unique among those that contend.
    pub identity: String,
    /// Time to live of the lock on each node.
    pub ttl: Duration,
    /// How it is kept.
    pub renewal: Renewal,
    /// Validity that the caller needs at least; less is given back.
    pub min_validity: Duration,
}

impl LeaseOptions {
    /// A lease of `ttl` for `identity`, renewed each third of it.
    #[must_use]
    pub fn new(identity: impl Into<String>, ttl: Duration) -> Self {
        let renewal = Renewal::Every(ttl / 3);
        Self { identity: identity.into(), ttl, renewal, min_validity: Duration::ZERO }
    }
}

/// A proven hold, as of its last renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// When the acquisition was sent (for an adopted lease: when it was adopted).
    pub acquired_at: Instant,
    /// When the last successful acquisition or renewal was sent.
    pub renewed_at: Instant,
    /// Until when it is proven, on this process's monotonic clock.
    pub valid_until: Instant,
    /// Nodes that held it at that time, as far as they had answered.
    pub votes: usize,
    /// Successful renewals so far.
    pub renewals: u64,
}

/// Why a lease ended against its holder's will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It could not be renewed before its validity ended.
    Expired,
    /// A majority of nodes does not hold it any more: another has it, or may have had it since.
    Taken,
}

/// Where a lease stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Held until [`Grant::valid_until`], if it is not renewed before.
    Held(Grant),
    /// Ended against the holder's will. Final: the lock may be acquired again, as another lease.
    Lost(Loss),
    /// Given back. Final.
    Released,
}

/// A held lock. Dropped, it is released in the background.
#[derive(Debug)]
pub struct Lease {
    key: LockKey,
    owner: Owner,
    state: watch::Receiver<LeaseState>,
}

impl Lease {
    /// The lock.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// Who holds it: identity and fencing token.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Where it stands, and changes of that: each renewal, the loss, the release.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<LeaseState> {
        self.state.clone()
    }

    /// Whether it is proven held right now, by the local monotonic clock alone: no network, and no waiting.
    #[must_use]
    pub fn is_held(&self) -> bool {
        todo!()
    }

    /// What is left of the proven hold; zero once it is over.
    #[must_use]
    pub fn validity(&self) -> Duration {
        todo!()
    }

    /// Ends when the lease is lost or released. Never later than the end of validity (by the runtime's timer; whoever
    /// is about to act asks [`Self::is_held`]).
    pub async fn ended(&self) -> LeaseState {
        todo!()
    }

    /// Stops renewing, then gives the lock back on all nodes.
    pub async fn release(self) -> Released {
        todo!()
    }

    /// Stops renewing and leaves the lock on the nodes as it is, for another process to [adopt](super::Client::adopt).
    pub fn abandon(self) {
        todo!()
    }
}
