//! The watchdog of one lease: renews it, seeds masters that lack it, and tells its holder in time when it is over.
//!
//! Each lease has a task of its own, so that a fault in one touches no other. The watchdog never extends a validity that
//! has run out, and stops before a release is sent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::stream::{BoxStream, StreamExt as _};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::claim::Claim;
use crate::error::{Error, Loss, MasterError};
use crate::lease::{Grant, Lease, LeaseOptions, LeaseState, Order, Renewal};
use crate::master::{Master, Vote};
use crate::masters::Masters;
use crate::protocol::release::Released;
use crate::protocol::renewal::{RenewalTally, RenewalVerdict, retry_pause};
use crate::release::{release, release_in_background};
use crate::validity::later;

/// Votes that come in after the vote was won.
pub(crate) type LateVotes = BoxStream<'static, (usize, Result<Vote, MasterError>)>;

/// A claim that a majority granted.
pub(crate) struct Granted {
    pub(crate) claim: Arc<Claim>,
    pub(crate) grant: Grant,
    /// Answers that were not waited for.
    pub(crate) late: Option<LateVotes>,
    /// Masters of which it is not known whether the claim has reached them.
    pub(crate) unsettled: Vec<usize>,
}

/// Starts the watchdog of a grant.
pub(crate) fn start<M: Master>(masters: &Arc<Masters<M>>, granted: Granted, options: &LeaseOptions) -> Lease {
    let Granted { claim, grant, late, unsettled } = granted;
    let (sender, state) = watch::channel(LeaseState::Held(grant));
    let (order, orders) = oneshot::channel();
    let seeds = Arc::new(AtomicBool::new(options.seeds));
    let lease = Lease::new(claim.key().clone(), claim.owner().clone(), state, order, Arc::clone(&seeds));
    let watchdog = Watchdog {
        masters: Arc::clone(masters),
        claim,
        renewal: options.renewal,
        max_renewals: options.max_renewals.unwrap_or(u64::MAX),
        is_shared: options.is_shared,
        seeds,
        unsettled: Mutex::new(unsettled),
        state: sender,
    };
    masters.spawn(async move { watchdog.run(orders, late).await });
    lease
}

struct Watchdog<M: Master> {
    masters: Arc<Masters<M>>,
    claim: Arc<Claim>,
    renewal: Renewal,
    max_renewals: u64,
    is_shared: bool,
    /// Whether masters that lack the key are given it. The holder may change it at any time.
    seeds: Arc<AtomicBool>,
    /// Masters of which it is not known whether the acquisition has reached them.
    unsettled: Mutex<Vec<usize>>,
    state: watch::Sender<LeaseState>,
}

/// Outcome of a round of renewal.
enum Round {
    /// A majority has the lease for the full TTL again. The round was sent at that instant.
    Renewed(Instant),
    /// A majority does not have it: another owner has it, or may have had it since.
    Taken,
    /// Neither is known: too few masters answered, and the others said this.
    Unknown(Vec<(usize, MasterError)>),
}

impl<M: Master> Watchdog<M> {
    async fn run(self, mut orders: oneshot::Receiver<Order>, late: Option<LateVotes>) {
        let end = tokio::select! {
            // An order comes first: nothing is renewed once a release was asked for.
            biased;
            order = &mut orders => Err(order.ok()),
            // As if the lease were dropped.
            () = self.masters.closing().cancelled() => Err(None),
            loss = self.renew_until_lost(late) => Ok(loss),
        };
        match end {
            Ok(Loss::MaxRenewals) => self.let_holder_undo(orders).await,
            Ok(loss) => {
                self.end(LeaseState::Lost(loss));
                // A minority of masters may still have it: the next holder need not wait for them.
                self.release_unless_shared();
            }
            Err(Some(Order::Abandon)) => self.end(LeaseState::Released),
            Err(Some(Order::Release(done))) => {
                // The caller may have gone meanwhile.
                let _ = done.send(Box::pin(self.end_and_release()).await);
            }
            // The lease was dropped, or the client shut down.
            Err(None) => {
                self.end(LeaseState::Released);
                self.release_unless_shared();
            }
        }
    }

