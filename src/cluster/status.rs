//! Third and fifth step: what the status of a cluster says ([`summarize`], pure), and how it is written.
//!
//! The status is also the record that keeps a crashed master out. So it is written before anything is done.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use kube::{Resource, ResourceExt};
use redlock_engine::quorum::Quorum;
use serde_json::json;

use super::clock::now;
use super::decide::refusal;
use super::decide::validate::{NAME_CONFLICT, Problem};
use crate::api::cluster::{ClusterPhase, CredentialsStatus, MasterState, MasterStatus};
use crate::api::condition::{self, Truth, set_condition};
use crate::api::{RedisLockCluster, RedisLockClusterStatus};
use crate::operator::api_server::{ApiServer, Error};

/// Writes the status of `cluster` with these records, if it differs from what `cluster` has, and takes over what the API server
/// answers.
///
/// It fails with an outdated write ([`Error::is_outdated_write`]) if the cluster was written since it was read. A record of who
/// may vote must never be replaced by one that was decided on an older state, however long this task slept in between.
pub(crate) async fn write_status(
    api: &ApiServer,
    cluster: &mut RedisLockCluster,
    rows: Vec<MasterStatus>,
    problems: &[Problem],
    credentials: &CredentialsStatus,
) -> Result<(), Error> {
    api.require_leadership()?;
    let summary = summarize(cluster, rows, problems, now());
    let mut status = RedisLockClusterStatus { credentials: Some(credentials.clone()), ..summary };
    if cluster.status.as_ref() == Some(&status) {
        return Ok(());
    }
    condition::retain_own(&mut status.conditions);
    let (name, namespace) = (cluster.name_any(), cluster.namespace().unwrap_or_default());
    let guard = json!({"resourceVersion": cluster.resource_version()});
    *cluster = api.apply_status(&namespace, &name, guard, &status).await?;
    Ok(())
}

/// The status of a cluster with these records of its masters.
pub(crate) fn summarize(
    cluster: &RedisLockCluster,
    rows: Vec<MasterStatus>,
    problems: &[Problem],
    now: Timestamp,
) -> RedisLockClusterStatus {
    let old = cluster.status.clone().unwrap_or_default();
    let quorum = Quorum::of(rows.len());
    let armed = rows.iter().filter(|row| row.state == MasterState::Armed).count();
    let (all, available) = (armed == rows.len(), quorum.is_reached_by(armed));
    // A cluster leaves Pending once: when every master is armed for the first time.
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
    let problems: Vec<_> = problems.iter().cloned().chain(refusal::problems(&rows)).collect();
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
        credentials: old.credentials,
        conditions,
    }
}

/// The masters that do not vote, each with its state.
fn not_armed(rows: &[MasterStatus]) -> String {
    let out = rows.iter().filter(|row| row.state != MasterState::Armed);
    let texts = out.map(|row| match &row.message {
        Some(message) => format!("{} is {:?}: {message}", row.name, row.state),
        None => format!("{} is {:?}", row.name, row.state),
    });
    texts.collect::<Vec<_>>().join("; ")
}

/// The masters that wait for the end of their restart delay, and until when.
fn returning(rows: &[MasterStatus]) -> Option<String> {
    let waiting = rows.iter().filter_map(|row| {
        let until = row.restart_not_before.as_ref()?.0.to_zoned(TimeZone::UTC).strftime("%H:%M:%SZ").to_string();
        (row.state != MasterState::Armed).then(|| format!("{} until {until}", row.name))
    });
    Some(waiting.collect::<Vec<_>>().join(", ")).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests;
