//! The metrics of the operator, for Prometheus.
//!
//! # Layout
//! - [`Metrics`]: all but those of calls to masters, which are [`master_calls`]

pub(crate) mod master_calls;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::{log_sink, openmetrics};
use master_calls::{MasterCallFamilies, MasterCalls};

/// The `result` of a reconcile without an error.
const OK: &str = "ok";
/// Upper bounds of the buckets of reconcile durations, in seconds.
const RECONCILE_BUCKETS: [f64; 9] = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0];
/// Upper bounds of the buckets of the time that a contender needed to get its lock, in seconds. A free lock takes milliseconds, one
/// that is held as long as its holder wants.
const ACQUIRE_BUCKETS: [f64; 11] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0, 60.0, 600.0, 3600.0];
/// Upper bounds of the buckets of votes: a cluster has at most seven masters.
const VOTES_BUCKETS: [f64; 7] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];

/// The operator's metrics. Cheap to clone.
///
/// Labels have few values: a controller, a kind, a word for a result. `namespace` and `name` stand for objects that exist;
/// [`Self::forget_cluster`] and [`Self::forget_lock`] remove them. Locks have series of their own only where that is asked for: there
/// may be tens of thousands.
#[derive(Clone)]
pub(crate) struct Metrics {
    families: Arc<Families>,
    registry: Arc<Registry>,
    has_lock_series: bool,
}

/// What a lock of this process is doing, for the gauge of all locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockActivity {
    /// Its lease is held, and renewed.
    Held,
    /// It contends for the lock.
    Waiting,
    /// It is unknown whether a grant of an earlier process still stands.
    Unknown,
    /// It observes a lock that pods hold.
    Observed,
}

