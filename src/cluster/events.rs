//! Kubernetes Events: what happened between two statuses of a cluster, and how it is published.

use kube::Resource;
use kube::runtime::events::EventType;

use super::decide::validate::NAME_CONFLICT;
use crate::api::cluster::MasterState;
use crate::api::{RedisLockCluster, RedisLockClusterStatus, condition};
use crate::operator::events::Events;

/// Something that happened to a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterEvent {
    /// `Normal`, or `Warning` for bad news.
    pub(crate) kind: EventType,
    /// The master that it is about; `None`: the cluster as a whole.
    pub(crate) master: Option<String>,
    /// What happened, in a word.
    pub(crate) reason: &'static str,
    /// What happened, in a sentence.
    pub(crate) note: String,
}

/// Publishes what happened to `cluster` since its status was `before`.
pub(crate) async fn publish(events: &Events, cluster: &RedisLockCluster, before: Option<&RedisLockClusterStatus>) {
    let Some(after) = &cluster.status else { return };
    let mut reference = cluster.object_ref(&());
    for event in events_between(before, after) {
        tracing::info!(reason = event.reason, note = event.note, "cluster changed");
        // Events of one object and reason are counted as one. The field path keeps those of two masters apart.
        reference.field_path = event.master.as_ref().map(|master| format!("status.masters{{{master}}}"));
        events.publish(&reference, event.kind, event.reason, "Reconcile", event.note).await;
    }
}

/// What happened between two statuses.
pub(crate) fn events_between(old: Option<&RedisLockClusterStatus>, new: &RedisLockClusterStatus) -> Vec<ClusterEvent> {
    let none = RedisLockClusterStatus::default();
    let old = old.unwrap_or(&none);
    let good = |reason, note| ClusterEvent { kind: EventType::Normal, master: None, reason, note };
    let bad = |reason, note| ClusterEvent { kind: EventType::Warning, master: None, reason, note };
    let mut events = Vec::new();
    for row in &new.masters {
        let before = old.masters.iter().find(|before| before.name == row.name);
        let was_armed = before.is_some_and(|before| before.state == MasterState::Armed);
        let crashed = before.is_some_and(|before| before.crashes < row.crashes);
        if row.state == MasterState::Armed && (!was_armed || crashed) {
            let armed = good("MasterArmed", format!("{} votes", row.name));
            events.push(ClusterEvent { master: Some(row.name.clone()), ..armed });
        } else if row.state != MasterState::Armed && (was_armed || crashed) {
            let why = row.message.as_deref().unwrap_or("it does not vote any more");
            let lost = bad("MasterLost", format!("{} is {:?}: {why}", row.name, row.state));
            events.push(ClusterEvent { master: Some(row.name.clone()), ..lost });
        }
    }
    let find = |status: &RedisLockClusterStatus, type_: &str| {
        status.conditions.iter().find(|condition| condition.type_ == type_).cloned()
    };
    if let (Some(before), Some(after)) = (find(old, condition::AVAILABLE), find(new, condition::AVAILABLE)) {
        match (before.status.as_str(), after.status.as_str()) {
            ("True", "False") => events.push(bad("QuorumLost", after.message)),
            ("False", "True") if before.reason == "QuorumLost" => events.push(good("QuorumRestored", after.message)),
            _ => {}
        }
    }
    let reason_before = find(old, condition::CONFIG_VALID).map(|condition| condition.reason);
    if let Some(after) = find(new, condition::CONFIG_VALID)
        && after.status == "False"
        && reason_before.as_ref() != Some(&after.reason)
    {
        let reason = if after.reason == NAME_CONFLICT { NAME_CONFLICT } else { "ConfigInvalid" };
        events.push(bad(reason, after.message));
    }
    events
}
