//! What the engine asks of a master: a few calls, each answered for itself.
//!
//! The engine is generic over this trait, so that the same code runs on Redis servers and on simulated masters.

use std::future::Future;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::error::MasterError;
use super::fence::Token;
use super::key::LockKey;
use super::owner::Owner;

/// A grant that is asked for or held: the lock, its owner, and for how long.
#[derive(Debug)]
pub struct Bid {
    key: LockKey,
    owner: Owner,
    value: String,
    ttl: Duration,
}

impl Bid {
    /// A bid of `owner` for `ttl`.
    #[must_use]
    pub fn new(key: LockKey, owner: Owner, ttl: Duration) -> Self {
        let value = owner.to_string();
        Self { key, owner, value, ttl }
    }

    /// The lock.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// Who asks for it, or has it.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The owner as it stands on a master: the value of the key.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Time to live on each master.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.ttl
    }
}

/// A master's answer to [`Master::acquire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// The key is set for this owner, its token is the largest so far, and the master is armed.
    Yes,
    /// Another owner has the key.
    Held,
    /// The key is set, but the master has seen as large a token for this lock: give it back and propose a larger one.
    StaleToken,
}

/// A master's answer to [`Master::renew`] and [`Master::seed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The key is this owner's, now for the full TTL.
    Yes,
    /// The master does not have the key.
    Missing,
    /// Another owner has the key.
    Other,
}

/// What a master knows of a lock: the answer to [`Master::read`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Value of the key, ours or another library's.
    pub owner: Option<String>,
    /// What is left of it on the master's clock; `None` without a key, or for a key that never expires (not ours).
    pub remaining: Option<Duration>,
    /// The largest token seen for this lock.
    pub fence: Option<Token>,
}

/// A master's answer to [`Master::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// The key was not this owner's. Nothing was changed.
    No,
    /// It was deleted, and nobody waited for it, as far as the master knows.
    Yes,
    /// It was deleted, and who is first in the queue was told.
    Passed,
}

/// The place of one that waits for a lock, in the queue that a master keeps for it.
///
/// The queue is a hint: it says who shall try first when the lock is released, and no more. Mutual exclusion never
/// depends on it, and a place is worth nothing but a message.
#[derive(Clone, Debug)]
pub struct Place {
    name: Box<str>,
    inbox: Token,
    priority: i16,
    since: Instant,
}

impl Place {
    /// The place of `waiter`, which is unique, and hears of releases by `inbox`. Of several the highest `priority` goes
    /// first, then who waits `since` the earliest.
    #[must_use]
    pub fn new(waiter: &Owner, inbox: Token, priority: i16, since: Instant) -> Self {
        Self { name: format!("{waiter} {inbox}").into(), inbox, priority, since }
    }

    /// What it is called in the queue: `<waiter> <inbox>`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// By which channel it hears of releases.
    #[must_use]
    pub fn inbox(&self) -> Token {
        self.inbox
    }

    /// Higher goes first.
    #[must_use]
    pub fn priority(&self) -> i16 {
        self.priority
    }

    /// How long it has waited until now. A master counts that back on its own clock, so that the clocks of those who wait
    /// do not matter.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.since.elapsed()
    }
}

/// A master's answer to [`Master::enqueue`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queued {
    /// What the master knows of the lock, but for its fence.
    pub reading: Reading,
    /// How many wait before this one.
    pub ahead: usize,
}

/// What one who [waits](Master::subscribe) hears from a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Which master, by the index given when subscribing.
    pub master: usize,
    /// What it said.
    pub news: News,
}

/// News of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It was released while somebody was in the master's queue.
    Released {
        /// Token of the grant that ended: tells the messages of several releases apart.
        token: Token,
        /// Name of the place that was first in that queue, and was taken off it.
        next: Box<str>,
    },
    /// The connection was broken: releases may have been missed.
    Gap,
}

/// How long a master keeps a queue that nobody enters (or enters anew) any more.
pub const QUEUE_LIFETIME: Duration = Duration::from_secs(5);

/// An independent master that keeps locks.
///
/// Every call ends by `deadline`, at the latest with [`MasterError::Timeout`]; only where this process itself was stopped
/// meanwhile the master is given the same time again. A call that timed out, or whose future is dropped, may or may not
/// have been executed; to repeat it does no harm.
pub trait Master: Send + Sync + 'static {
    /// What the master is called in errors and logs.
    fn name(&self) -> &str;

    /// Sets the key for the bid's owner and TTL if it is free, and votes on the owner's token.
    fn acquire(&self, bid: &Bid, deadline: Instant) -> impl Future<Output = Result<Vote, MasterError>> + Send;

    /// Resets the expiry to the TTL if the key is the owner's. Never creates a key: nothing expired is revived.
    fn renew(&self, bid: &Bid, deadline: Instant) -> impl Future<Output = Result<Kept, MasterError>> + Send;

    /// Sets the key for the owner where the master lacks it, never over another's. Only for a holder whose own validity
    /// runs.
    fn seed(&self, bid: &Bid, deadline: Instant) -> impl Future<Output = Result<Kept, MasterError>> + Send;

    /// Deletes the key if it is the owner's, and with `wake` takes the first place off the queue, if there is one, and
    /// tells it so, and the one after it. Does not ask whether the master is armed.
    fn release(
        &self,
        bid: &Bid,
        wake: bool,
        deadline: Instant,
    ) -> impl Future<Output = Result<Freed, MasterError>> + Send;

    /// Reads owner, remaining time and fence.
    fn read(&self, key: &LockKey, deadline: Instant) -> impl Future<Output = Result<Reading, MasterError>> + Send;

    /// Enters the lock's queue, or keeps the place that it has there, and reads the lock in the same go.
    fn enqueue(
        &self,
        key: &LockKey,
        place: &Place,
        deadline: Instant,
    ) -> impl Future<Output = Result<Queued, MasterError>> + Send;

    /// Leaves the lock's queue.
    fn dequeue(
        &self,
        key: &LockKey,
        place: &Place,
        deadline: Instant,
    ) -> impl Future<Output = Result<(), MasterError>> + Send;

    /// Sends what is told to that inbox of the lock on this master to `wake`, as the news of master `index`, from the
    /// moment the call returns until the receiver is closed. Goes on through reconnects, of which [`News::Gap`] tells.
    fn subscribe(
        &self,
        key: &LockKey,
        inbox: Token,
        index: usize,
        wake: mpsc::UnboundedSender<Heard>,
        deadline: Instant,
    ) -> impl Future<Output = Result<(), MasterError>> + Send;
}
