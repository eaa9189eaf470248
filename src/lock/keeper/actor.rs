//! The actor of one lock: acquires it, keeps it, adopts a grant of another process, and publishes the state.
//!
//! A new assignment interrupts the actor wherever it waits. Its lease survives that, and also a panic.

mod report;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use redlock_engine::{Error, Lease, LeaseOptions, LeaseState, Loss, Owner, Released, Wait};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{error, info};

use super::assignment::{Assignment, LockTarget, WhenLost};
use super::context::{KeeperContext, StatePublisher};
use super::observe::observe;
use super::state::{Ending, State, Trouble};
use crate::duration::with_jitter;
use crate::lock::connections::Engine;
use crate::lock::events::LockEvent;
use crate::lock::subject::Subject;

/// How long to wait after an attempt without a majority. Jitter adds up to half of it.
const RETRY: Duration = Duration::from_secs(1);
/// How long to wait before a grant is adopted again.
const ADOPT_RETRY: Duration = Duration::from_millis(250);
/// How long an actor pauses after a panic.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// A held lease, and the terms on which it is held.
#[derive(Debug)]
struct Holding {
    lease: Lease,
    engine: Arc<Engine>,
    options: LeaseOptions,
}

/// The actor of one lock.
#[derive(Debug)]
pub(crate) struct Actor {
    subject: Arc<Subject>,
    context: Arc<KeeperContext>,
    assignments: watch::Receiver<(LockTarget, Assignment)>,
    states: StatePublisher,
    holding: Option<Holding>,
    /// A grant whose lease was abandoned, to be adopted on other terms.
    carried: Option<Owner>,
    /// The holder that the last `Contended` Event named.
    announced: Option<String>,
}

impl Actor {
    /// An actor that has not started.
    pub(crate) fn new(
        subject: Arc<Subject>,
        context: Arc<KeeperContext>,
        assignments: watch::Receiver<(LockTarget, Assignment)>,
        state: watch::Sender<State>,
    ) -> Self {
        let states = StatePublisher::new(Arc::clone(&subject), Arc::clone(&context), state);
        Self { subject, context, assignments, states, holding: None, carried: None, announced: None }
    }

    /// Runs until the last assignment is done. A panic touches no other actor: it is reported, and the actor
    /// continues with its lease.
    pub(crate) async fn run(mut self) {
        loop {
            if AssertUnwindSafe(self.follow_assignments()).catch_unwind().await.is_ok() {
                return;
            }
            error!(namespace = self.subject.namespace, name = self.subject.name, "the actor of a lock panicked");
            self.send(LockEvent::KeeperRestarted);
            sleep(RESTART_PAUSE).await;
        }
    }

    async fn follow_assignments(&mut self) {
        loop {
            let mut assignments = self.assignments.clone();
            let (target, assignment) = assignments.borrow_and_update().clone();
            let is_last = assignment.is_last();
            let changed = tokio::select! {
                biased;
                changed = assignments.changed(), if !is_last => changed,
                () = self.work(&target, &assignment) => if is_last { return } else { assignments.changed().await },
            };
            if changed.is_err() {
                // The keeper is gone, so the process ends: another process adopts the grant.
                self.abandon();
                return;
            }
        }
    }

    async fn work(&mut self, target: &LockTarget, assignment: &Assignment) {
        match assignment {
            Assignment::Hold { options, adopt, when_lost, .. } => {
                self.hold(target, options, adopt.clone(), *when_lost).await;
            }
            Assignment::Follow { options, owner } => self.follow(target, options, owner).await,
            Assignment::Observe => observe(target, &self.states).await,
            Assignment::Release(recorded) => self.release(target, recorded.clone()).await,
            Assignment::Abandon => self.abandon(),
            #[cfg(test)]
            Assignment::Fail => {
                self.context.fail_once(&self.subject.uid);
                std::future::pending::<()>().await;
            }
        }
    }

    // --- holding ---

    async fn hold(&mut self, target: &LockTarget, options: &LeaseOptions, adopt: Option<Owner>, when_lost: WhenLost) {
        target.engine.settled().await;
        let mut lost = match self.resume(target, options, adopt).await {
            Ok(()) => None,
            Err(loss) => Some(self.report_loss(loss)),
        };
        self.set_seeds(true);
        loop {
            if let (Some(loss), WhenLost::Stop { generation }) = (&lost, when_lost) {
                self.states.publish(State::Stopped { loss: loss.clone(), generation });
                return std::future::pending().await;
            }
            if self.holding.is_none() {
                let lease = self.contend(target, options, lost.as_ref()).await;
                self.take_over(target, options, lease);
                self.report_grant();
            }
            let ended = self.follow_lease().await;
            lost = Some(self.report_loss(ended));
        }
    }

