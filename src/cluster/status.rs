//! What is reported of a cluster, when it is written, and what is worth an Event.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::EventType;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;

use super::error::Error;
use super::validate::{NAME_CONFLICT, Problem};
use crate::api::cluster::{ClusterPhase, MasterState, MasterStatus};
use crate::api::condition::{self, Truth, set_condition};
use crate::api::{RedisLockCluster, RedisLockClusterStatus};
use crate::contract::names::STATUS_MANAGER;
use redlock_engine::quorum::Quorum;

/// Something that happened, for an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whether it is bad news.
    pub kind: EventType,
    /// The master that it is about; `None`: the cluster.
    pub master: Option<String>,
    /// What happened, in a word.
    pub reason: &'static str,
    /// What happened, in a sentence.
    pub note: String,
}

/// The status of a cluster whose masters are as in `rows`.
#[must_use]
pub fn summarize(
    cluster: &RedisLockCluster,
    rows: Vec<MasterStatus>,
    problems: &[Problem],
    now: Timestamp,
) -> RedisLockClusterStatus {
    let old = cluster.status.clone().unwrap_or_default();
    let quorum = Quorum::of(rows.len());
    let armed = rows.iter().filter(|row| row.state == MasterState::Armed).count();
    let (all, available) = (armed == rows.len(), quorum.is_reached_by(armed));
    // A cluster leaves Pending once, when every master has been armed.
    let bootstrapping = old.phase.is_none_or(|phase| phase == ClusterPhase::Pending) && !all;
    let phase = match (bootstrapping, all, available) {
        (true, ..) => ClusterPhase::Pending,
        (_, true, _) => ClusterPhase::Ready,
        (_, _, true) => ClusterPhase::Degraded,
        _ => ClusterPhase::Unavailable,
    };
    let generation = cluster.meta().generation;
    let mut conditions = old.conditions;
    let mut set = |type_, truth: bool, reason, message: String| {
        set_condition(&mut conditions, type_, Truth::from(truth), reason, message, generation, now);
    };
    let count = format!("{armed} of {} masters are armed, {} are needed", rows.len(), quorum.votes_needed());
    let reason = match (available, bootstrapping) {
        (true, _) => "QuorumArmed",
        (_, true) => "Bootstrapping",
        _ => "QuorumLost",
    };
    set(condition::AVAILABLE, available, reason, count);
    let conflict = problems.iter().any(|problem| problem.reason == NAME_CONFLICT);
    let reason = match (all, conflict) {
        (true, _) => "AllArmed",
        (_, true) => NAME_CONFLICT,
        _ => "MastersNotArmed",
    };
    set(condition::READY, all, reason, not_armed(&rows));
    let moving = rows.iter().any(|row| row.state != MasterState::Armed && row.state != MasterState::Misconfigured);
    set(condition::PROGRESSING, moving, if moving { "MastersReturning" } else { "Settled" }, String::new());
    let reason = problems.first().map_or("Valid", |problem| problem.reason);
    let message = problems.iter().map(|problem| problem.message.as_str()).collect::<Vec<_>>().join("; ");
    set(condition::CONFIG_VALID, problems.is_empty(), reason, message);
    RedisLockClusterStatus {
        phase: Some(phase),
        ready: Some(format!("{armed}/{}", rows.len())),
        quorum: i32::try_from(quorum.votes_needed()).ok(),
        returning: returning(&rows),
        observed_generation: generation,
        masters: rows,
        conditions,
    }
}

/// The masters that do not vote, each with where it stands.
fn not_armed(rows: &[MasterStatus]) -> String {
    let out = rows.iter().filter(|row| row.state != MasterState::Armed);
    let texts = out.map(|row| match &row.message {
        Some(message) => format!("{} is {:?}: {message}", row.name, row.state),
        None => format!("{} is {:?}", row.name, row.state),
    });
    texts.collect::<Vec<_>>().join("; ")
}

