//! Contends for the lock, leads until it is lost, contends again; gives it back at the end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::answer::{Answer, Held, Knowledge};
use super::metrics::Metrics;
use redlock_engine::{Client, Grant, Lease, LeaseOptions, LeaseState, LockKey, Loss, Reason, Wait};

/// How old the knowledge of who leads may be before it is read again.
const FRESH: Duration = Duration::from_secs(1);
/// Pause after an attempt that ended by itself.
const PAUSE: Duration = Duration::from_secs(1);

/// One that wants to lead. Cheap to clone; clones share what is known.
#[derive(Clone, Debug)]
pub struct Candidate {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    key: LockKey,
    options: LeaseOptions,
    /// The lease while it may be held: taken out before it is given back, so that nobody is told to lead from then on.
    lease: Mutex<Option<Lease>>,
    /// Locked while it is being read: many who ask at once make one reading.
    known: tokio::sync::Mutex<Known>,
    reached_quorum: watch::Sender<bool>,
    metrics: Metrics,
}

/// What the masters said last of who leads.
#[derive(Debug, Default)]
struct Known {
    knowledge: Option<Knowledge>,
    /// When they were asked last, whatever came of it.
    asked_at: Option<Instant>,
    /// Why they could not tell, the last time; told when it changes, not at each question.
    trouble: Option<Reason>,
}

/// The grant, if it is proven now. The clock is read while the state is locked, so that a renewal at this moment counts.
fn proven(state: &watch::Ref<'_, LeaseState>) -> Option<Grant> {
    state.valid_at(Instant::now())
}

impl Candidate {
    /// A candidate for `key`.
    #[must_use]
    pub fn new(client: Client, key: LockKey, options: LeaseOptions) -> Self {
        let shared = Shared {
            client,
            key,
            options,
            lease: Mutex::default(),
            known: tokio::sync::Mutex::default(),
            reached_quorum: watch::Sender::new(false),
            metrics: Metrics::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    fn with_lease<T>(&self, act: impl FnOnce(&mut Option<Lease>) -> T) -> T {
        // A panic while the lock was held leaves a lease that is as good as before.
        act(&mut self.shared.lease.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether this pod leads right now, by its own monotonic clock: no network, and no waiting.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.with_lease(|lease| lease.as_ref().is_some_and(Lease::is_held))
    }

    /// Whether a majority of masters has answered, ever. It stays so when they are gone: that this pod cannot lead for a
    /// while is no reason to take it out of service.
    #[must_use]
    pub fn has_reached_quorum(&self) -> bool {
        *self.shared.reached_quorum.borrow()
    }

    /// What it counts, as text.
    #[must_use]
    pub fn render_metrics(&self) -> String {
        self.shared.metrics.render(self.is_leader())
    }

    fn held(&self) -> Option<Held> {
        self.with_lease(|lease| {
            let lease = lease.as_ref()?;
            let grant = proven(&lease.state().borrow())?;
            Some(Held {
                token: lease.owner().token().get(),
                renewed_at: grant.renewed_at,
                valid_until: grant.valid_until,
            })
        })
    }

    /// Who leads. A follower asks the masters, if it has not for a second.
    pub async fn answer(&self) -> Answer {
        let Shared { client, key, options, known, reached_quorum, .. } = &*self.shared;
        if let Some(held) = self.held() {
            return Answer::new(&options.identity, Some(&held), None, Instant::now());
        }
        let mut known = known.lock().await;
        if known.asked_at.is_none_or(|at| at.elapsed() >= FRESH) {
            let asked_at = Instant::now();
            known.asked_at = Some(asked_at);
            match client.read(key).await {
                Ok(observation) => {
                    known.knowledge = Some(Knowledge::of(&observation, asked_at, FRESH));
                    known.trouble = None;
                    reached_quorum.send_replace(true);
                }
                // What was known is told on for as long as it is proven.
                Err(error) => {
                    let before = known.trouble.replace(error.reason());
                    if before != known.trouble {
                        warn!(%key, %error, "the masters cannot tell who leads");
                    }
                }
            }
        }
        let held = self.held();
        Answer::new(&options.identity, held.as_ref(), known.knowledge.as_ref(), Instant::now())
    }

    /// Contends and leads until `stop`; then gives back what it has. Trouble with the masters never ends it.
    pub async fn run(&self, stop: CancellationToken) {
        let Shared { client, key, options, reached_quorum, metrics, .. } = &*self.shared;
        let prober = self.clone();
        let probe = tokio::spawn(async move { prober.reach_quorum().await });
        loop {
            let acquired = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                acquired = client.acquire(key, options, Wait::Forever) => acquired,
            };
            match acquired {
                Ok(lease) => {
                    reached_quorum.send_replace(true);
                    metrics.acquired();
                    info!(%key, token = %lease.owner().token(), "this pod leads");
                    if self.lead(lease, &stop).await {
                        break;
                    }
                }
                Err(error) => {
                    warn!(%key, %error, "failed to contend; trying again");
                    tokio::select! { () = sleep(PAUSE) => {}, () = stop.cancelled() => {} }
                }
            }
        }
        probe.abort();
        // What a broken-off attempt set, and a release, reach also the masters whose answer nobody waited for.
        client.shutdown().await;
    }

    /// Asks the masters until a majority has answered once.
    async fn reach_quorum(&self) {
        while !self.has_reached_quorum() {
            self.answer().await;
            sleep(FRESH).await;
        }
    }

    /// Leads until the lease is lost, or until `stop`; then it gives the lease back. Answers whether it was stopped.
    async fn lead(&self, lease: Lease, stop: &CancellationToken) -> bool {
        let Shared { key, metrics, .. } = &*self.shared;
        let mut state = lease.state();
        self.with_lease(|shared| *shared = Some(lease));
        let mut renewals = 0;
        let mut renewed_by_nobody = false;
        loop {
            let Some(grant) = proven(&state.borrow_and_update()) else { break };
            metrics.renewed(grant.renewals.saturating_sub(renewals));
            renewals = grant.renewals;
            tokio::select! {
                biased;
                () = stop.cancelled() => {
                    // Out of sight first: nobody is told to lead while the lock is being given back.
                    if let Some(lease) = self.with_lease(Option::take) {
                        let released = lease.release().await;
                        info!(%key, ?released, "gave leadership back");
                    }
                    return true;
                }
                // Without a sender nothing renews it any more: it ends by the clock.
                result = state.changed(), if !renewed_by_nobody => renewed_by_nobody = result.is_err(),
                () = sleep_until(grant.valid_until) => {}
            }
        }
        let loss = match *state.borrow() {
            LeaseState::Lost(loss) => loss,
            LeaseState::Held(_) | LeaseState::Released => Loss::Expired,
        };
        metrics.lost(loss);
        warn!(%key, ?loss, "this pod does not lead any more; contending again");
        drop(self.with_lease(Option::take));
        false
    }
}