    async fn follow(&mut self, target: &LockTarget, options: &LeaseOptions, owner: &Owner) {
        // What the leader does not record is not followed: a grant of this process in an earlier term, say.
        if let Some(holding) = self.holding.take_if(|holding| holding.lease.owner() != owner) {
            holding.lease.abandon();
        }
        self.carried.take_if(|carried| carried != owner);
        // The leader releases it: a seed from here could cross that, and bring the key back.
        self.set_seeds(false);
        target.engine.settled().await;
        if self.resume(target, &options.clone().seeds(false), Some(owner.clone())).await.is_ok() {
            self.follow_lease().await;
        }
        // Only the leader decides whether, and when, the lock is acquired again.
        std::future::pending::<()>().await;
    }

    /// Resumes a grant: one of this actor, on the same terms or on others, or one of an earlier process.
    async fn resume(
        &mut self,
        target: &LockTarget,
        options: &LeaseOptions,
        recorded: Option<Owner>,
    ) -> Result<(), Loss> {
        self.release_former(target, options).await;
        let is_later = |owner: &Owner| recorded.as_ref().is_some_and(|recorded| recorded.token() > owner.token());
        // Another leader has granted it anew, between two terms of this process.
        self.carried.take_if(|carried| is_later(carried));
        if let Some(holding) = self.holding.take() {
            let is_outdated = is_later(holding.lease.owner());
            let is_on_these_terms = holding.options.clone().seeds(options.seeds) == *options;
            if !is_outdated && Arc::ptr_eq(&holding.engine, &target.engine) && is_on_these_terms {
                self.holding = Some(holding);
                return Ok(());
            }
            self.carried = (!is_outdated).then(|| holding.lease.owner().clone());
            holding.lease.abandon();
        }
        let Some(owner) = self.carried.clone().or(recorded) else { return Ok(()) };
        let result = self.adopt(target, options, &owner).await;
        self.carried = None;
        result.map(|lease| self.take_over(target, options, lease))
    }

    /// Releases a grant to another holder than `options` names. It was made between the decision for the new holder and the
    /// assignment: what was known before is released already.
    async fn release_former(&mut self, target: &LockTarget, options: &LeaseOptions) {
        let is_former = |owner: &Owner| owner.identity() != options.identity;
        if let Some(holding) = self.holding.take_if(|holding| is_former(holding.lease.owner())) {
            self.set_held(false);
            holding.lease.release().await;
        }
        if let Some(owner) = self.carried.take_if(|owner| is_former(owner)) {
            target.engine.client().release(&target.key, &owner).await;
        }
    }

    /// Tries to adopt the grant of `owner` until the masters answer, or until the grant must have ended: nobody renews it,
    /// so it lasts no longer than its TTL from now.
    async fn adopt(&mut self, target: &LockTarget, options: &LeaseOptions, owner: &Owner) -> Result<Lease, Loss> {
        let deadline = Instant::now() + options.ttl;
        loop {
            let error = match target.engine.client().adopt(&target.key, owner, options).await {
                Ok(lease) => return Ok(lease),
                Err(Error::Expired) => return Err(Loss::Expired { last_failure: None }),
                Err(Error::Lost { .. }) => return Err(Loss::Taken),
                Err(error) => error,
            };
            target.report_refused_credentials(&error);
            self.states.publish(State::Adopting { owner: owner.clone(), trouble: Some(Trouble::from(&error)) });
            if Instant::now() >= deadline {
                return Err(Loss::Expired { last_failure: Some(Arc::new(error)) });
            }
            sleep(ADOPT_RETRY).await;
        }
    }

    /// Contends until the lock is granted.
    async fn contend(&mut self, target: &LockTarget, options: &LeaseOptions, lost: Option<&Loss>) -> Lease {
        let client = target.engine.client();
        self.states.publish(State::Contending { lost: lost.cloned(), answer: None });
        loop {
            self.context.leadership.wait_until_leader().await;
            let error = match client.try_acquire(&target.key, options).await {
                Ok(lease) => match self.confirm_leadership(lease).await {
                    Some(lease) => return lease,
                    None => continue,
                },
                Err(error) => error,
            };
            if !matches!(error, Error::Contended { .. } | Error::Split) {
                self.report_refusal(target, lost, &error);
                sleep(with_jitter(RETRY)).await;
                continue;
            }
            // No attempt of this actor is under way now: a grant of its identity is left over from an earlier process.
            let holder = match &error {
                Error::Contended { holder, .. } => holder.as_deref(),
                _ => None,
            };
            match holder.and_then(|value| value.parse::<Owner>().ok()) {
                Some(owner) if owner.identity() == options.identity && self.context.leadership.is_leader() => {
                    // No status records this grant: its process ended before it wrote one. Whether a majority ever voted
                    // for its token is unknown, and nobody uses it, so it is released rather than adopted.
                    client.release(&target.key, &owner).await;
                    sleep(ADOPT_RETRY).await;
                }
                _ => {
                    self.report_refusal(target, lost, &error);
                    if let Some(lease) = self.wait_in_queue(target, options, lost).await {
                        return lease;
                    }
                }
            }
        }
    }

