//! What the engine asks of a master: a few calls, and the answers to them.
//!
//! The engine is generic over this trait, so that the same code runs on Redis servers and on simulated masters.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::claim::Claim;
use crate::error::MasterError;
use crate::fence::Token;
use crate::key::LockKey;
use crate::owner::Owner;
use crate::voters::Voters;

/// A master's answer to [`Master::acquire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// The key is set for this owner, its token is the largest so far, and the master is armed.
    Granted,
    /// Another owner has the key.
    HeldByOther,
    /// The key is set, but the master has seen a token as large or larger for this lock. The caller must release the
    /// key and propose a larger token.
    StaleToken,
}

/// A master's answer to [`Master::renew`] and [`Master::seed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// The key is this owner's, now for the full TTL.
    Extended,
    /// The master does not have the key.
    Missing,
    /// Another owner has the key.
    HeldByOther,
}

/// A master's answer to [`Master::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseAnswer {
    /// The key was not this owner's. Nothing was changed.
    NotOwner,
    /// The key was deleted. No waiter was told: none was asked to be told, or the queue has none.
    Deleted,
    /// The key was deleted, and the first contender in the queue was told.
    HandedOn,
}

/// A master's answer to [`Master::read`]: what it knows of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Value of the key, ours or another library's.
    pub owner: Option<String>,
    /// Time to live of the key on the master's clock. `None` without a key, and for a key that never expires (not ours).
    pub remaining: Option<Duration>,
    /// The largest token seen for this lock.
    pub fence: Option<Token>,
}

/// A contender's place in the queue that a master keeps for a lock.
///
/// The queue is a hint: it says who tries first when the lock is released. Mutual exclusion never depends on it. A place
/// brings its contender a message and nothing more.
#[derive(Clone, Debug)]
pub struct Place {
    name: Box<str>,
    inbox: Token,
    priority: i16,
    since: Instant,
}

impl Place {
    /// The place of `contender`, which must be unique. It hears of releases by `inbox`. The highest `priority` goes
    /// first; among equals, the contender that has waited longest, counted from `since`.
    #[must_use]
    pub fn new(contender: &Owner, inbox: Token, priority: i16, since: Instant) -> Self {
        Self { name: format!("{contender} {inbox}").into(), inbox, priority, since }
    }

    /// Its name in the queue: `<contender> <inbox>`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The inbox by which the contender hears of releases.
    #[must_use]
    pub fn inbox(&self) -> Token {
        self.inbox
    }

    /// Higher goes first.
    #[must_use]
    pub fn priority(&self) -> i16 {
        self.priority
    }

    /// How long the contender has waited until now. A master subtracts that from its own clock, so the clocks of the
    /// contenders do not matter.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.since.elapsed()
    }
}

/// A master's answer to [`Master::enqueue`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queued {
    /// What the master knows of the lock, without its fence.
    pub reading: Reading,
    /// Contenders ahead of this one.
    pub ahead: usize,
}

/// What a [subscriber](Master::subscribe) hears from a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The master, by the index given when subscribing.
    pub master: usize,
    /// What it said.
    pub news: News,
}

/// News of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The lock was released while a contender was in the master's queue.
    Released {
        /// Token of the grant that ended. It tells the messages of several releases apart.
        token: Token,
        /// Name of the place that was first in that queue. It was removed from the queue.
        next: Box<str>,
    },
    /// The connection was broken: releases may have been missed.
    Gap,
}

/// How long a master keeps a place in a queue that is not entered anew. A contender that lives enters about once a second.
pub const QUEUE_LIFETIME: Duration = Duration::from_secs(5);

/// An independent master that stores locks.
///
/// Every call ends by `deadline`, at the latest with [`MasterError::Timeout`]. There is one exception: where this process
/// itself was stopped meanwhile, the master gets the same time again. A call that timed out, or whose future is dropped,
/// may or may not have been executed. Repeating it does no harm. A call whose future is ready when it is first polled was
/// not sent.
pub trait Master: Send + Sync + 'static {
    /// Name of the master in errors and logs.
    fn name(&self) -> &str;

    /// Makes it master `index` of a client, which calls this once, before all else. It must not answer a call on a server
    /// to which `voters` does not [admit](Voters::admit) it: one server has one vote.
    fn join(&self, index: usize, voters: &Arc<Voters>);

    /// Resolves as soon as the master can be called: at once, or when it is connected again.
    fn reachable(&self) -> impl Future<Output = ()> + Send;

    /// Sets the key for the claim's owner and TTL if it is free, and votes on the owner's token.
    fn acquire(&self, claim: &Claim, deadline: Instant) -> impl Future<Output = Result<Vote, MasterError>> + Send;

    /// Resets the expiry to the TTL if the key is the owner's. Never creates a key: an expired lease stays expired. Carries
    /// the token into the fence: the master votes for no smaller one, also where it had lost what it knew.
    fn renew(&self, claim: &Claim, deadline: Instant) -> impl Future<Output = Result<Extension, MasterError>> + Send;

    /// Sets the key for the owner where the master lacks it, never over another owner's, and carries the token into the
    /// fence. Only for a holder that is still valid.
    fn seed(&self, claim: &Claim, deadline: Instant) -> impl Future<Output = Result<Extension, MasterError>> + Send;

    /// Deletes the key if it is the owner's. With `wake` it also removes the first place from the queue, if there is
    /// one, and tells that contender and the next one. Does not ask whether the master is armed.
    fn release(
        &self,
        claim: &Claim,
        wake: bool,
        deadline: Instant,
    ) -> impl Future<Output = Result<ReleaseAnswer, MasterError>> + Send;

    /// Reads owner, remaining time and fence.
    fn read(&self, key: &LockKey, deadline: Instant) -> impl Future<Output = Result<Reading, MasterError>> + Send;

    /// Enters the lock's queue, or keeps the place that it has there, and reads the lock in the same call.
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

    /// Sends the messages for that inbox of the lock to `wake`, as news of master `index`, from the moment the call
    /// returns until the receiver is closed. Continues after a reconnect, which [`News::Gap`] reports.
    fn subscribe(
        &self,
        key: &LockKey,
        inbox: Token,
        index: usize,
        wake: mpsc::UnboundedSender<Heard>,
        deadline: Instant,
    ) -> impl Future<Output = Result<(), MasterError>> + Send;
}