/// The masters that wait out their delay, and until when.
fn returning(rows: &[MasterStatus]) -> Option<String> {
    let waiting = rows.iter().filter_map(|row| {
        let until = row.restart_not_before.as_ref()?.0.to_zoned(TimeZone::UTC).strftime("%H:%M:%SZ").to_string();
        (row.state != MasterState::Armed).then(|| format!("{} until {until}", row.name))
    });
    Some(waiting.collect::<Vec<_>>().join(", ")).filter(|text| !text.is_empty())
}

/// Writes `status` if it differs from what `cluster` has, and takes over what the API server made of it.
///
/// It fails with [`Error::Conflict`] if the cluster was written since it was read: a record of who may vote must never be
/// replaced by one that was decided on an older state, however long this task slept in between.
pub async fn write(
    client: &Client,
    cluster: &mut RedisLockCluster,
    status: RedisLockClusterStatus,
) -> Result<(), Error> {
    if cluster.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let (name, namespace) = (cluster.name_any(), cluster.namespace().unwrap_or_default());
    let patch = json!({
        "apiVersion": RedisLockCluster::api_version(&()),
        "kind": RedisLockCluster::kind(&()),
        "metadata": {"name": name, "resourceVersion": cluster.resource_version()},
        "status": status,
    });
    let api = Api::<RedisLockCluster>::namespaced(client.clone(), &namespace);
    let params = PatchParams::apply(STATUS_MANAGER).force();
    let written = api.patch_status(&name, &params, &Patch::Apply(patch)).await;
    *cluster =
        written.map_err(|source| Error::kube("write the status of", format!("RedisLockCluster {name}"), source))?;
    Ok(())
}

/// What happened between two statuses.
#[must_use]
pub fn notices(old: Option<&RedisLockClusterStatus>, new: &RedisLockClusterStatus) -> Vec<Notice> {
    let none = RedisLockClusterStatus::default();
    let old = old.unwrap_or(&none);
    let good = |reason, note| Notice { kind: EventType::Normal, master: None, reason, note };
    let bad = |reason, note| Notice { kind: EventType::Warning, master: None, reason, note };
    let mut notices = Vec::new();
    for row in &new.masters {
        let before = old.masters.iter().find(|before| before.name == row.name);
        let was_armed = before.is_some_and(|before| before.state == MasterState::Armed);
        let crashed = before.is_some_and(|before| before.crashes < row.crashes);
        if row.state == MasterState::Armed && (!was_armed || crashed) {
            let armed = good("MasterArmed", format!("{} votes", row.name));
            notices.push(Notice { master: Some(row.name.clone()), ..armed });
        } else if row.state != MasterState::Armed && (was_armed || crashed) {
            let why = row.message.as_deref().unwrap_or("it does not vote any more");
            let lost = bad("MasterLost", format!("{} is {:?}: {why}", row.name, row.state));
            notices.push(Notice { master: Some(row.name.clone()), ..lost });
        }
    }
    let find = |status: &RedisLockClusterStatus, type_: &str| {
        status.conditions.iter().find(|condition| condition.type_ == type_).cloned()
    };
    if let (Some(before), Some(after)) = (find(old, condition::AVAILABLE), find(new, condition::AVAILABLE)) {
        match (before.status.as_str(), after.status.as_str()) {
            ("True", "False") => notices.push(bad("QuorumLost", after.message)),
            ("False", "True") if before.reason == "QuorumLost" => notices.push(good("QuorumRestored", after.message)),
            _ => {}
        }
    }
    let reason_before = find(old, condition::CONFIG_VALID).map(|condition| condition.reason);
    if let Some(after) = find(new, condition::CONFIG_VALID)
        && after.status == "False"
        && reason_before.as_ref() != Some(&after.reason)
    {
        let reason = if after.reason == NAME_CONFLICT { NAME_CONFLICT } else { "ConfigInvalid" };
        notices.push(bad(reason, after.message));
    }
    notices
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