    /// Waits in the queue while another holds the lock, and publishes the holder. `None` if the lock is not granted for
    /// another reason.
    async fn wait_in_queue(
        &mut self,
        target: &LockTarget,
        options: &LeaseOptions,
        lost: Option<&Loss>,
    ) -> Option<Lease> {
        let client = target.engine.client();
        let mut granted = std::pin::pin!(client.acquire(&target.key, options, Wait::Forever));
        let mut free = 0;
        loop {
            tokio::select! {
                biased;
                result = &mut granted => match result {
                    Ok(lease) => return self.confirm_leadership(lease).await,
                    Err(error) => {
                        self.report_refusal(target, lost, &error);
                        sleep(with_jitter(RETRY)).await;
                        return None;
                    }
                },
                () = sleep(with_jitter(RETRY)) => {}
            }
            let seen = tokio::select! {
                biased;
                result = &mut granted => match result {
                    Ok(lease) => return self.confirm_leadership(lease).await,
                    Err(_) => return None,
                },
                seen = client.read(&target.key) => seen,
            };
            match seen {
                Ok(seen) if seen.holder.is_some() => {
                    free = 0;
                    let error = Error::Contended { holder: seen.holder, remaining: seen.remaining };
                    self.report_refusal(target, lost, &error);
                }
                // Free but not granted: once may be the moment between two holders, twice has another cause.
                Ok(_) if free == 0 => free = 1,
                Ok(_) => return None,
                Err(error) => self.report_refusal(target, lost, &error),
            }
        }
    }

    /// The grant, if this process still leads. Otherwise the grant is released before anybody knows of it.
    async fn confirm_leadership(&self, lease: Lease) -> Option<Lease> {
        if self.context.leadership.is_leader() {
            return Some(lease);
        }
        lease.release().await;
        None
    }

    /// Follows the held lease until it ends.
    async fn follow_lease(&mut self) -> Loss {
        let Some(holding) = &self.holding else { return Loss::Expired { last_failure: None } };
        let owner = holding.lease.owner().clone();
        let mut states = holding.lease.state();
        let mut counted = None;
        let loss = loop {
            let state = states.borrow_and_update().clone();
            match state {
                LeaseState::Held(grant) => {
                    let before = counted.replace(grant.renewals).unwrap_or(grant.renewals);
                    self.context.metrics.renewals(grant.renewals.saturating_sub(before));
                    self.states.publish(State::Held { owner: owner.clone(), grant });
                }
                LeaseState::Lost(loss) => break loss,
                LeaseState::Released => break Loss::Expired { last_failure: None },
            }
            if states.changed().await.is_err() {
                // The watchdog is gone: nobody renews the lease any more.
                break Loss::Expired { last_failure: None };
            }
        };
        self.holding = None;
        loss
    }

    fn take_over(&mut self, target: &LockTarget, options: &LeaseOptions, lease: Lease) {
        self.holding = Some(Holding { lease, engine: Arc::clone(&target.engine), options: options.clone() });
        self.announced = None;
        self.set_held(true);
    }

    // --- ending ---

    async fn release(&mut self, target: &LockTarget, recorded: Option<Owner>) {
        let owner = self.carried.take().or(recorded);
        let released = match (self.holding.take(), owner) {
            (Some(holding), _) => Some(holding.lease.release().await),
            (None, Some(owner)) => {
                target.engine.settled().await;
                Some(target.engine.client().release(&target.key, &owner).await)
            }
            (None, None) => None,
        };
        if let Some(released @ (Released::Freed | Released::AlreadyExpired)) = released {
            info!(namespace = self.subject.namespace, name = self.subject.name, ?released, "released");
        }
        self.set_held(false);
        self.states.publish(State::Ended(released.map_or(Ending::Nothing, Ending::Released)));
    }

    fn abandon(&mut self) {
        if let Some(holding) = self.holding.take() {
            holding.lease.abandon();
        }
        self.context.metrics.forget_lock(&self.subject.namespace, &self.subject.name);
        self.states.publish(State::Ended(Ending::Abandoned));
    }

    /// Whether the lease, if there is one, gives masters the key that lack it.
    fn set_seeds(&self, seeds: bool) {
        if let Some(holding) = &self.holding {
            holding.lease.set_seeds(seeds);
        }
    }
}
