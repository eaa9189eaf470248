//! What all operations of a client share: its masters, how to ask them, and what runs in its background.

use std::future::Future;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures::FutureExt as _;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::claim::Claim;
use crate::environment::Environment;
use crate::error::{Error, MasterError, MasterFailure};
use crate::fence::{Token, TokenClock};
use crate::hand_overs::HandOvers;
use crate::key::LockKey;
use crate::master::{Extension, Master};
use crate::owner::Owner;
use crate::pending_releases::PendingReleases;
use crate::quorum::Quorum;
use crate::validity::later;
use crate::voters::Voters;

/// One clock for the whole process: two of its clients never propose the same token.
static TOKENS: LazyLock<Arc<TokenClock>> = LazyLock::new(Arc::default);

/// Answers as they come in, each with the index of its master.
pub(crate) type Answers<F> = FuturesUnordered<F>;

/// The masters of a client, and all that its operations share.
#[derive(Debug)]
pub(crate) struct Masters<M> {
    all: Arc<[M]>,
    call_timeout: Duration,
    tokens: Arc<TokenClock>,
    environment: Arc<dyn Environment>,
    /// Watchdogs, and calls that nobody waits for: a shutdown lets them end.
    background: TaskTracker,
    /// Cancelled by the shutdown.
    closing: CancellationToken,
    /// By master.
    pub(crate) pending_releases: Box<[PendingReleases]>,
    pub(crate) hand_overs: HandOvers,
}

impl<M: Master> Masters<M> {
    /// These masters, with the tokens of the whole process.
    pub(crate) fn new(all: Arc<[M]>, call_timeout: Duration, environment: Arc<dyn Environment>) -> Self {
        Self::with_tokens(all, call_timeout, environment, Arc::clone(&TOKENS))
    }

    /// These masters, with a token clock of their own.
    pub(crate) fn with_tokens(
        all: Arc<[M]>,
        call_timeout: Duration,
        environment: Arc<dyn Environment>,
        tokens: Arc<TokenClock>,
    ) -> Self {
        let voters = Arc::new(Voters::new(call_timeout));
        for (index, master) in all.iter().enumerate() {
            master.join(index, &voters);
        }
        Self {
            pending_releases: all.iter().map(|_| PendingReleases::default()).collect(),
            all,
            call_timeout,
            tokens,
            environment,
            background: TaskTracker::new(),
            closing: CancellationToken::new(),
            hand_overs: HandOvers::default(),
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[M] {
        &self.all
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Their majority.
    pub(crate) fn quorum(&self) -> Quorum {
        Quorum::of(self.all.len())
    }

    /// How long a call may take.
    pub(crate) fn call_timeout(&self) -> Duration {
        self.call_timeout
    }

    /// When a call that is sent at `sent_at` times out.
    pub(crate) fn call_deadline(&self, sent_at: Instant) -> Instant {
        later(sent_at, self.call_timeout)
    }

    /// When a call that nobody waits for times out: a master that is slow for a while can still answer it.
    pub(crate) fn patient_deadline(&self, sent_at: Instant) -> Instant {
        sent_at + 4 * self.call_timeout
    }

    // === calls ===

    /// Calls the masters of these indexes, all at once. The call answers with its index.
    pub(crate) fn ask<R: Future>(
        &self,
        indexes: impl IntoIterator<Item = usize>,
        call: impl Fn(Arc<[M]>, usize) -> R,
    ) -> Answers<R> {
        indexes.into_iter().map(|index| call(Arc::clone(&self.all), index)).collect()
    }

    /// Asks all masters to renew.
    pub(crate) fn ask_renew(
        &self,
        claim: &Arc<Claim>,
        sent_at: Instant,
    ) -> Answers<impl Future<Output = (usize, Result<Extension, MasterError>)> + Send + 'static + use<M>> {
        let deadline = self.call_deadline(sent_at);
        self.ask(0..self.count(), |masters, index| {
            let claim = Arc::clone(claim);
            async move { (index, masters[index].renew(&claim, deadline).await) }
        })
    }

    /// Lets calls that nobody waits for end in the background: dropped, they might not be sent at all.
    pub(crate) fn finish_in_background<F>(&self, mut answers: Answers<F>)
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        if !answers.is_empty() {
            self.spawn(async move { while answers.next().await.is_some() {} });
        }
    }

    /// Makes calls that nobody waits for. The requests are on their way when this returns, so that a next attempt on the
    /// same connections comes after them.
    pub(crate) fn send_in_background<F>(&self, call: impl FnOnce() -> Answers<F>)
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

    // === background and shutdown ===

    /// Runs a task that a shutdown waits for.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn(task);
    }

    /// Cancelled when the client is shut down.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Fails once the client is shut down.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.closing.is_cancelled() { Err(Error::ShutDown) } else { Ok(()) }
    }

    /// The future's output, unless the client is shut down before.
    pub(crate) async fn unless_closing<T>(&self, future: impl Future<Output = T>) -> Result<T, Error> {
        tokio::select! {
            // What is ready at once does not ask the token.
            biased;
            output = future => Ok(output),
            () = self.closing.cancelled() => Err(Error::ShutDown),
        }
    }

    /// Ends all operations, and waits until the background has ended, for three call timeouts at most.
    pub(crate) async fn shut_down(&self) {
        self.closing.cancel();
        self.background.close();
        // A renewal under way, then its seeds, then the release: each ends within a call timeout. A task that does not end
        // is a caller's that is not polled any more, and not waited for.
        let _ = tokio::time::timeout(self.call_timeout.saturating_mul(3), self.background.wait()).await;
    }

    // === tokens and randomness ===

    /// A new token for a lock, larger than all seen in its namespace.
    pub(crate) fn propose_token(&self, key: &LockKey) -> Result<Token, Error> {
        let micros = self.environment.unix_micros();
        self.tokens.propose(key.namespace(), micros).ok_or(Error::TokensRunOut)
    }

    /// A new owner of a lock, with a new token.
    pub(crate) fn new_owner(&self, key: &LockKey, identity: &str) -> Result<Owner, Error> {
        Ok(Owner::new(identity, self.propose_token(key)?, self.environment.nonce()))
    }

    /// Takes note of a token of a lock that was seen: later proposals are larger.
    pub(crate) fn observe_token(&self, key: &LockKey, token: Token) {
        self.tokens.observe(key.namespace(), token);
    }

    /// A random time between two bounds.
    pub(crate) fn random_between(&self, shortest: Duration, longest: Duration) -> Duration {
        shortest.saturating_add(self.environment.random_up_to(longest.saturating_sub(shortest)))
    }

    // === errors ===

    /// The masters of these indexes by name, with what they said.
    pub(crate) fn name_failures(&self, failures: impl IntoIterator<Item = (usize, MasterError)>) -> Vec<MasterFailure> {
        let name = |index: usize| self.all[index].name().to_owned();
        failures.into_iter().map(|(index, error)| MasterFailure { master: name(index), error }).collect()
    }

    /// Too few masters gave a usable answer.
    pub(crate) fn no_quorum(&self, usable: usize, failures: impl IntoIterator<Item = (usize, MasterError)>) -> Error {
        Error::no_quorum(self.quorum(), usable, self.name_failures(failures))
    }
}
