//! Which clients may log in, with which passwords, and how passwords are replaced under held locks. No IO.
//!
//! # Invariants
//! 1. A password is in Secrets for clients only when the masters accept it: all that answer, and a majority.
//! 2. A password that was in Secrets is accepted for [`OVERLAP`] after the next one is, by the operator's wall clock from the recorded
//!    time, so that a restart of the operator does not cut it short. Within one process the monotonic clock counts as well, so that
//!    a wall clock that jumps does not either. An operator whose clock is ahead ends the overlap early: clients that are connected
//!    stay so, until their connections are closed for the new password, and by then a kubelet has usually refreshed their Secret.
//! 3. A revoked password is accepted by no master from the moment at which the operator has reached that.
//! 4. The user of a namespace stays until its last `DistributedLock` has been gone for maxTTL. A namespace that the cluster does not
//!    admit any more, or that is gone, loses it at once: its leases are not renewed any more and end by their TTL.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use redlock_engine::quorum::Quorum;

use super::Rules;
use crate::api::cluster::{CredentialsStatus, LeavingNamespace};
use crate::cluster::observed::{ObservedServer, Snapshot};
use crate::cluster::server::acl::Clients;
use crate::cluster::server::fitness::Facts;
use crate::contract::credentials::{Password, RootKey};

/// How long a replaced password stays valid. A kubelet refreshes a mounted Secret within 90 s.
pub(crate) const OVERLAP: Duration = Duration::from_secs(300);
/// How soon it is checked again whether masters know the next passwords.
const CHECK_AFTER: Duration = Duration::from_secs(1);

/// What was decided about clients.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClientPlan {
    /// The new record. It must be written before users are set.
    pub(crate) record: CredentialsStatus,
    /// Who may log in; `None` where the root key is missing.
    pub(crate) clients: Option<Clients>,
    /// The next passwords have come into force just now.
    pub(crate) has_advanced: bool,
    /// When to reconcile again, if nothing happens before.
    pub(crate) wake: Option<Duration>,
}

/// Decides about clients.
pub(crate) fn plan_clients(snapshot: &Snapshot, rules: &Rules) -> ClientPlan {
    let wanted = snapshot.cluster.spec.credentials_generation();
    let recorded = snapshot.cluster.status.as_ref().and_then(|status| status.credentials.clone());
    let mut record = recorded.unwrap_or_else(|| CredentialsStatus {
        generation: wanted,
        next_generation: None,
        previous_generation: None,
        previous_valid_until: None,
        leaving: Vec::new(),
    });
    record.leaving = leaving(snapshot, rules, &record.leaving);
    let mut has_advanced = false;
    if let Some(key) = &snapshot.key {
        has_advanced = advance(&mut record, snapshot, rules, key, wanted);
    }
    let clients = snapshot.key.as_ref().map(|key| clients(snapshot, key, &record));
    let mut wakes: Vec<Duration> = record.leaving.iter().map(|namespace| left(rules, &namespace.until)).collect();
    wakes.extend(overlap_left(
        &record,
        rules,
        if has_advanced { Some(Duration::ZERO) } else { snapshot.since_rotation },
    ));
    if record.next_generation.is_some() {
        wakes.push(CHECK_AFTER);
    }
    ClientPlan { record, clients, has_advanced, wake: wakes.into_iter().min() }
}

/// Takes the replacement of passwords one step further, if it is time. Returns whether the next passwords come into force.
fn advance(record: &mut CredentialsStatus, snapshot: &Snapshot, rules: &Rules, key: &RootKey, wanted: i64) -> bool {
    if let Some(next) = record.next_generation {
        if !is_known_to_masters(snapshot, key, record, next) {
            return false;
        }
        record.previous_generation = Some(record.generation);
        record.previous_valid_until = Some(MicroTime(later(rules.now, OVERLAP)));
        record.generation = next;
        record.next_generation = None;
        return true;
    }
    if record.previous_generation.is_some() && overlap_left(record, rules, snapshot.since_rotation).is_none() {
        record.previous_generation = None;
        record.previous_valid_until = None;
    }
    // One after the other: a third password would be valid for nobody knows how long.
    if record.previous_generation.is_none() && wanted > record.generation {
        record.next_generation = Some(wanted);
    }
    false
}