    /// Tells the holder that the lease is over, and keeps everybody else out while the holder undoes its work: until it
    /// has released or dropped the lease, at the latest until the end of validity.
    async fn let_holder_undo(self, mut orders: oneshot::Receiver<Order>) {
        let valid_until = self.valid_grant().map_or_else(Instant::now, |grant| grant.valid_until);
        self.end(LeaseState::Lost(Loss::MaxRenewals));
        let order = tokio::select! {
            order = &mut orders => order.ok(),
            () = sleep_until(valid_until) => None,
            () = self.masters.closing().cancelled() => None,
        };
        match order {
            Some(Order::Abandon) => {}
            Some(Order::Release(done)) => {
                // The caller may have gone meanwhile.
                let _ = done.send(Box::pin(release(&self.masters, &self.claim, self.unsettled())).await);
            }
            None => self.release_unless_shared(),
        }
    }

    /// Releases a lease that nobody needs any more. By a shared grant another process may still hold the lock.
    fn release_unless_shared(&self) {
        if !self.is_shared {
            self.release_in_background();
        }
    }

    fn release_in_background(&self) {
        release_in_background(&self.masters, &self.claim, (0..self.masters.count()).collect(), self.unsettled(), true);
    }

    /// Ends the lease for its holder, then releases it on all masters. Does not wait for the masters where the lease had
    /// ended before.
    async fn end_and_release(&self) -> Released {
        self.end(LeaseState::Released);
        if matches!(*self.state.borrow(), LeaseState::Lost(_)) {
            self.release_in_background();
            return Released::AlreadyExpired;
        }
        release(&self.masters, &self.claim, self.unsettled()).await
    }

    async fn renew_until_lost(&self, late: Option<LateVotes>) -> Loss {
        let mut due = match self.renewal {
            Renewal::Every(period) => Some(later(self.renewed_at(), period)),
            Renewal::None => None,
        };
        if let Some(late) = late {
            // Ends by the masters' own call timeout.
            Box::pin(self.count_late_votes(late, due)).await;
        }
        loop {
            let Some(grant) = self.valid_grant() else { return self.expired() };
            sleep_until(due.map_or(grant.valid_until, |due| due.min(grant.valid_until))).await;
            if self.valid_grant().is_none() {
                return self.expired();
            }
            let (Some(at), Renewal::Every(period)) = (due, self.renewal) else { return self.expired() };
            if grant.renewals >= self.max_renewals {
                return Loss::MaxRenewals;
            }
            let round = tokio::select! {
                biased;
                () = sleep_until(grant.valid_until) => {
                    // Either the round has renewed it and was still collecting votes, or the lease is over.
                    if self.valid_grant().is_none() { return self.expired() }
                    Round::Renewed(self.renewed_at())
                }
                // Boxed: nearly always a lease is between its renewals, and takes no room for one then.
                round = Box::pin(self.renew()) => round,
            };
            due = Some(match round {
                Round::Renewed(sent_at) => later(sent_at, period),
                Round::Taken => return Loss::Taken,
                Round::Unknown(failures) => {
                    let error = self.masters.no_quorum(self.masters.count() - failures.len(), failures);
                    tracing::debug!(key = %self.claim.key(), owner = self.claim.value(), %error, late = ?at.elapsed(), "not renewed");
                    if let Error::NoQuorum { failures, .. } = &error
                        && !failures.is_empty()
                    {
                        self.note_failure(error);
                    }
                    let (shortest, longest) = retry_pause(self.claim.ttl());
                    Instant::now() + self.masters.random_between(shortest, longest)
                }
            });
        }
    }

