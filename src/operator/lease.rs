//! The `Lease` that elects one of several operators: read or created, replaced by compare-and-swap, released.
//!
//! Another process's record has expired when it was not *seen to change* for its duration, counted on our own monotonic
//! clock (as client-go does). A time that another process wrote is never compared with a clock of this one.

mod hand_over;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::leadership::{Leadership, Terms};
use super::reach::Reach;
use hand_over::{LeaderStep, asking, is_asked, leader_step, offered};

/// How long the others wait after they last saw the record change.
pub(crate) const DURATION: Duration = Duration::from_secs(15);
/// How long a leader leads after it sent its last successful write.
pub(crate) const RENEW_DEADLINE: Duration = Duration::from_secs(9);
/// Time from the start of one attempt to the start of the next; up to [`JITTER`] longer.
const RETRY: Duration = Duration::from_secs(2);
/// The same while a leader asks who reaches masters.
const ASKED_RETRY: Duration = Duration::from_millis(500);
/// Spreads the attempts of several candidates.
const JITTER: Duration = Duration::from_millis(400);
/// Timeout of an attempt.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

// A leader stops before another may begin, even if its last attempt and a pause are added to the deadline.
const _: () = assert!(
    RENEW_DEADLINE.as_millis() + REQUEST_TIMEOUT.as_millis() + RETRY.as_millis() + JITTER.as_millis()
        < DURATION.as_millis()
);

/// Why this process does not lead any more.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Error {
    /// The record could not be renewed in time.
    #[error("the Lease could not be renewed for {RENEW_DEADLINE:?}")]
    Expired,
    /// Another process holds the record.
    #[error("the Lease was taken by {0:?}")]
    Taken(String),
}

/// What to do about a record.
#[derive(Debug, PartialEq, Eq)]
enum LeaseAction {
    /// It is ours: renew it.
    Renew,
    /// It has no holder, or has expired: take it.
    Take,
    /// Another process holds it: wait.
    Wait,
}

/// A record, and when it was last seen to change.
#[derive(Clone, Debug)]
struct Seen {
    lease: Lease,
    changed_at: Instant,
}

/// The result of an attempt.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    /// This process leads until then.
    Leads(Instant),
    /// Another process leads.
    Follows(String),
}

/// This process, as a candidate for leadership.
#[derive(Debug)]
pub(crate) struct LeaseCandidate {
    api: Api<Lease>,
    name: String,
    identity: String,
    terms: Terms,
    seen: Option<Seen>,
    reach: Reach,
    /// The number of this leader's question who reaches masters.
    asked: Option<String>,
}

/// The decision, by the record and our own clock alone. The duration is the record's: its holder chose it.
fn decide(seen: &Seen, now: Instant, identity: &str) -> LeaseAction {
    let spec = seen.lease.spec.as_ref();
    let duration = spec.and_then(|s| s.lease_duration_seconds).and_then(|s| u64::try_from(s).ok());
    let expires_at = seen.changed_at + duration.filter(|&s| s > 0).map_or(DURATION, Duration::from_secs);
    match holder(&seen.lease) {
        "" => LeaseAction::Take,
        other if other == identity => LeaseAction::Renew,
        _ if now >= expires_at => LeaseAction::Take,
        _ => LeaseAction::Wait,
    }
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|s| s.holder_identity.as_deref()).unwrap_or_default()
}

/// The record with `identity` as its holder, made from the last one. Keeps `resourceVersion`: the write is a
/// compare-and-swap.
fn held_by(last: Option<&Lease>, name: &str, identity: &str, now: Timestamp) -> Lease {
    let mut lease = last.cloned().unwrap_or_else(|| Lease {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..Default::default() },
        spec: None,
    });
    let ours = holder(&lease) == identity;
    let spec = lease.spec.get_or_insert_default();
    if !ours {
        let transitions = last.map_or(0, |_| spec.lease_transitions.unwrap_or_default().saturating_add(1));
        spec.lease_transitions = Some(transitions);
        spec.acquire_time = Some(MicroTime(now));
        spec.holder_identity = Some(identity.to_owned());
    }
    spec.lease_duration_seconds = i32::try_from(DURATION.as_secs()).ok();
    spec.renew_time = Some(MicroTime(now));
    lease
}

