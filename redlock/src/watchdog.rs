//! The watchdog of one lease: renews it, seeds masters that lack it, and tells its holder in time when it is over.
//!
//! A task for each lease: what goes wrong in one touches no other. It never extends a validity that has run out, and
//! stops before a release is sent.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::StreamExt as _;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::client::Client;
use super::error::MasterFailure;
use super::lease::{Grant, Lease, LeaseOptions, LeaseState, Loss, Order, Renewal};
use super::master::{Bid, Kept, Master, Vote};
use super::release::Released;
use super::validity::valid_until;
use super::vote::Granted;

/// Longest pause before a renewal that had no majority is tried again; a tenth of the TTL where that is less. The shortest
/// is a third of it.
const RETRY_PAUSE: Duration = Duration::from_millis(150);

/// Starts the watchdog of a grant.
pub(super) fn start<N: Master>(client: &Client<N>, granted: Granted, options: &LeaseOptions) -> Lease {
    let Granted { bid, grant, late } = granted;
    let (sender, state) = watch::channel(LeaseState::Held(grant));
    let (order, orders) = oneshot::channel();
    let lease = Lease::new(bid.key().clone(), bid.owner().clone(), state, order);
    let watchdog = Watchdog {
        client: client.clone(),
        bid,
        renewal: options.renewal,
        max_renewals: options.max_renewals.unwrap_or(u64::MAX),
        is_shared: options.is_shared,
        state: sender,
    };
    client.spawn(async move { watchdog.run(orders, late).await });
    lease
}

struct Watchdog<N: Master> {
    client: Client<N>,
    bid: Arc<Bid>,
    renewal: Renewal,
    max_renewals: u64,
    is_shared: bool,
    state: watch::Sender<LeaseState>,
}

/// What a round of renewal came to.
enum Round {
    /// A majority holds the lease for the full TTL again. Sent at that instant.
    Renewed(Instant),
    /// A majority does not hold it: another has it, or may have had it since.
    Taken,
    /// Neither can be told: too few answers.
    Unknown(Vec<MasterFailure>),
}

type Late = futures::stream::BoxStream<'static, (usize, Result<Vote, super::error::MasterError>)>;

impl<N: Master> Watchdog<N> {
    async fn run(self, mut orders: oneshot::Receiver<Order>, late: Option<Late>) {
        let end = tokio::select! {
            // An order comes first: nothing is renewed once a release was asked for.
            biased;
            order = &mut orders => Err(order.ok()),
            // As if the lease were dropped.
            () = self.client.closing().cancelled() => Err(None),
            loss = self.keep(late) => Ok(loss),
        };
        match end {
            Ok(Loss::MaxRenewals) => self.let_holder_undo(orders).await,
            Ok(loss) => {
                self.end(LeaseState::Lost(loss));
                // A minority of masters may still hold it: the next holder need not wait for them.
                self.leave();
            }
            Err(Some(Order::Abandon)) => self.end(LeaseState::Released),
            Err(Some(Order::Release(done))) => {
                // Whoever asked may have gone meanwhile.
                let _ = done.send(Box::pin(self.release()).await);
            }
            // The lease was dropped, or the client shut down.
            Err(None) => {
                self.end(LeaseState::Released);
                self.leave();
            }
        }
    }

    /// Tells the holder that it is over, and keeps everybody else out while it undoes its work: until it has given the
    /// lease back or dropped it, at the latest to the end of validity.
    async fn let_holder_undo(self, mut orders: oneshot::Receiver<Order>) {
        let valid_until = self.held().map_or_else(Instant::now, |grant| grant.valid_until);
        self.end(LeaseState::Lost(Loss::MaxRenewals));
        let order = tokio::select! {
            order = &mut orders => order.ok(),
            () = sleep_until(valid_until) => None,
            () = self.client.closing().cancelled() => None,
        };
        match order {
            Some(Order::Abandon) => {}
            Some(Order::Release(done)) => {
                // Whoever asked may have gone meanwhile.
                let _ = done.send(Box::pin(self.client.release_bid(&self.bid)).await);
            }
            None => self.leave(),
        }
    }

    /// Gives back what nobody needs any more. By a shared grant another may hold the lock, though this one does not.
    fn leave(&self) {
        if !self.is_shared {
            self.give_back();
        }
    }

    fn give_back(&self) {
        self.client.give_back(&self.bid, (0..self.client.masters().len()).collect(), true);
    }

    /// Ends the lease for its holder, then gives it back on all masters. Nobody waits for the masters where it had ended
    /// before.
    async fn release(&self) -> Released {
        self.end(LeaseState::Released);
        if matches!(*self.state.borrow(), LeaseState::Lost(_)) {
            self.give_back();
            return Released::AlreadyExpired;
        }
        self.client.release_bid(&self.bid).await
    }

