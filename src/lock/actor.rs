//! One lock's actor: takes the lock, keeps it, goes on with it, and says where it stands.
//!
//! What an actor is to do is its job; another job interrupts it wherever it waits. What it holds survives that, and also
//! a panic.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{debug, error, info, warn};

use super::Subject;
use super::connections::Engine;
use super::identity::shown;
use super::job::{Job, Task};
use super::keeper::Shared;
use super::notices::Notice;
use super::state::{Ending, Refusal, State, Trouble};
use redlock_engine::{Error, Lease, LeaseOptions, LeaseState, Loss, Owner, Released, Wait};

/// How long to wait before masters that did not make a majority are asked again; up to half of it again is added at random.
const RETRY: Duration = Duration::from_secs(1);
/// How long to wait before a grant is tried again to be gone on with.
const ADOPT_RETRY: Duration = Duration::from_millis(250);
/// How long an actor that panicked pauses.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// A held lease, and the terms on which it is held.
#[derive(Debug)]
struct Holding {
    lease: Lease,
    engine: Arc<Engine>,
    options: LeaseOptions,
}

/// One lock's actor.
#[derive(Debug)]
pub struct Actor {
    pub(super) subject: Arc<Subject>,
    pub(super) shared: Arc<Shared>,
    jobs: watch::Receiver<Job>,
    state: watch::Sender<State>,
    holding: Option<Holding>,
    /// A grant whose lease was put down to be picked up on other terms.
    carried: Option<Owner>,
    /// The holder whom an Event was last published about.
    blocker: Option<String>,
}

impl Actor {
    /// An actor that has not begun.
    #[must_use]
    pub fn new(
        subject: Arc<Subject>,
        shared: Arc<Shared>,
        jobs: watch::Receiver<Job>,
        state: watch::Sender<State>,
    ) -> Self {
        Self { subject, shared, jobs, state, holding: None, carried: None, blocker: None }
    }

    /// Works until a job that ends it. A panic touches no other actor: it is reported, and the actor goes on with what it
    /// holds.
    pub async fn run(mut self) {
        loop {
            if AssertUnwindSafe(self.live()).catch_unwind().await.is_ok() {
                return;
            }
            error!(namespace = self.subject.namespace, name = self.subject.name, "the keeper of a lock panicked");
            self.shared.notices.tell(&self.subject.reference, Notice::KeeperRestarted);
            sleep(RESTART_PAUSE).await;
        }
    }

    async fn live(&mut self) {
        loop {
            let mut jobs = self.jobs.clone();
            let job = jobs.borrow_and_update().clone();
            let ends = matches!(job.task, Task::Release(_) | Task::Abandon);
            let changed = tokio::select! {
                biased;
                changed = jobs.changed(), if !ends => changed,
                () = self.work(&job) => if ends { return } else { jobs.changed().await },
            };
            if changed.is_err() {
                // The keeper is gone, so the process is ending: another goes on with the grant.
                self.abandon();
                return;
            }
        }
    }

    async fn work(&mut self, job: &Job) {
        match &job.task {
            Task::Hold { options, adopt } => self.hold(job, options, adopt.clone()).await,
            Task::Follow { options, owner } => self.follow(job, options, owner).await,
            Task::Observe => self.observe(job).await,
            Task::Release(owner) => self.give_back(job, owner.clone()).await,
            Task::Abandon => self.abandon(),
            #[cfg(test)]
            Task::Fail => {
                self.shared.fail_once(&self.subject.uid);
                std::future::pending::<()>().await;
            }
        }
    }

    // --- holding ---

    async fn hold(&mut self, job: &Job, options: &LeaseOptions, adopt: Option<Owner>) {
        job.engine.settled().await;
        let mut lost = match self.go_on(job, options, adopt).await {
            Ok(()) => None,
            Err(loss) => Some(self.report_loss(loss)),
        };
        loop {
            if self.holding.is_none() {
                let lease = self.contend(job, options, lost).await;
                self.take_up(job, options, lease);
                self.report_grant();
            }
            let ended = self.keep().await;
            lost = Some(self.report_loss(ended));
        }
    }

    async fn follow(&mut self, job: &Job, options: &LeaseOptions, owner: &Owner) {
        job.engine.settled().await;
        if self.go_on(job, options, Some(owner.clone())).await.is_ok() {
            self.keep().await;
        }
        // Whether it is acquired again, and when, is for the leader to decide.
        std::future::pending::<()>().await;
    }