/// A lock that is counted by what it is doing, until this value is dropped.
#[derive(Debug)]
pub(crate) struct CountedLock {
    metrics: Metrics,
    activity: Option<LockActivity>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByController {
    controller: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByKind {
    kind: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByReconcile {
    controller: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByResult {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByReason {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByObject {
    namespace: String,
    name: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByActivity {
    activity: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByRequest {
    verb: &'static str,
    kind: String,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

type Count = Counter<u64, AtomicU64>;

struct Families {
    reconciles: Family<ByReconcile, Count>,
    reconcile_time: Family<ByController, Histogram, fn() -> Histogram>,
    watch_errors: Family<ByKind, Count>,
    leader: Gauge,
    cluster_masters: Family<ByObject, Gauge>,
    cluster_masters_armed: Family<ByObject, Gauge>,
    master_crashes: Family<ByObject, Count>,
    lock_held: Family<ByObject, Gauge>,
    locks: Family<ByActivity, Gauge>,
    acquisitions: Family<ByResult, Count>,
    acquire_time: Histogram,
    grant_votes: Histogram,
    renewals: Count,
    losses: Family<ByReason, Count>,
    api_requests: Family<ByRequest, Count>,
    master_calls: MasterCallFamilies,
}

impl ByObject {
    fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl Default for Families {
    fn default() -> Self {
        Self {
            reconciles: Family::default(),
            reconcile_time: Family::new_with_constructor(|| Histogram::new(RECONCILE_BUCKETS)),
            watch_errors: Family::default(),
            leader: Gauge::default(),
            cluster_masters: Family::default(),
            cluster_masters_armed: Family::default(),
            master_crashes: Family::default(),
            lock_held: Family::default(),
            locks: Family::default(),
            acquisitions: Family::default(),
            acquire_time: Histogram::new(ACQUIRE_BUCKETS),
            grant_votes: Histogram::new(VOTES_BUCKETS),
            renewals: Counter::default(),
            losses: Family::default(),
            api_requests: Family::default(),
            master_calls: MasterCallFamilies::default(),
        }
    }
}

impl Families {
    /// A registry of these families. Destructured: a family that is not registered fails to compile.
    fn register(&self) -> Registry {
        let Self {
            reconciles,
            reconcile_time,
            watch_errors,
            leader,
            cluster_masters,
            cluster_masters_armed,
            master_crashes,
            lock_held,
            locks,
            acquisitions,
            acquire_time,
            grant_votes,
            renewals,
            losses,
            api_requests,
            master_calls,
        } = self;
        let mut all = Registry::with_prefix("redlock");
        all.register("build", "Version of the operator", Info::new(Build { version: env!("CARGO_PKG_VERSION") }));
        all.register("leader", "Whether this replica of the operator leads", leader.clone());
        all.register("reconciles", "Reconciles, with ok or the category of the error", reconciles.clone());
        all.register_with_unit(
            "reconcile_duration",
            "How long a reconcile took",
            Unit::Seconds,
            reconcile_time.clone(),
        );
        all.register("watch_errors", "Errors of a watch of the API server", watch_errors.clone());
        all.register("cluster_masters", "Masters of a RedisLockCluster", cluster_masters.clone());
        all.register(
            "cluster_masters_armed",
            "Masters of a RedisLockCluster that may vote",
            cluster_masters_armed.clone(),
        );
        all.register("master_crashes", "Masters that went away or lost their data", master_crashes.clone());
        all.register("lock_held", "Whether the operator holds the lock for this DistributedLock", lock_held.clone());
        all.register("locks", "Locks of this replica by what they do: held, waiting, unknown, observed", locks.clone());
        all.register_with_unit(
            "acquire_duration",
            "Time from when a lock is wanted until it is granted",
            Unit::Seconds,
            acquire_time.clone(),
        );
        all.register("grant_votes", "Votes of a grant", grant_votes.clone());
        all.register("acquisitions", "Attempts to acquire a lock, by result", acquisitions.clone());
        all.register("renewals", "Successful renewals of held locks", renewals.clone());
        all.register("losses", "Locks that were lost", losses.clone());
        log_sink::register(&mut all);
        all.register("api_requests", "Requests to the API server, without watches", api_requests.clone());
        master_calls.register(&mut all);
        all
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(false)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// A count as a gauge shows it.
fn gauge_value(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl LockActivity {
    const ALL: [Self; 4] = [Self::Held, Self::Waiting, Self::Unknown, Self::Observed];

    fn label(self) -> ByActivity {
        let activity = match self {
            Self::Held => "held",
            Self::Waiting => "waiting",
            Self::Unknown => "unknown",
            Self::Observed => "observed",
        };
        ByActivity { activity }
    }
}

impl CountedLock {
    /// Counts the lock by what it does from now on; `None`: nothing.
    pub(crate) fn becomes(&mut self, activity: Option<LockActivity>) {
        if self.activity == activity {
            return;
        }
        let locks = &self.metrics.families.locks;
        if let Some(before) = std::mem::replace(&mut self.activity, activity) {
            locks.get_or_create(&before.label()).dec();
        }
        if let Some(now) = activity {
            locks.get_or_create(&now.label()).inc();
        }
    }
}

impl Drop for CountedLock {
    fn drop(&mut self) {
        self.becomes(None);
    }
}

impl Metrics {
    /// No counts yet. `has_lock_series`: whether each lock has a series of its own.
    pub(crate) fn new(has_lock_series: bool) -> Self {
        let families = Families::default();
        let registry = Arc::new(families.register());
        // A gauge that is not there is no zero.
        for activity in LockActivity::ALL {
            families.locks.get_or_create(&activity.label()).set(0);
        }
        Self { families: Arc::new(families), registry, has_lock_series }
    }

    /// All metrics, in the `OpenMetrics` text format.
    #[must_use]
    pub(crate) fn render(&self) -> String {
        openmetrics::render(&self.registry)
    }

    /// Counts a reconcile of `controller` (`cluster` or `lock`) that took `took`. `error`: the category of its error.
    pub(crate) fn reconciled(&self, controller: &'static str, error: Option<&'static str>, took: Duration) {
        let result = error.unwrap_or(OK);
        self.families.reconciles.get_or_create(&ByReconcile { controller, result }).inc();
        self.families.reconcile_time.get_or_create(&ByController { controller }).observe(took.as_secs_f64());
    }

    /// Counts a failure of the watch of `kind`: the API server answered with an error, or not at all.
    pub(crate) fn watch_failed(&self, kind: &str) {
        self.families.watch_errors.get_or_create(&ByKind { kind: kind.to_owned() }).inc();
    }

    /// Whether this process leads.
    pub(crate) fn set_leader(&self, leads: bool) {
        self.families.leader.set(i64::from(leads));
    }

    /// How many of the masters of a cluster are armed.
    pub(crate) fn set_masters(&self, namespace: &str, cluster: &str, armed: usize, masters: usize) {
        let object = ByObject::new(namespace, cluster);
        self.families.cluster_masters_armed.get_or_create(&object).set(gauge_value(armed));
        self.families.cluster_masters.get_or_create(&object).set(gauge_value(masters));
    }

    /// Forgets a deleted cluster.
    pub(crate) fn forget_cluster(&self, namespace: &str, cluster: &str) {
        let object = ByObject::new(namespace, cluster);
        self.families.cluster_masters_armed.remove(&object);
        self.families.cluster_masters.remove(&object);
        self.families.master_crashes.remove(&object);
    }

    /// Counts a master of a cluster that went away or lost its data.
    pub(crate) fn master_crashed(&self, namespace: &str, cluster: &str) {
        self.families.master_crashes.get_or_create(&ByObject::new(namespace, cluster)).inc();
    }

    /// Whether the operator holds the lock for its `DistributedLock`.
    pub(crate) fn set_held(&self, namespace: &str, lock: &str, held: bool) {
        if !self.has_lock_series {
            return;
        }
        self.families.lock_held.get_or_create(&ByObject::new(namespace, lock)).set(i64::from(held));
    }

    /// Forgets a deleted lock.
    pub(crate) fn forget_lock(&self, namespace: &str, lock: &str) {
        self.families.lock_held.remove(&ByObject::new(namespace, lock));
    }

    /// Counts an attempt to acquire a lock. `result`: `Acquired`, or the word of a [`redlock_engine::Reason`].
    pub(crate) fn acquisition(&self, result: &'static str) {
        self.families.acquisitions.get_or_create(&ByResult { result }).inc();
    }

    /// A lock that is not counted yet.
    pub(crate) fn counted_lock(&self) -> CountedLock {
        CountedLock { metrics: self.clone(), activity: None }
    }

    /// Counts a grant with so many votes, which was wanted for `waited`.
    pub(crate) fn granted(&self, votes: usize, waited: Duration) {
        self.families.acquire_time.observe(waited.as_secs_f64());
        self.families.grant_votes.observe(u32::try_from(votes).map_or(f64::INFINITY, f64::from));
    }

    /// Counts a request to the API server. `error`: the category of its error.
    pub(crate) fn api_request(&self, verb: &'static str, kind: &str, error: Option<&'static str>) {
        let label = ByRequest { verb, kind: kind.to_owned(), result: error.unwrap_or(OK) };
        self.families.api_requests.get_or_create(&label).inc();
    }

    /// The series of the calls to a master of a cluster, until the last clone is dropped.
    pub(crate) fn master_calls(&self, namespace: &str, cluster: &str, master: &str) -> Arc<MasterCalls> {
        self.families.master_calls.of(namespace, cluster, master)
    }

    /// Counts renewals of held leases.
    pub(crate) fn renewals(&self, count: u64) {
        self.families.renewals.inc_by(count);
    }

    /// Counts a lock that was lost, by reason (`Expired` or `Taken`).
    pub(crate) fn lost(&self, reason: &'static str) {
        self.families.losses.get_or_create(&ByReason { reason }).inc();
    }
}

#[cfg(test)]
mod tests;