    /// Renews until the lease is lost.
    async fn keep(&self, late: Option<Late>) -> Loss {
        let mut due = match self.renewal {
            Renewal::Every(period) => Some(self.renewed_at() + period),
            Renewal::None => None,
        };
        if let Some(late) = late {
            // Ends by the masters' own limit on a call.
            Box::pin(self.count_late_votes(late, due)).await;
        }
        loop {
            let Some(grant) = self.held() else { return Loss::Expired };
            sleep_until(due.map_or(grant.valid_until, |due| due.min(grant.valid_until))).await;
            if self.held().is_none() {
                return Loss::Expired;
            }
            let (Some(at), Renewal::Every(period)) = (due, self.renewal) else { return Loss::Expired };
            if grant.renewals >= self.max_renewals {
                return Loss::MaxRenewals;
            }
            let round = tokio::select! {
                biased;
                () = sleep_until(grant.valid_until) => {
                    // Either the round has renewed it and was still collecting votes, or it is over.
                    if self.held().is_none() { return Loss::Expired }
                    Round::Renewed(self.renewed_at())
                }
                // Boxed: between its renewals, which is nearly always, a lease takes no room for one.
                round = Box::pin(self.renew()) => round,
            };
            due = Some(match round {
                Round::Renewed(sent_at) => sent_at + period,
                Round::Taken => return Loss::Taken,
                Round::Unknown(failures) => {
                    let error = self.client.no_quorum(self.client.masters().len() - failures.len(), failures);
                    tracing::debug!(key = %self.bid.key(), owner = self.bid.value(), %error, late = ?at.elapsed(), "not renewed");
                    let longest = RETRY_PAUSE.min(self.bid.ttl() / 10);
                    Instant::now() + self.client.random_between(longest / 3, longest)
                }
            });
        }
    }

    /// One round of renewal. Validity is extended as soon as a majority has renewed; the rest of the round is for the
    /// masters that lack the key.
    async fn renew(&self) -> Round {
        let quorum = self.client.quorum();
        let sent_at = Instant::now();
        let mut answers = self.client.ask_renew(&self.bid, sent_at);
        let (mut votes, mut missing, mut others, mut failures) = (0, Vec::new(), 0, Vec::new());
        while let Some((index, answer)) = answers.next().await {
            match answer {
                Ok(Kept::Yes) => votes += 1,
                Ok(Kept::Missing) => missing.push(index),
                Ok(Kept::Other) => others += 1,
                Err(error) => failures.push(self.client.failure(index, error)),
            }
            if votes == quorum.votes_needed() && !self.extend(sent_at, votes) {
                return Round::Unknown(failures);
            }
            // Armed masters without this owner's key could have granted another since the last renewal. Where they are a
            // majority, nobody can tell that they did not.
            if quorum.is_reached_by(missing.len() + others) {
                return Round::Taken;
            }
        }
        votes += self.seed(missing, &mut failures).await;
        if quorum.is_reached_by(votes) && self.extend(sent_at, votes) {
            Round::Renewed(sent_at)
        } else {
            Round::Unknown(failures)
        }
    }

    /// Gives the key to masters that lack it, only while the own validity runs. Answers how many took it.
    async fn seed(&self, missing: Vec<usize>, failures: &mut Vec<MasterFailure>) -> usize {
        if missing.is_empty() || self.held().is_none() {
            return 0;
        }
        let deadline = Instant::now() + self.client.call_timeout();
        let mut answers = self.client.ask(missing, |masters, index| {
            let bid = Arc::clone(&self.bid);
            async move { (index, masters[index].seed(&bid, deadline).await) }
        });
        let mut seeded = 0;
        while let Some((index, answer)) = answers.next().await {
            match answer {
                Ok(Kept::Yes) => seeded += 1,
                Ok(Kept::Missing | Kept::Other) => {}
                Err(error) => failures.push(self.client.failure(index, error)),
            }
        }
        seeded
    }

    async fn count_late_votes(&self, mut late: Late, due: Option<Instant>) {
        let collect = async {
            while let Some((_, vote)) = late.next().await {
                if vote == Ok(Vote::Yes) {
                    self.change(|grant| grant.votes += 1);
                }
            }
        };
        match due {
            Some(due) => drop(tokio::time::timeout_at(due, collect).await),
            None => collect.await,
        }
    }

    /// The grant, while it is valid.
    fn held(&self) -> Option<Grant> {
        self.state.borrow().valid_at(Instant::now())
    }

    fn renewed_at(&self) -> Instant {
        match &*self.state.borrow() {
            LeaseState::Held(grant) => grant.renewed_at,
            LeaseState::Lost(_) | LeaseState::Released => Instant::now(),
        }
    }

    /// Extends validity to a full TTL from `sent_at`. Answers whether it did: not where validity has run out meanwhile,
    /// since the holder may have been told so.
    fn extend(&self, sent_at: Instant, votes: usize) -> bool {
        self.change(|grant| {
            if grant.renewed_at < sent_at {
                grant.renewals += 1;
                grant.renewed_at = sent_at;
                grant.valid_until = valid_until(sent_at, self.bid.ttl());
            }
            grant.votes = votes;
        })
    }

    /// Changes the grant if it is still valid. The clock is read under the lock of the state, so that whoever found the
    /// lease over by [`Lease::is_held`] never finds it held again.
    fn change(&self, change: impl FnOnce(&mut Grant)) -> bool {
        self.state.send_if_modified(|state| match state {
            LeaseState::Held(grant) if Instant::now() < grant.valid_until => {
                change(grant);
                true
            }
            _ => false,
        })
    }

    /// Ends the lease for its holder. One that has run out before is lost, however it was to end.
    fn end(&self, end: LeaseState) {
        self.state.send_if_modified(|state| {
            let LeaseState::Held(grant) = *state else { return false };
            let ran_out = end == LeaseState::Released && Instant::now() >= grant.valid_until;
            *state = if ran_out { LeaseState::Lost(Loss::Expired) } else { end };
            true
        });
    }
}