    /// Goes on with what is held: by this actor, on these terms or others, or by an earlier process.
    async fn go_on(&mut self, job: &Job, options: &LeaseOptions, recorded: Option<Owner>) -> Result<(), Loss> {
        if let Some(holding) = self.holding.take() {
            if Arc::ptr_eq(&holding.engine, &job.engine) && holding.options == *options {
                self.holding = Some(holding);
                return Ok(());
            }
            self.carried = Some(holding.lease.owner().clone());
            holding.lease.abandon();
        }
        let Some(owner) = self.carried.clone().or(recorded) else { return Ok(()) };
        let result = self.adopt(job, options, &owner).await;
        self.carried = None;
        result.map(|lease| self.take_up(job, options, lease))
    }

    /// Tries to go on with `owner`'s grant until masters say what has become of it, or until it must have ended: nobody
    /// renews it, and it lasts no longer than its TTL from now.
    async fn adopt(&mut self, job: &Job, options: &LeaseOptions, owner: &Owner) -> Result<Lease, Loss> {
        let over = Instant::now() + options.ttl;
        loop {
            let error = match job.engine.client().adopt(&job.key, owner, options).await {
                Ok(lease) => return Ok(lease),
                Err(Error::Expired) => return Err(Loss::Expired),
                Err(Error::Lost { .. } | Error::Contended { .. }) => return Err(Loss::Taken),
                Err(error) => error,
            };
            job.note_refused_credentials(&error);
            self.publish(State::Adopting { owner: owner.clone(), trouble: Some(Trouble::from(&error)) });
            if Instant::now() >= over {
                return Err(Loss::Expired);
            }
            sleep(ADOPT_RETRY).await;
        }
    }

    /// Contends until the lock is granted.
    async fn contend(&mut self, job: &Job, options: &LeaseOptions, lost: Option<Loss>) -> Lease {
        let client = job.engine.client();
        self.publish(State::Contending { lost, answer: None });
        loop {
            self.shared.leadership.wait_until_leader().await;
            let error = match client.try_acquire(&job.key, options).await {
                Ok(lease) => match self.granted(lease).await {
                    Some(lease) => return lease,
                    None => continue,
                },
                Err(error) => error,
            };
            if !matches!(error, Error::Contended { .. }) {
                self.refused(job, lost, &error);
                sleep(with_jitter(RETRY)).await;
                continue;
            }
            // Asked while nothing of this actor is on its way: what is shown as its own is left over.
            let holder = client.read(&job.key).await.ok().and_then(|seen| seen.holder);
            match holder.as_deref().and_then(|value| value.parse::<Owner>().ok()) {
                Some(owner) if owner.identity() == options.identity && self.shared.leadership.is_leader() => {
                    // A grant that no status tells of: its process ended between the two, and whether a majority ever
                    // voted for its token is not known. Nobody uses it, so it is given back rather than gone on with.
                    client.release(&job.key, &owner).await;
                    sleep(ADOPT_RETRY).await;
                }
                _ => {
                    self.refused(job, lost, &Error::Contended { holder, remaining: None });
                    if let Some(lease) = self.wait_in_line(job, options, lost).await {
                        return lease;
                    }
                }
            }
        }
    }

    /// Waits while another holds the lock, and says who. `None` when that is not what keeps it from being granted.
    async fn wait_in_line(&mut self, job: &Job, options: &LeaseOptions, lost: Option<Loss>) -> Option<Lease> {
        let client = job.engine.client();
        let mut granted = std::pin::pin!(client.acquire(&job.key, options, Wait::Forever));
        let mut free = 0;
        loop {
            tokio::select! {
                biased;
                result = &mut granted => match result {
                    Ok(lease) => return self.granted(lease).await,
                    Err(error) => {
                        self.refused(job, lost, &error);
                        sleep(with_jitter(RETRY)).await;
                        return None;
                    }
                },
                () = sleep(with_jitter(RETRY)) => {}
            }
            let seen = tokio::select! {
                biased;
                result = &mut granted => match result {
                    Ok(lease) => return self.granted(lease).await,
                    Err(_) => return None,
                },
                seen = client.read(&job.key) => seen,
            };
            match seen {
                Ok(seen) if seen.holder.is_some() => {
                    free = 0;
                    let error = Error::Contended { holder: seen.holder, remaining: seen.remaining };
                    self.refused(job, lost, &error);
                }
                // Free, and yet not granted: once may be the moment between two holders, twice has another cause.
                Ok(_) if free == 0 => free = 1,
                Ok(_) => return None,
                Err(error) => self.refused(job, lost, &error),
            }
        }
    }

    /// A grant, unless this process has ceased to lead meanwhile: it is given back before anyone was told of it.
    async fn granted(&self, lease: Lease) -> Option<Lease> {
        if self.shared.leadership.is_leader() {
            return Some(lease);
        }
        lease.release().await;
        None
    }

