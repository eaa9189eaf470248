//! Giving a grant back: on all masters, again where one did not answer, and so that whoever waits is not overtaken.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::stream::StreamExt as _;
use tokio::time::Instant;

use super::client::{Answers, Client};
use super::error::MasterError;
use super::key::LockKey;
use super::master::{Bid, Freed, Master};
use super::owner::Owner;
use super::quorum::Decision;
use super::wait::HEAD_START;

/// Pauses before a release is sent again to masters that did not answer.
const RELEASE_PAUSES: [Duration; 3] =
    [Duration::from_millis(20), Duration::from_millis(100), Duration::from_millis(500)];
/// How many releases may be on their way again at a time; beyond it the keys are left to their TTL.
pub(super) const RELEASES_AGAIN: usize = 1024;

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lease was still held by a majority, and is gone from every master that answered.
    Held,
    /// The lease had already ended on a majority. What was left of it is gone.
    AlreadyExpired,
    /// Too few masters answered to tell. What they hold of the lease ends by itself after its TTL.
    Unknown,
}

impl<N: Master> Client<N> {
    /// Gives a grant back on all masters, also one of another process; whoever is first in the queue is told. Ends as
    /// soon as a majority has answered, at the latest after one limit on a call. What is on its way then goes on in the
    /// background, and masters that did not answer are asked again there, up to three times.
    pub async fn release(&self, key: &LockKey, owner: &Owner) -> Released {
        self.release_bid(&Arc::new(Bid::new(key.clone(), owner.clone(), Duration::ZERO))).await
    }

    pub(super) async fn release_bid(&self, bid: &Arc<Bid>) -> Released {
        let mut answers = self.ask_release(bid, 0..self.masters().len(), true);
        let (mut held, mut not_held, mut passed) = (0, 0, false);
        let mut unheard = Vec::new();
        let decision = loop {
            match answers.next().await {
                Some((_, Ok(Freed::No))) => not_held += 1,
                Some((_, Ok(freed))) => {
                    held += 1;
                    passed |= freed == Freed::Passed;
                }
                Some((index, Err(MasterError::Timeout))) => unheard.push(index),
                Some((_, Err(_))) => {}
                None => break Decision::Open,
            }
            match self.quorum().decide(held, not_held) {
                Decision::Open => {}
                decided => break decided,
            }
        };
        self.finish_release(bid, true, answers, unheard);
        if passed {
            self.note_passed(bid.key());
        }
        match decision {
            Decision::Yes => Released::Held,
            Decision::No => Released::AlreadyExpired,
            Decision::Open => Released::Unknown,
        }
    }

    /// Asks some masters to delete what they hold of a grant.
    fn ask_release<I: IntoIterator<Item = usize>>(
        &self,
        bid: &Arc<Bid>,
        indexes: I,
        wake: bool,
    ) -> Answers<impl Future<Output = (usize, Result<Freed, MasterError>)> + Send + 'static + use<N, I>> {
        let deadline = Instant::now() + self.inner.call_timeout;
        self.ask(indexes, |masters, index| {
            let bid = Arc::clone(bid);
            async move { (index, masters[index].release(&bid, wake, deadline).await) }
        })
    }

    /// Deletes what is left of a grant, in the background. The requests are on their way when this returns, so that a
    /// next attempt on the same connections comes after them.
    pub(super) fn give_back(&self, bid: &Arc<Bid>, indexes: Vec<usize>, wake: bool) {
        // Outside a runtime (its shutdown drops leases) nothing can be sent: the keys expire.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let mut answers = self.ask_release(bid, indexes, wake);
        let mut unheard = Vec::new();
        // What is there at once; above all it sends the requests.
        let _ = collect_unheard(&mut answers, &mut unheard).now_or_never();
        self.finish_release(bid, wake, answers, unheard);
    }

    /// Waits in the background for the rest of a release's answers. A master that did not answer in time is asked again,
    /// some times: it would keep the lock from everybody until its TTL is over. One that is not reachable at all is
    /// not: calls to it fail at once, and there would be ever more of them.
    fn finish_release<F>(&self, bid: &Arc<Bid>, wake: bool, mut answers: Answers<F>, mut unheard: Vec<usize>)
    where
        F: Future<Output = (usize, Result<Freed, MasterError>)> + Send + 'static,
    {
        if answers.is_empty() && unheard.is_empty() {
            return;
        }
        let (client, bid) = (self.clone(), Arc::clone(bid));
        self.spawn(async move {
            collect_unheard(&mut answers, &mut unheard).await;
            for pause in RELEASE_PAUSES {
                if unheard.is_empty() {
                    return;
                }
                let Ok(_slot) = client.inner.releases_again.try_acquire() else { return };
                if client.unless_closing(tokio::time::sleep(pause)).await.is_err() {
                    return;
                }
                let mut answers = client.ask_release(&bid, std::mem::take(&mut unheard), wake);
                collect_unheard(&mut answers, &mut unheard).await;
            }
        });
    }

    fn passed(&self) -> MutexGuard<'_, HashMap<LockKey, Instant>> {
        // The map is only looked up and added to: a panic cannot leave it half changed.
        self.inner.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_passed(&self, key: &LockKey) {
        let mut passed = self.passed();
        passed.retain(|_, at| at.elapsed() < HEAD_START);
        passed.insert(key.clone(), Instant::now());
    }

    /// Whether this client has just passed the lock on to one who waited: who asks again now goes to the end of the
    /// queue.
    pub(super) fn has_just_passed(&self, key: &LockKey) -> bool {
        self.passed().get(key).is_some_and(|at| at.elapsed() < HEAD_START)
    }
}

/// Takes note of the masters that do not answer in time. Loses nothing when dropped.
async fn collect_unheard<F>(answers: &mut Answers<F>, unheard: &mut Vec<usize>)
where
    F: Future<Output = (usize, Result<Freed, MasterError>)>,
{
    while let Some((index, answer)) = answers.next().await {
        if answer == Err(MasterError::Timeout) {
            unheard.push(index);
        }
    }
}
