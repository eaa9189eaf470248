//! Contends for the lock, leads until the lease is lost, contends again, and releases at the end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redlock_engine::{Client, Grant, Lease, LeaseOptions, LeaseState, LockKey, Loss, Reason, Wait};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::answer::{Answer, Knowledge, OwnGrant};
use super::metrics::Metrics;

/// A reading older than this is repeated.
const FRESH: Duration = Duration::from_secs(1);
/// Pause after an attempt that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// This pod's part in the election. Cheap to clone; clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct Election {
    state: Arc<ElectionState>,
}

#[derive(Debug)]
struct ElectionState {
    client: Client,
    key: LockKey,
    options: LeaseOptions,
    /// The lease while it may be held. It is taken out before it is released: from then on nobody is told to lead.
    lease: Mutex<Option<Lease>>,
    /// Locked during a reading: many questions at once make one reading.
    last_reading: tokio::sync::Mutex<LastReading>,
    reached_quorum: watch::Sender<bool>,
    metrics: Metrics,
}

/// The last reading of the masters.
#[derive(Debug, Default)]
struct LastReading {
    knowledge: Option<Knowledge>,
    /// When the masters were last asked, with or without success.
    asked_at: Option<Instant>,
    /// Why the last reading failed. It is logged when it changes, not at each question.
    trouble: Option<Reason>,
    /// A holder whose key never expires. It is logged when it changes.
    endless: Option<String>,
}

/// The grant, if it is valid now. The clock is read while the state is locked, so that a renewal at this moment counts.
fn valid_grant(state: &watch::Ref<'_, LeaseState>) -> Option<Grant> {
    state.valid_at(Instant::now()).cloned()
}

impl Election {
    /// The election of the holder of `key`.
    #[must_use]
    pub(crate) fn new(client: Client, key: LockKey, options: LeaseOptions) -> Self {
        let state = ElectionState {
            client,
            key,
            options,
            lease: Mutex::default(),
            last_reading: tokio::sync::Mutex::default(),
            reached_quorum: watch::Sender::new(false),
            metrics: Metrics::default(),
        };
        Self { state: Arc::new(state) }
    }

    fn with_lease<T>(&self, act: impl FnOnce(&mut Option<Lease>) -> T) -> T {
        // A panic while the lock was held leaves the lease as it was.
        act(&mut self.state.lease.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether this pod leads right now, by its own monotonic clock. Needs no network and does not wait.
    #[must_use]
    pub(crate) fn is_leader(&self) -> bool {
        self.with_lease(|lease| lease.as_ref().is_some_and(Lease::is_held))
    }

    /// Whether a majority of masters has answered at least once. Stays true when they are gone: a pod that cannot lead for a
    /// while must not be taken out of service.
    #[must_use]
    pub(crate) fn has_reached_quorum(&self) -> bool {
        *self.state.reached_quorum.borrow()
    }

    /// Its metrics, as text.
    #[must_use]
    pub(crate) fn render_metrics(&self) -> String {
        self.state.metrics.render(self.is_leader())
    }

    fn own_grant(&self) -> Option<OwnGrant> {
        self.with_lease(|lease| {
            let lease = lease.as_ref()?;
            let grant = valid_grant(&lease.state().borrow())?;
            Some(OwnGrant {
                token: lease.owner().token().get(),
                renewed_at: grant.renewed_at,
                valid_until: grant.valid_until,
            })
        })
    }

    /// Who leads. A follower reads the masters, at most once a second.
    pub(crate) async fn answer(&self) -> Answer {
        let ElectionState { client, key, options, last_reading, reached_quorum, .. } = &*self.state;
        if let Some(held) = self.own_grant() {
            return Answer::new(&options.identity, Some(&held), None, Instant::now());
        }
        let mut known = last_reading.lock().await;
        if known.asked_at.is_none_or(|at| at.elapsed() >= FRESH) {
            let asked_at = Instant::now();
            known.asked_at = Some(asked_at);
            match client.read(key).await {
                Ok(observation) => {
                    known.knowledge = Some(Knowledge::of(&observation, asked_at, FRESH));
                    known.trouble = None;
                    let endless = observation.holder.filter(|_| observation.remaining.is_none());
                    if endless != known.endless {
                        if let Some(holder) = &endless {
                            let command = format!("DEL {}", key.redis_key());
                            warn!(%key, holder, command, "the key of the holder never expires: nobody can lead until the command frees it on the masters");
                        }
                        known.endless = endless;
                    }
                    reached_quorum.send_replace(true);
                }
                // The last successful reading counts for as long as it is valid.
                Err(error) => {
                    let before = known.trouble.replace(error.reason());
                    if before != known.trouble {
                        warn!(%key, %error, "the masters cannot tell who leads");
                    }
                }
            }
        }
        let held = self.own_grant();
        Answer::new(&options.identity, held.as_ref(), known.knowledge.as_ref(), Instant::now())
    }

    /// Contends and leads until `stop`, then releases. Failures of masters do not end it.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let ElectionState { client, key, options, reached_quorum, metrics, .. } = &*self.state;
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
                    if self.hold_until_lost(lease, &stop).await {
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
        // What an aborted attempt has set is undone, and the release arrives, also on masters that have not answered yet.
        client.shutdown().await;
    }

    /// Reads the masters until a majority has answered once.
    async fn reach_quorum(&self) {
        while !self.has_reached_quorum() {
            self.answer().await;
            sleep(FRESH).await;
        }
    }

    /// Leads until the lease is lost, or until `stop`; then releases it. Returns whether it was stopped.
    async fn hold_until_lost(&self, lease: Lease, stop: &CancellationToken) -> bool {
        let ElectionState { key, metrics, .. } = &*self.state;
        let mut state = lease.state();
        self.with_lease(|held| *held = Some(lease));
        let mut renewals = 0;
        let mut has_no_watchdog = false;
        loop {
            let Some(grant) = valid_grant(&state.borrow_and_update()) else { break };
            metrics.renewed(grant.renewals.saturating_sub(renewals));
            renewals = grant.renewals;
            tokio::select! {
                biased;
                () = stop.cancelled() => {
                    // Out of sight first: nobody is told to lead while the lock is being released.
                    if let Some(lease) = self.with_lease(Option::take) {
                        let released = lease.release().await;
                        info!(%key, ?released, "released leadership");
                    }
                    return true;
                }
                // The watchdog is gone: nothing renews the lease any more, and it ends by the clock.
                result = state.changed(), if !has_no_watchdog => has_no_watchdog = result.is_err(),
                () = sleep_until(grant.valid_until) => {}
            }
        }
        let loss = match &*state.borrow() {
            LeaseState::Lost(loss) => loss.clone(),
            LeaseState::Held(grant) => grant.expired(),
            LeaseState::Released => Loss::Expired { last_failure: None },
        };
        metrics.lost(&loss);
        warn!(%key, reason = loss.as_str(), %loss, "this pod does not lead any more; contending again");
        drop(self.with_lease(Option::take));
        false
    }
}