    /// Follows a held lease to its end.
    async fn keep(&mut self) -> Loss {
        let Some(holding) = &self.holding else { return Loss::Expired };
        let owner = holding.lease.owner().clone();
        let mut states = holding.lease.state();
        let mut counted = None;
        let loss = loop {
            let state = *states.borrow_and_update();
            match state {
                LeaseState::Held(grant) => {
                    let before = counted.replace(grant.renewals).unwrap_or(grant.renewals);
                    self.shared.metrics.renewals(grant.renewals.saturating_sub(before));
                    self.publish(State::Held { owner: owner.clone(), grant });
                }
                LeaseState::Lost(loss) => break loss,
                LeaseState::Released => break Loss::Expired,
            }
            if states.changed().await.is_err() {
                // Its watchdog is gone: nobody renews it any more.
                break Loss::Expired;
            }
        };
        self.holding = None;
        loss
    }

    fn take_up(&mut self, job: &Job, options: &LeaseOptions, lease: Lease) {
        self.holding = Some(Holding { lease, engine: Arc::clone(&job.engine), options: options.clone() });
        self.blocker = None;
        self.shared.metrics.set_held(&self.subject.namespace, &self.subject.name, true);
    }

    fn report_grant(&self) {
        let Some(holding) = &self.holding else { return };
        let owner = holding.lease.owner();
        let holder = shown(&owner.to_string()).name;
        info!(namespace = self.subject.namespace, name = self.subject.name, %owner, "acquired");
        self.shared.metrics.acquisition("Acquired");
        self.shared.notices.tell(&self.subject.reference, Notice::Acquired(holder, owner.token()));
    }

    fn report_loss(&self, loss: Loss) -> Loss {
        let reason = loss.as_str();
        warn!(namespace = self.subject.namespace, name = self.subject.name, reason, "lost");
        self.shared.metrics.lost(reason);
        self.shared.metrics.set_held(&self.subject.namespace, &self.subject.name, false);
        self.shared.notices.tell(&self.subject.reference, Notice::Lost(loss));
        loss
    }

    fn refused(&mut self, job: &Job, lost: Option<Loss>, error: &Error) {
        job.note_refused_credentials(error);
        let answer = Refusal::from(error);
        if let Refusal::Contended(Some(value)) = &answer
            && self.blocker.as_deref() != Some(holder_of(value))
        {
            self.blocker = Some(holder_of(value).to_owned());
            self.shared.notices.tell(&self.subject.reference, Notice::Contended(shown(value).name));
        }
        let state = State::Contending { lost, answer: Some(answer) };
        if !self.state.borrow().tells_the_same(&state) {
            self.shared.metrics.acquisition(error.reason().as_str());
        }
        debug!(namespace = self.subject.namespace, name = self.subject.name, %error, "not granted");
        self.publish(state);
    }

    // --- ending ---

    async fn give_back(&mut self, job: &Job, recorded: Option<Owner>) {
        let owner = self.carried.take().or(recorded);
        let released = match (self.holding.take(), owner) {
            (Some(holding), _) => Some(holding.lease.release().await),
            (None, Some(owner)) => {
                job.engine.settled().await;
                Some(job.engine.client().release(&job.key, &owner).await)
            }
            (None, None) => None,
        };
        if let Some(released @ (Released::Freed | Released::AlreadyExpired)) = released {
            info!(namespace = self.subject.namespace, name = self.subject.name, ?released, "released");
        }
        self.shared.metrics.set_held(&self.subject.namespace, &self.subject.name, false);
        self.publish(State::Ended(released.map_or(Ending::Nothing, Ending::Released)));
    }

    fn abandon(&mut self) {
        if let Some(holding) = self.holding.take() {
            holding.lease.abandon();
        }
        self.publish(State::Ended(Ending::Abandoned));
    }

    // --- reporting ---

    /// Takes note of where the lock stands, and has it shown: news at once, a renewal when its turn comes.
    pub(super) fn publish(&self, state: State) {
        let before = self.state.send_replace(state);
        let state = self.state.borrow();
        if !before.tells_the_same(&state) {
            self.shared.publisher.changed(&self.subject);
        } else if before != *state && self.shared.leadership.is_leader() {
            self.shared.publisher.renewed(&self.subject);
        }
    }

    /// Where the lock stands.
    pub(super) fn state(&self) -> State {
        self.state.borrow().clone()
    }
}

/// `duration` and up to half of it again, so that many actors do not ask at the same moment.
pub(super) fn with_jitter(duration: Duration) -> Duration {
    duration + duration.mul_f64(rand::random_range(0.0..0.5))
}

/// What is told once: a holder, whichever of its grants.
fn holder_of(value: &str) -> &str {
    value.rsplit_once('@').map_or(value, |(identity, _)| identity)
}
