//! The metrics of the operator, for Prometheus.

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

/// The `result` of a reconcile without an error.
const OK: &str = "ok";
/// Upper bounds of the buckets of reconcile durations, in seconds.
const RECONCILE_BUCKETS: [f64; 9] = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0];

/// The operator's metrics. Cheap to clone.
///
/// Labels have few values: a controller, a kind, a word for a result. `namespace` and `name` stand for objects that exist;
/// [`Self::forget_cluster`] and [`Self::forget_lock`] remove them.
#[derive(Clone)]
pub(crate) struct Metrics {
    families: Arc<Families>,
    registry: Arc<Registry>,
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
    acquisitions: Family<ByResult, Count>,
    renewals: Count,
    losses: Family<ByReason, Count>,
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
            acquisitions: Family::default(),
            renewals: Counter::default(),
            losses: Family::default(),
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
            acquisitions,
            renewals,
            losses,
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
        all.register("acquisitions", "Attempts to acquire a lock, by result", acquisitions.clone());
        all.register("renewals", "Successful renewals of held locks", renewals.clone());
        all.register("losses", "Locks that were lost", losses.clone());
        log_sink::register(&mut all);
        all
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let families = Families::default();
        let registry = Arc::new(families.register());
        Self { families: Arc::new(families), registry }
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

impl Metrics {
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
mod tests {
    use super::*;

    fn samples(metrics: &Metrics) -> Vec<String> {
        metrics.render().lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect()
    }

    #[track_caller]
    fn assert_shows(metrics: &Metrics, line: &str) {
        let all = samples(metrics);
        assert!(all.iter().any(|l| l == line), "no {line} in {all:#?}");
    }

    #[test]
    fn what_is_told_is_shown_with_units_in_the_names() {
        let metrics = Metrics::default();
        metrics.reconciled("lock", None, Duration::from_millis(20));
        metrics.reconciled("lock", Some("api"), Duration::from_secs(2));
        metrics.watch_failed("DistributedLock");
        metrics.set_leader(true);
        metrics.set_masters("locks", "main", 4, 5);
        metrics.master_crashed("locks", "main");
        metrics.set_held("shop", "checkout", true);
        metrics.acquisition("Acquired");
        metrics.acquisition("Contended");
        metrics.renewals(3);
        metrics.lost("Expired");
        for line in [
            concat!("redlock_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
            "redlock_leader 1",
            "redlock_reconciles_total{controller=\"lock\",result=\"ok\"} 1",
            "redlock_reconciles_total{controller=\"lock\",result=\"api\"} 1",
            "redlock_reconcile_duration_seconds_count{controller=\"lock\"} 2",
            "redlock_reconcile_duration_seconds_bucket{le=\"0.03\",controller=\"lock\"} 1",
            "redlock_watch_errors_total{kind=\"DistributedLock\"} 1",
            "redlock_cluster_masters{namespace=\"locks\",name=\"main\"} 5",
            "redlock_cluster_masters_armed{namespace=\"locks\",name=\"main\"} 4",
            "redlock_master_crashes_total{namespace=\"locks\",name=\"main\"} 1",
            "redlock_lock_held{namespace=\"shop\",name=\"checkout\"} 1",
            "redlock_acquisitions_total{result=\"Acquired\"} 1",
            "redlock_acquisitions_total{result=\"Contended\"} 1",
            "redlock_renewals_total 3",
            "redlock_losses_total{reason=\"Expired\"} 1",
        ] {
            assert_shows(&metrics, line);
        }
        assert!(metrics.render().ends_with("# EOF\n"));
    }

    #[test]
    fn nothing_is_left_of_a_deleted_object() {
        let metrics = Metrics::default();
        let before = samples(&metrics);
        for n in 0..100 {
            let name = format!("x-{n}");
            metrics.set_masters("locks", &name, 4, 5);
            metrics.master_crashed("locks", &name);
            metrics.set_held("shop", &name, true);
            metrics.forget_cluster("locks", &name);
            metrics.forget_lock("shop", &name);
        }
        assert_eq!(samples(&metrics), before);
    }

    #[test]
    fn clones_count_together() {
        let metrics = Metrics::default();
        metrics.clone().renewals(2);
        metrics.renewals(1);
        assert_shows(&metrics, "redlock_renewals_total 3");
    }
}