/// Whether the masters that answer, and a majority of all, let each client in with its password of `generation`.
fn is_known_to_masters(snapshot: &Snapshot, key: &RootKey, record: &CredentialsStatus, generation: i64) -> bool {
    let digests: Vec<_> = namespaces(snapshot, record)
        .map(|(namespace, uid)| (namespace, password(snapshot, key, namespace, uid, generation).digest()))
        .collect();
    let knows = |facts: &Facts| {
        digests
            .iter()
            .all(|(namespace, digest)| facts.namespaces.get(*namespace).is_some_and(|all| all.contains(digest)))
    };
    let armed: Vec<_> = armed(snapshot).collect();
    armed.iter().all(|facts| knows(facts)) && Quorum::of(snapshot.masters.len()).is_reached_by(armed.len())
}

/// The namespaces without a lock whose users are kept, and until when.
fn leaving(snapshot: &Snapshot, rules: &Rules, recorded: &[LeavingNamespace]) -> Vec<LeavingNamespace> {
    let without_lock = snapshot.namespaces.iter().filter(|(_, namespace)| !namespace.in_use).map(|(name, _)| name);
    let until = |name: &String| match recorded.iter().find(|namespace| namespace.name == *name) {
        Some(known) => Some(known.until.clone()).filter(|until| !left(rules, until).is_zero()),
        None => armed(snapshot)
            .any(|facts| facts.namespaces.contains_key(name))
            .then(|| MicroTime(later(rules.now, rules.max_ttl))),
    };
    without_lock.filter_map(|name| Some(LeavingNamespace { name: name.clone(), until: until(name)? })).collect()
}

/// Who may log in: name and uid of each namespace.
fn namespaces<'a>(
    snapshot: &'a Snapshot,
    record: &'a CredentialsStatus,
) -> impl Iterator<Item = (&'a String, &'a str)> {
    let stays = |name: &String| record.leaving.iter().any(|leaving| leaving.name == *name);
    let all = snapshot.namespaces.iter().filter(move |(name, namespace)| namespace.in_use || stays(name));
    all.map(|(name, namespace)| (name, namespace.uid.as_str()))
}

fn clients(snapshot: &Snapshot, key: &RootKey, record: &CredentialsStatus) -> Clients {
    let generations: Vec<_> =
        [Some(record.generation), record.next_generation, record.previous_generation].into_iter().flatten().collect();
    let mut clients = Clients::of(key, snapshot.cluster.spec.scripts());
    for (namespace, uid) in namespaces(snapshot, record) {
        let passwords = generations.iter().map(|&generation| password(snapshot, key, namespace, uid, generation));
        clients.admit(namespace, passwords);
    }
    clients
}

fn password(snapshot: &Snapshot, key: &RootKey, namespace: &str, uid: &str, generation: i64) -> Password {
    key.client_password(uid, generation, snapshot.cluster.spec.namespace_generation(namespace))
}

fn armed(snapshot: &Snapshot) -> impl Iterator<Item = &Facts> {
    snapshot.masters.iter().filter_map(|master| match &master.server {
        ObservedServer::Up(facts) if facts.is_armed() => Some(facts),
        _ => None,
    })
}

/// What is left of the time in which replaced passwords are valid; `None` if it is over, or none was replaced.
fn overlap_left(record: &CredentialsStatus, rules: &Rules, since: Option<Duration>) -> Option<Duration> {
    let by_wall_clock = left(rules, record.previous_valid_until.as_ref()?);
    let by_monotonic_clock = since.map_or(Duration::ZERO, |since| OVERLAP.saturating_sub(since));
    Some(by_wall_clock.max(by_monotonic_clock)).filter(|left| !left.is_zero())
}

fn left(rules: &Rules, until: &MicroTime) -> Duration {
    Duration::try_from(until.0.duration_since(rules.now)).unwrap_or_default()
}

fn later(time: Timestamp, duration: Duration) -> Timestamp {
    let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
