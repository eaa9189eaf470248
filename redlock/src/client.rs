//! The client of N masters: asks them all at once and decides by majority.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::environment::{Environment, System};
use super::error::{Error, MasterError, MasterFailure};
use super::fence::{Token, TokenClock};
use super::key::LockKey;
use super::lease::{Grant, Lease, LeaseOptions};
use super::line::Lines;
use super::master::{Bid, Kept, Master, Place};
use super::owner::Owner;
use super::quorum::Quorum;
use super::redis_master::RedisMaster;
use super::release::RELEASES_AGAIN;
use super::validity::valid_until;
use super::vote;
use super::wait::{self, Session};
use super::watchdog;

/// How long to wait for a lock that another holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until it is granted.
    Forever,
    /// At most so long. Calls that are under way then still come to their end, each within the limit on a call; and who
    /// is first in line makes one attempt in any case.
    For(Duration),
}

impl Wait {
    /// When it ends; `None` for never, and for a time beyond the clock's end.
    pub(super) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Forever => None,
            Self::For(time) => Instant::now().checked_add(time),
        }
    }

    /// What is left of a wait that ends then.
    pub(super) fn until(deadline: Option<Instant>) -> Self {
        deadline.map_or(Self::Forever, |at| Self::For(at.saturating_duration_since(Instant::now())))
    }
}

/// The future's output, or `None` when the deadline comes first.
pub(super) async fn until<T>(deadline: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, future).await.ok(),
        None => Some(future.await),
    }
}

/// A client of N independent masters. Cheap to clone: clones share connections, and the line of those who wait here.
#[derive(Debug)]
pub struct Client<N: Master = RedisMaster> {
    pub(super) inner: Arc<Inner<N>>,
}

#[derive(Debug)]
pub(super) struct Inner<N> {
    masters: Arc<[N]>,
    pub(super) call_timeout: Duration,
    pub(super) tokens: Arc<TokenClock>,
    environment: Arc<dyn Environment>,
    /// Watchdogs, and calls that nobody waits for: what a shutdown has to let come to its end.
    background: TaskTracker,
    /// Cancelled by the shutdown.
    closing: CancellationToken,
    /// Bounds the releases that are being sent again.
    pub(super) releases_again: Semaphore,
    /// Who contends for which lock through this client.
    lines: Arc<Lines<Session>>,
    /// When a release of this client passed a lock on to one who waited.
    pub(super) passed: Mutex<HashMap<LockKey, Instant>>,
}

/// One clock for the whole process: two of its clients never propose the same token.
static TOKENS: LazyLock<Arc<TokenClock>> = LazyLock::new(Arc::default);

impl<N: Master> Clone for Client<N> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<N: Master> Client<N> {
    /// A client of these masters: the same ones, N of them, for every client of a lock, and each a server of its own. One
    /// that is given twice votes twice, and majorities of different masters need not share one.
    ///
    /// `call_timeout` is the limit on each call to one master: 50 ms unless masters are far apart.
    #[must_use]
    pub fn new(masters: impl IntoIterator<Item = N>, call_timeout: Duration) -> Self {
        Self::assemble(masters, call_timeout, Arc::clone(&TOKENS), Arc::new(System))
    }

    /// The same with a wall clock, randomness and tokens of its own, as another process would have: for simulations.
    #[must_use]
    pub fn with_environment(
        masters: impl IntoIterator<Item = N>,
        call_timeout: Duration,
        environment: Arc<dyn Environment>,
    ) -> Self {
        Self::assemble(masters, call_timeout, Arc::default(), environment)
    }

