//! The metrics of the agent, for Prometheus.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use redlock_engine::Loss;

use crate::{log_sink, openmetrics};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByReason {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

/// The agent's metrics. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    leader: Gauge,
    acquisitions: Counter,
    renewals: Counter,
    losses: Family<ByReason, Counter>,
    registry: Arc<Registry>,
}

impl Default for Metrics {
    fn default() -> Self {
        let (leader, acquisitions, renewals) = (Gauge::default(), Counter::default(), Counter::default());
        let losses = Family::default();
        let mut all = Registry::with_prefix("redlock_agent");
        all.register("build", "Version of the agent", Info::new(Build { version: env!("CARGO_PKG_VERSION") }));
        all.register("leader", "Whether this pod leads", leader.clone());
        all.register("acquisitions", "How often this pod became leader", acquisitions.clone());
        all.register("renewals", "Successful renewals of the lease", renewals.clone());
        all.register("losses", "How often leadership was lost", losses.clone());
        log_sink::register(&mut all);
        Self { leader, acquisitions, renewals, losses, registry: Arc::new(all) }
    }
}

impl Metrics {
    /// All metrics, in the `OpenMetrics` text format. `leads`: whether this pod leads right now.
    #[must_use]
    pub(crate) fn render(&self, leads: bool) -> String {
        self.leader.set(i64::from(leads));
        openmetrics::render(&self.registry)
    }

    /// Counts that this pod became the leader.
    pub(crate) fn acquired(&self) {
        self.acquisitions.inc();
    }

    /// Counts renewals of the lease.
    pub(crate) fn renewed(&self, count: u64) {
        self.renewals.inc_by(count);
    }

    /// Counts that leadership was lost.
    pub(crate) fn lost(&self, loss: &Loss) {
        self.losses.get_or_create(&ByReason { reason: loss.as_str() }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_shown() {
        let metrics = Metrics::default();
        metrics.acquired();
        metrics.renewed(3);
        metrics.lost(&Loss::Taken);
        let text = metrics.render(true);
        for line in [
            concat!("redlock_agent_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
            "redlock_agent_leader 1",
            "redlock_agent_acquisitions_total 1",
            "redlock_agent_renewals_total 3",
            "redlock_agent_losses_total{reason=\"Taken\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "no {line} in {text}");
        }
        assert!(metrics.render(false).contains("redlock_agent_leader 0\n"));
    }
}