/// Whether a write failed because the record has changed since it was read.
fn is_outdated(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(s) if s.is_conflict() || s.is_already_exists() || s.is_not_found())
}

/// Ends then; never without an instant.
async fn at(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

impl LeaseCandidate {
    /// A candidate for the Lease `name` of `namespace`, and its leadership as the rest of the process sees it. `client`
    /// should be used by nobody else: renewals must not queue behind other requests. `identity` must be unique to the pod.
    #[must_use]
    /// If this process leads and is cut off from the masters (`reach`), it [gives the Lease away](hand_over).
    pub(crate) fn new(
        client: Client,
        namespace: &str,
        name: &str,
        identity: String,
        reach: Reach,
    ) -> (Self, Leadership) {
        let (terms, leadership) = Terms::new();
        let api = Api::namespaced(client, namespace);
        let name = name.to_owned();
        (Self { api, name, identity, terms, seen: None, reach, asked: None }, leadership)
    }

    /// Contends for the Lease and renews it, until `release`; then releases it, so that another process takes over at once.
    /// From `drain` on it does not take the Lease. A process whose term ends goes on as a follower, and may lead again: in a new
    /// term, after it has read the record anew.
    pub(crate) async fn run(mut self, drain: CancellationToken, release: CancellationToken) {
        while let Err(ended) = self.run_one_term(&drain, &release).await {
            warn!(lease = self.name, "this process does not lead any more, and goes on as a follower: {ended}");
        }
    }

    /// The same until the end of the first term, which is an error.
    pub(crate) async fn run_one_term(
        &mut self,
        drain: &CancellationToken,
        release: &CancellationToken,
    ) -> Result<(), Error> {
        let mut leader = String::new();
        loop {
            let next = Instant::now() + self.pause() + JITTER.mul_f64(rand::random());
            let term = self.terms.until();
            let attempt = tokio::select! {
                // First: a process that slept past its term must not write in it.
                biased;
                () = at(term) => return Err(self.ended(Error::Expired)),
                () = release.cancelled() => break,
                attempt = timeout(REQUEST_TIMEOUT, self.attempt()), if term.is_some() || !drain.is_cancelled() => attempt,
            };
            match attempt {
                Ok(Ok(Standing::Leads(_))) if term.is_some_and(|until| Instant::now() >= until) => {
                    return Err(self.ended(Error::Expired));
                }
                Ok(Ok(Standing::Leads(until))) => {
                    if term.is_none() {
                        info!(identity = self.identity, "this process leads");
                    }
                    self.terms.lead_until(until);
                }
                Ok(Ok(Standing::Follows(other))) if term.is_some() => return Err(self.ended(Error::Taken(other))),
                Ok(Ok(Standing::Follows(other))) => {
                    if other != leader {
                        info!(leader = other, "another process leads");
                        leader = other;
                    }
                }
                Ok(Err(error)) => warn!(lease = self.name, %error, "failed to contend for the Lease"),
                Err(_) => warn!(lease = self.name, "failed to contend for the Lease: no answer in {REQUEST_TIMEOUT:?}"),
            }
            tokio::select! {
                biased;
                () = at(self.terms.until()) => {}
                () = release.cancelled() => break,
                () = sleep_until(next) => {}
            }
        }
        self.release().await;
        Ok(())
    }

    fn pause(&self) -> Duration {
        if self.seen.as_ref().is_some_and(|seen| is_asked(&seen.lease)) { ASKED_RETRY } else { RETRY }
    }

    fn ended(&self, error: Error) -> Error {
        self.terms.end();
        error
    }

    /// Renews or takes the record, or reads who holds it. If the record has changed meanwhile, this is repeated once.
    async fn attempt(&mut self) -> Result<Standing, kube::Error> {
        if self.seen.is_none() || self.terms.until().is_none() {
            self.observe().await?;
        }
        match self.claim().await {
            Err(error) if is_outdated(&error) => {
                self.observe().await?;
                self.claim().await
            }
            result => result,
        }
    }

    async fn observe(&mut self) -> Result<(), kube::Error> {
        let lease = self.api.get_opt(&self.name).await?;
        let now = Instant::now();
        self.seen = lease.map(|lease| {
            let unchanged = self.seen.take().filter(|seen| seen.lease.spec == lease.spec);
            Seen { lease, changed_at: unchanged.map_or(now, |seen| seen.changed_at) }
        });
        Ok(())
    }

    async fn claim(&mut self) -> Result<Standing, kube::Error> {
        let action = self.seen.as_ref().map_or(LeaseAction::Take, |seen| decide(seen, Instant::now(), &self.identity));
        let last = self.seen.as_ref().map(|seen| &seen.lease);
        if let (LeaseAction::Wait, Some(lease)) = (&action, last) {
            let leader = holder(lease).to_owned();
            if let Some(offer) = offered(lease, self.reach.has_majority(), &self.identity) {
                self.api.replace(&self.name, &PostParams::default(), &offer).await?;
                info!(leader, "the leader reaches no majority of any cluster, and this process offers to lead");
            }
            return Ok(Standing::Follows(leader));
        }
        let leads = action == LeaseAction::Renew && self.terms.until().is_some();
        let step = match last.filter(|_| leads) {
            Some(lease) => {
                let fresh = format!("{:016x}", rand::random::<u64>());
                leader_step(lease, self.reach.is_cut_off(), self.asked.as_deref(), fresh)
            }
            None => LeaderStep::Keep,
        };
        let record = held_by(last, &self.name, &self.identity, Timestamp::now());
        self.asked = match step {
            LeaderStep::Keep => None,
            LeaderStep::Ask(number) => Some(number),
            LeaderStep::GiveTo(follower) => {
                // Before the write: as soon as it is there, the follower may lead.
                self.terms.end();
                self.asked = None;
                let record = asking(held_by(last, &self.name, &follower, Timestamp::now()), None);
                let lease = self.api.replace(&self.name, &PostParams::default(), &record).await?;
                info!(follower, "gave the Lease to a process that reaches masters: this one reaches none");
                self.seen = Some(Seen { lease, changed_at: Instant::now() });
                return Ok(Standing::Follows(follower));
            }
        };
        let record = asking(record, self.asked.clone());
        // Before the request is sent: others see the change later than this, and so wait longer than we lead.
        let sent_at = Instant::now();
        let lease = match last {
            Some(_) => self.api.replace(&self.name, &PostParams::default(), &record).await?,
            None => self.api.create(&PostParams::default(), &record).await?,
        };
        self.seen = Some(Seen { lease, changed_at: sent_at });
        Ok(Standing::Leads(sent_at + RENEW_DEADLINE))
    }

    /// Empties the record if it is ours, also if it became ours by an attempt that was aborted.
    async fn release(&mut self) {
        self.terms.end();
        let empty = async {
            self.observe().await?;
            let Some(seen) = self.seen.as_ref().filter(|s| holder(&s.lease) == self.identity) else { return Ok(()) };
            let mut record = seen.lease.clone();
            let spec = record.spec.get_or_insert_with(LeaseSpec::default);
            spec.holder_identity = Some(String::new());
            spec.renew_time = Some(MicroTime(Timestamp::now()));
            self.api.replace(&self.name, &PostParams::default(), &record).await.map(drop)
        };
        match timeout(REQUEST_TIMEOUT, empty).await {
            Ok(Ok(())) => info!("released the Lease"),
            Ok(Err(error)) => warn!(%error, "failed to release the Lease: the next leader waits until it expires"),
            Err(_) => {
                warn!("failed to release the Lease in {REQUEST_TIMEOUT:?}: the next leader waits until it expires");
            }
        }
    }
}

#[cfg(test)]
mod tests;