    fn assemble(
        masters: impl IntoIterator<Item = N>,
        call_timeout: Duration,
        tokens: Arc<TokenClock>,
        environment: Arc<dyn Environment>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                masters: masters.into_iter().collect(),
                call_timeout,
                tokens,
                environment,
                background: TaskTracker::new(),
                closing: CancellationToken::new(),
                releases_again: Semaphore::new(RELEASES_AGAIN),
                lines: Arc::default(),
                passed: Mutex::default(),
            }),
        }
    }

    /// Ends the client, all its clones included, before the process ends: what waits or asks for a lock ends with
    /// [`Error::ShutDown`], every lease that is still held is given back as if it were dropped, and what is on its way
    /// to the masters arrives, also at those that nobody waited for any more. (A lease that another process shall
    /// [adopt](Self::adopt) is [abandoned](Lease::abandon) before.) Returns at the latest after three limits on a call.
    ///
    /// A [shared](LeaseOptions::is_shared) lease ends here, and stays on the masters. Masters that did not answer are not
    /// asked again.
    pub async fn shutdown(&self) {
        self.inner.closing.cancel();
        self.inner.background.close();
        // A renewal under way, then its seeds, then the release: each ends by itself within a limit. A task that does
        // not is a caller's that is no more polled, and not waited for.
        let _ = tokio::time::timeout(3 * self.inner.call_timeout, self.inner.background.wait()).await;
    }

    /// Ends when the client is shut down.
    pub(super) fn closing(&self) -> &CancellationToken {
        &self.inner.closing
    }

    /// The future's output, unless the client is shut down before.
    pub(super) async fn unless_closing<T>(&self, future: impl Future<Output = T>) -> Result<T, Error> {
        tokio::select! {
            // What is ready at once costs no look at the token.
            biased;
            output = future => Ok(output),
            () = self.inner.closing.cancelled() => Err(Error::ShutDown),
        }
    }

    /// Runs a task that a shutdown waits for.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.inner.background.spawn(task);
    }

    /// Lets calls that nobody waits for come to their end: dropped, they might not be sent at all.
    pub(super) fn finish_in_background<F>(&self, mut answers: Answers<F>)
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        if !answers.is_empty() {
            self.spawn(async move { while answers.next().await.is_some() {} });
        }
    }

    /// Its masters.
    #[must_use]
    pub fn masters(&self) -> &[N] {
        &self.inner.masters
    }

    /// The majority of its masters.
    #[must_use]
    pub fn quorum(&self) -> Quorum {
        Quorum::of(self.inner.masters.len())
    }

    /// Takes the lock if it is free now, whoever waits for it. Ends within one limit on a call; where masters have seen
    /// larger tokens it reads them and votes again, in eight votes at most.
    pub async fn try_acquire(&self, key: &LockKey, options: &LeaseOptions) -> Result<Lease, Error> {
        let granted = vote::acquire(self, key, options).await?;
        Ok(watchdog::start(self, granted, options))
    }

    /// Takes the lock, waiting while another holds it or too few masters answer. Those who wait get it by priority, then
    /// in the order in which they began, of all processes as far as the masters' queues can be reached; the first attempt
    /// of each takes a lock that is free as [`Self::try_acquire`] does.
    ///
    /// When the time is over, the error is what stood in the way last. Only [`Error::Invalid`], which waiting does
    /// not change, and [`Error::ShutDown`] end the wait before.
    pub async fn acquire(&self, key: &LockKey, options: &LeaseOptions, wait: Wait) -> Result<Lease, Error> {
        wait::acquire(self, key, options, wait).await
    }

    /// Goes on with a grant that another process made: renews it once, and holds it if a majority still had it. Nothing
    /// is seeded: this process has no validity of its own yet that would permit it. The lease is
    /// [shared](LeaseOptions::is_shared): the other process may live. Of the options, identity, priority and
    /// `min_validity` are not used.
    ///
    /// [`Error::Lost`] where a majority does not have the grant any more, [`Error::Expired`] where the answers came too
    /// late to count on, [`Error::NoQuorum`] where neither can be told: then it may be tried again.
    pub async fn adopt(&self, key: &LockKey, owner: &Owner, options: &LeaseOptions) -> Result<Lease, Error> {
        options.check()?;
        if self.inner.closing.is_cancelled() {
            return Err(Error::ShutDown);
        }
        let bid = Arc::new(Bid::new(key.clone(), owner.clone(), options.ttl));
        self.inner.tokens.observe(key.namespace(), owner.token());
        let sent_at = Instant::now();
        let mut answers = self.ask_renew(&bid, sent_at);
        let quorum = self.quorum();
        let (mut votes, mut elsewhere, mut failures) = (0, 0, Vec::new());
        while let Some((index, answer)) = answers.next().await {
            match answer {
                Ok(Kept::Yes) => votes += 1,
                Ok(Kept::Missing | Kept::Other) => elsewhere += 1,
                Err(error) => failures.push(self.failure(index, error)),
            }
            if quorum.is_reached_by(elsewhere) {
                return Err(Error::Lost { held_elsewhere: elsewhere, masters: quorum.masters() });
            }
        }
        if !quorum.is_reached_by(votes) {
            return Err(self.no_quorum(votes + elsewhere, failures));
        }
        let valid_until = valid_until(sent_at, options.ttl);
        if Instant::now() >= valid_until {
            return Err(Error::Expired);
        }
        let grant = Grant { acquired_at: sent_at, renewed_at: sent_at, valid_until, votes, renewals: 0 };
        let options = LeaseOptions { is_shared: true, ..options.clone() };
        Ok(watchdog::start(self, vote::Granted { bid, grant, late: None }, &options))
    }

    /// A new token for a lock, larger than all seen in its namespace.
    pub(super) fn propose_token(&self, key: &LockKey) -> Result<Token, Error> {
        let micros = self.inner.environment.unix_micros();
        self.inner
            .tokens
            .propose(key.namespace(), micros)
            .ok_or_else(|| Error::Invalid("fencing tokens have run out".to_owned()))
    }

    /// A random time between two bounds.
    pub(super) fn random_between(&self, shortest: Duration, longest: Duration) -> Duration {
        shortest + self.inner.environment.random_up_to(longest.saturating_sub(shortest))
    }

    /// Who contends for which lock through this client.
    pub(super) fn lines(&self) -> &Arc<Lines<Session>> {
        &self.inner.lines
    }

    /// Limit on one call to one master.
    pub(super) fn call_timeout(&self) -> Duration {
        self.inner.call_timeout
    }

    /// Calls the masters of these indexes, all at once. The call answers with its index.
    pub(super) fn ask<R: Future>(
        &self,
        indexes: impl IntoIterator<Item = usize>,
        call: impl Fn(Arc<[N]>, usize) -> R,
    ) -> Answers<R> {
        indexes.into_iter().map(|index| call(Arc::clone(&self.inner.masters), index)).collect()
    }

    /// Asks all masters to renew.
    pub(super) fn ask_renew(
        &self,
        bid: &Arc<Bid>,
        sent_at: Instant,
    ) -> Answers<impl Future<Output = (usize, Result<Kept, MasterError>)> + Send + 'static + use<N>> {
        let deadline = sent_at + self.inner.call_timeout;
        self.ask(0..self.masters().len(), |masters, index| {
            let bid = Arc::clone(bid);
            async move { (index, masters[index].renew(&bid, deadline).await) }
        })
    }

    /// Enters the queues of some masters, in the background.
    pub(super) fn join_queue(&self, key: &LockKey, place: &Arc<Place>, indexes: Vec<usize>) {
        self.send_in_background(|| {
            let deadline = Instant::now() + self.inner.call_timeout;
            self.ask(indexes, |masters, index| {
                let (key, place) = (key.clone(), Arc::clone(place));
                async move { masters[index].enqueue(&key, &place, deadline).await }
            })
        });
    }

    /// Takes a place off the queues of some masters, in the background.
    pub(super) fn leave_queue(&self, key: &LockKey, place: &Arc<Place>, indexes: Vec<usize>) {
        self.send_in_background(|| {
            let deadline = Instant::now() + self.inner.call_timeout;
            self.ask(indexes, |masters, index| {
                let (key, place) = (key.clone(), Arc::clone(place));
                async move { masters[index].dequeue(&key, &place, deadline).await }
            })
        });
    }

    /// Makes calls that nobody waits for. The requests are on their way when this returns, so that a next attempt on
    /// the same connections comes after them.
    fn send_in_background<F>(&self, call: impl FnOnce() -> Answers<F>)
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        // Outside a runtime (its shutdown drops leases) nothing can be sent: the keys expire.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let mut answers = call();
        while let Some(Some(_)) = answers.next().now_or_never() {}
        self.finish_in_background(answers);
    }

    /// That master, with what it said.
    pub(super) fn failure(&self, index: usize, error: MasterError) -> MasterFailure {
        MasterFailure { master: self.masters()[index].name().to_owned(), error }
    }

    /// Too few masters were usable.
    pub(super) fn no_quorum(&self, usable: usize, failures: Vec<MasterFailure>) -> Error {
        let quorum = self.quorum();
        Error::NoQuorum { usable, needed: quorum.votes_needed(), masters: quorum.masters(), failures }
    }
}

/// Answers as they come in, each with the index of its master.
pub(super) type Answers<F> = FuturesUnordered<F>;