    /// One round of renewal. Validity is extended as soon as a majority has renewed. The rest of the round is for the
    /// masters that lack the key.
    async fn renew(&self) -> Round {
        let sent_at = Instant::now();
        let mut answers = self.masters.ask_renew(&self.claim, sent_at);
        let mut tally = RenewalTally::new(self.masters.quorum());
        while let Some((index, answer)) = answers.next().await {
            match tally.hear(index, answer) {
                RenewalVerdict::Renewed if !self.extend(sent_at, tally.votes()) => {
                    return Round::Unknown(tally.take_failures());
                }
                RenewalVerdict::Taken => return Round::Taken,
                RenewalVerdict::Renewed | RenewalVerdict::Open => {}
            }
        }
        self.seed(&mut tally).await;
        if tally.is_renewed() && self.extend(sent_at, tally.votes()) {
            Round::Renewed(sent_at)
        } else {
            Round::Unknown(tally.take_failures())
        }
    }

    /// Gives the key to masters that lack it, only while the own validity runs.
    async fn seed(&self, tally: &mut RenewalTally) {
        if tally.to_seed().is_empty() || !self.seeds.load(Ordering::Relaxed) || self.valid_grant().is_none() {
            return;
        }
        let deadline = self.masters.call_deadline(Instant::now());
        let mut answers = self.masters.ask(tally.to_seed().iter().copied(), |masters, index| {
            let claim = Arc::clone(&self.claim);
            async move { (index, masters[index].seed(&claim, deadline).await) }
        });
        while let Some((index, answer)) = answers.next().await {
            tally.hear_seed(index, answer);
        }
    }

    async fn count_late_votes(&self, mut late: LateVotes, due: Option<Instant>) {
        let collect = async {
            while let Some((index, vote)) = late.next().await {
                if vote.is_ok() {
                    self.settle(index);
                }
                if vote == Ok(Vote::Granted) {
                    self.change(Grant::with_late_vote);
                }
            }
        };
        match due {
            Some(due) => drop(tokio::time::timeout_at(due, collect).await),
            None => collect.await,
        }
    }

    fn unsettled(&self) -> Vec<usize> {
        self.unsettled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A master has answered the acquisition.
    fn settle(&self, master: usize) {
        // Only ever shortened: a panic cannot leave it half changed.
        self.unsettled.lock().unwrap_or_else(PoisonError::into_inner).retain(|unsettled| *unsettled != master);
    }

    /// The grant, while it is valid.
    fn valid_grant(&self) -> Option<Grant> {
        self.state.borrow().valid_at(Instant::now()).cloned()
    }

    /// The loss of a lease that is over by the clock.
    fn expired(&self) -> Loss {
        match &*self.state.borrow() {
            LeaseState::Held(grant) => grant.expired(),
            LeaseState::Lost(_) | LeaseState::Released => Loss::Expired { last_failure: None },
        }
    }

    /// Takes note of a failed renewal, for the loss that may follow. Wakes nobody: the lease is held as before.
    fn note_failure(&self, error: Error) {
        self.state.send_if_modified(|state| {
            if let LeaseState::Held(grant) = state {
                grant.last_failure = Some(Arc::new(error));
            }
            false
        });
    }

    fn renewed_at(&self) -> Instant {
        match &*self.state.borrow() {
            LeaseState::Held(grant) => grant.renewed_at,
            LeaseState::Lost(_) | LeaseState::Released => Instant::now(),
        }
    }

    /// Extends validity to a full TTL from `sent_at`. Returns whether it did.
    fn extend(&self, sent_at: Instant, votes: usize) -> bool {
        self.change(|grant, now| grant.extended(sent_at, self.claim.ttl(), votes, now))
    }

    /// Replaces the grant, if there is another as of now. The clock is read under the lock of the state: where
    /// [`Lease::is_held`] has found the lease over, it never finds it held again.
    fn change(&self, change: impl FnOnce(Grant, Instant) -> Option<Grant>) -> bool {
        self.state.send_if_modified(|state| {
            let LeaseState::Held(grant) = state else { return false };
            let Some(changed) = change(grant.clone(), Instant::now()) else { return false };
            *grant = changed;
            true
        })
    }

    /// Ends the lease for its holder.
    fn end(&self, end: LeaseState) {
        self.state.send_if_modified(|state| {
            let Some(ended) = state.ended(end, Instant::now()) else { return false };
            *state = ended;
            true
        });
    }
}
