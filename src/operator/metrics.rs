//! What the operator counts, for Prometheus.

use std::time::Duration;

/// The operator's metrics. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Metrics {}

impl Metrics {
    /// A reconcile of `controller` (`cluster` or `lock`) ended after `took`: `None` well, else with an error of that bounded category.
    pub fn reconciled(&self, _controller: &'static str, _error: Option<&'static str>, _took: Duration) {}
    /// The API server's answer to a watch of `kind` was an error.
    pub fn watch_failed(&self, _controller: &'static str) {}
    /// So many nodes of a cluster are armed, of so many.
    pub fn set_nodes(&self, _namespace: &str, _cluster: &str, _armed: usize, _nodes: usize) {}
    /// Forgets a deleted cluster.
    pub fn forget_cluster(&self, _namespace: &str, _cluster: &str) {}
    /// A node of a cluster went away or lost its data.
    pub fn node_crashed(&self, _namespace: &str, _cluster: &str) {}
    /// Whether the lock is held by this operator for the resource (0 or 1).
    pub fn set_held(&self, _namespace: &str, _lock: &str, _held: bool) {}
    /// Forgets a deleted lock.
    pub fn forget_lock(&self, _namespace: &str, _lock: &str) {}
    /// An attempt to acquire ended: `Acquired` or a [`crate::redlock::Reason`] as a word.
    pub fn acquisition(&self, _result: &'static str) {}
    /// Held leases were renewed so often.
    pub fn renewals(&self, _count: u64) {}
    /// A held lock was lost, for that reason (`Expired` or `Taken`).
    pub fn lost(&self, _reason: &'static str) {}
}
