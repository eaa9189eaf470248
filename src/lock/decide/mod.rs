//! Decides what is done with a lock. No IO, no clock.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource as _, ResourceExt as _};
use redlock_engine::{LeaseOptions, LockKey, Owner, Renewal};

use super::connections::Unconnected;
use super::identity::{identity, is_of_holder, recorded_owner};
use super::keeper::assignment::WhenLost;
use super::keeper::state::State;
use super::look_up::Snapshot;
use crate::api::condition::HELD;
use crate::api::lock::{LockPhase, OnLost};
use crate::api::{DistributedLock, RedisLockCluster};
pub(crate) use crate::contract::names::LOCK_FINALIZER as FINALIZER;
use crate::duration::format;
use crate::operator::claim::Served;

/// The reasons of the condition `Held` where a lease was lost: words of [`redlock_engine::Loss`].
const LOSSES: [&str; 2] = ["Expired", "Taken"];

/// What keeps a lock from being acquired or observed, by its cause: the spec has to change, or something is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// Masters cannot have a key of this name.
    InvalidKey(String),
    /// The cluster does not exist.
    ClusterNotFound,
    /// There is no connection to the cluster.
    Unconnected(Unconnected),
    /// The watch does not show the lock's namespace yet, which is older than the lock.
    NamespaceUnknown,
    /// The cluster does not admit the lock's namespace.
    NamespaceNotAllowed,
    /// The lease is longer than the cluster allows.
    TtlAboveMaximum {
        /// The TTL of the spec.
        ttl: Duration,
        /// The cluster's `maxTTL`.
        max: Duration,
    },
}

/// The grant that status records: key and owner.
pub(crate) type Recorded = (LockKey, Owner);

/// What is done with a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Nothing: another process decides, or a deleted object has nothing to release.
    Nothing,
    /// End the actor and leave its lease to the leader.
    Abandon,
    /// Renew the leader's grant.
    Follow {
        /// The lock.
        key: LockKey,
        /// Identity and terms of the lease.
        options: LeaseOptions,
        /// The grant.
        owner: Owner,
    },
    /// Report that the object cannot be read, for this reason.
    ReportUnreadable(String),
    /// Release what the deleted lock holds, then remove the finalizer.
    Finalize {
        /// The grant that status records.
        recorded: Option<Recorded>,
    },
    /// Wait until something changes, and report the obstacle. A held lock stays held.
    Wait(Obstacle),
    /// Release what the lock holds, and report the obstacle: its spec cannot be carried out.
    Refuse {
        /// What is wrong.
        obstacle: Obstacle,
        /// The grant that status records.
        recorded: Option<Recorded>,
    },
    /// Acquire nothing until the spec changes: the lease was lost, and `onLost` is `Fail`.
    Rest,
    /// Acquire the lock and keep it.
    Hold {
        /// The lock.
        key: LockKey,
        /// Identity and terms of the lease.
        options: LeaseOptions,
        /// A grant to adopt.
        adopt: Option<Owner>,
        /// A grant to an earlier holder of this lock, to be released before.
        former: Option<Owner>,
        /// What follows a loss.
        when_lost: WhenLost,
        /// What is wrong with the spec although the lock is kept.
        obstacle: Option<Obstacle>,
    },
    /// Observe who holds the lock.
    Observe {
        /// The lock.
        key: LockKey,
    },
}

// === impl Obstacle ===

impl Obstacle {
    /// The reason of a condition, as a bounded word.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::InvalidKey(_) => "InvalidKey",
            Self::ClusterNotFound => "ClusterNotFound",
            Self::Unconnected(why) => why.reason(),
            Self::NamespaceUnknown => "NamespaceUnknown",
            Self::NamespaceNotAllowed => "NamespaceNotAllowed",
            Self::TtlAboveMaximum { .. } => "TtlAboveMaximum",
        }
    }

    /// Whether a spec has to change, of the lock or of its cluster.
    pub(crate) fn is_in_spec(&self) -> bool {
        matches!(self, Self::InvalidKey(_) | Self::NamespaceNotAllowed | Self::TtlAboveMaximum { .. })
    }

    /// What is wrong with `lock`, and how to repair it.
    pub(crate) fn message(&self, lock: &DistributedLock) -> String {
        let cluster = format!("{}/{}", lock.cluster_namespace(), lock.spec.cluster_ref.name);
        match self {
            Self::InvalidKey(why) => format!("{why}: create the lock with another spec.key"),
            Self::ClusterNotFound => {
                format!("there is no RedisLockCluster {cluster}: create it, or create the lock with another clusterRef")
            }
            Self::Unconnected(why) => why.to_string(),
            Self::NamespaceUnknown => "the operator has not seen the lock's namespace yet".to_owned(),
            Self::NamespaceNotAllowed => {
                let namespace = lock.metadata.namespace.as_deref().unwrap_or_default();
                format!(
                    "RedisLockCluster {cluster} does not admit namespace {namespace}: \
                     widen spec.allowedNamespaces of the cluster, label the namespace as that asks, or use a cluster of this namespace"
                )
            }
            Self::TtlAboveMaximum { ttl, max } => format!(
                "spec.lease.ttl {} is above maxTTL {} of RedisLockCluster {cluster}: lower ttl, or raise maxTTL",
                format(*ttl),
                format(*max)
            ),
        }
    }
}

/// What is done in this situation.
pub(crate) fn decide(snapshot: &Snapshot) -> Plan {
    let meta = snapshot.object.meta();
    let is_deleted = meta.deletion_timestamp.is_some();
    let has_finalizer = meta.finalizers.iter().flatten().any(|f| f == FINALIZER);
    match snapshot.served {
        // The other operator decides about it, and finalizes it.
        Served::By(_) if snapshot.state.is_some() => return Plan::Abandon,
        Served::By(_) => return Plan::Nothing,
        // Until an operator claims it, which may be another. That is a change, and triggers the next reconcile.
        Served::Nowhere if !is_deleted => return Plan::Nothing,
        Served::Here | Served::Nowhere => {}
    }
    match snapshot.lock() {
        Ok(lock) if is_deleted => decide_deleted(snapshot, lock, has_finalizer),
        Ok(lock) if snapshot.leads => decide_as_leader(snapshot, lock),
        Ok(lock) => decide_as_follower(snapshot, lock),
        // It can be deleted like any other, though nobody knows what it holds.
        Err(_) if is_deleted && has_finalizer && snapshot.leads => Plan::Finalize { recorded: None },
        Err(_) if is_deleted => Plan::Nothing,
        Err(why) => Plan::ReportUnreadable(why.to_owned()),
    }
}

fn decide_deleted(snapshot: &Snapshot, lock: &DistributedLock, has_finalizer: bool) -> Plan {
    if snapshot.leads && has_finalizer {
        let recorded = key_of(lock).ok().and_then(|key| Some((key, recorded_owner(lock)?)));
        return Plan::Finalize { recorded };
    }
    if snapshot.state.is_some() { Plan::Abandon } else { Plan::Nothing }
}

fn decide_as_leader(snapshot: &Snapshot, lock: &DistributedLock) -> Plan {
    if has_failed(lock) {
        return Plan::Rest;
    }
    let recorded = recorded_owner(lock);
    let key = match key_of(lock) {
        Ok(key) => key,
        Err(obstacle) => return Plan::Refuse { obstacle, recorded: None },
    };
    let refuse = |obstacle| Plan::Refuse { obstacle, recorded: recorded.clone().map(|owner| (key.clone(), owner)) };
    let Some(cluster) = &snapshot.cluster else { return Plan::Wait(Obstacle::ClusterNotFound) };
    match admits(snapshot, cluster) {
        None => return Plan::Wait(Obstacle::NamespaceUnknown),
        Some(false) => return refuse(Obstacle::NamespaceNotAllowed),
        Some(true) => {}
    }
    let too_long = too_long(cluster, lock);
    let granted = match &snapshot.state {
        Some(State::Held { owner, .. }) => Some(owner),
        Some(_) => None,
        None => recorded.as_ref(),
    };
    let is_held = granted.is_some_and(|owner| is_of_holder(lock, owner));
    if let (Some(obstacle), false) = (&too_long, is_held) {
        return refuse(obstacle.clone());
    }
    if let Some(why) = snapshot.unconnected() {
        return Plan::Wait(Obstacle::Unconnected(why.clone()));
    }
    match options_of(cluster, lock) {
        // An invalid edit of the spec does not take a held lock away: it is kept on the longest terms that the cluster
        // allows.
        Some(options) => {
            let adopt = recorded.filter(|owner| is_of_holder(lock, owner));
            let (former, when_lost) = (former(snapshot, lock), when_lost(lock));
            Plan::Hold { key, options, adopt, former, when_lost, obstacle: too_long }
        }
        None => Plan::Observe { key },
    }
}

/// Whether status says that this generation of the lock is not acquired again. What is wrong with its spec has other reasons, and
/// may heal without a change.
fn has_failed(lock: &DistributedLock) -> bool {
    let is_lost = |condition: &Condition| condition.type_ == HELD && LOSSES.contains(&condition.reason.as_str());
    lock.spec.on_lost == Some(OnLost::Fail)
        && lock.status.as_ref().is_some_and(|status| {
            status.phase == Some(LockPhase::Failed)
                && status.observed_generation == lock.metadata.generation
                && status.conditions.iter().any(is_lost)
        })
}

fn when_lost(lock: &DistributedLock) -> WhenLost {
    match lock.spec.on_lost.unwrap_or_default() {
        OnLost::Reacquire => WhenLost::Reacquire,
        OnLost::Fail => WhenLost::Stop { generation: lock.metadata.generation },
    }
}

/// The grant of this lock to another holder than the spec names now. An actor that holds or contends knows it; before, status does.
fn former(snapshot: &Snapshot, lock: &DistributedLock) -> Option<Owner> {
    let granted = match &snapshot.state {
        Some(State::Held { owner, .. } | State::Adopting { owner, .. }) => Some(owner.clone()),
        None | Some(State::Starting) => recorded_owner(lock),
        Some(State::Contending { .. } | State::Stopped { .. } | State::Observed(_) | State::Ended(_)) => None,
    };
    granted.filter(|owner| !is_of_holder(lock, owner))
}

fn decide_as_follower(snapshot: &Snapshot, lock: &DistributedLock) -> Plan {
    let is_usable =
        |cluster: &&RedisLockCluster| admits(snapshot, cluster) == Some(true) && snapshot.unconnected().is_none();
    let grant = snapshot.cluster.as_ref().filter(is_usable).filter(|_| !snapshot.is_too_old).and_then(|cluster| {
        Some((
            key_of(lock).ok()?,
            options_of(cluster, lock)?,
            recorded_owner(lock).filter(|owner| is_of_holder(lock, owner))?,
        ))
    });
    match (grant, &snapshot.state) {
        (Some((key, options, owner)), _) => Plan::Follow { key, options, owner },
        (None, Some(_)) => Plan::Abandon,
        (None, None) => Plan::Nothing,
    }
}

fn key_of(lock: &DistributedLock) -> Result<LockKey, Obstacle> {
    let namespace = lock.metadata.namespace.as_deref().unwrap_or_default();
    LockKey::new(namespace, &lock.key()).map_err(|why| Obstacle::InvalidKey(why.to_string()))
}

/// Whether `cluster` admits the lock's namespace; `None` if that is not known yet.
fn admits(snapshot: &Snapshot, cluster: &RedisLockCluster) -> Option<bool> {
    let own = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let namespace = snapshot.namespace.as_ref()?;
    Some(cluster.spec.admits(own, &snapshot.subject.namespace, namespace.labels()))
}

fn too_long(cluster: &RedisLockCluster, lock: &DistributedLock) -> Option<Obstacle> {
    let (ttl, max) = (lock.spec.ttl(), cluster.spec.max_ttl());
    // Without a holder the pods choose the TTL of their leases, and nobody uses this one.
    (lock.spec.holder.is_some() && ttl > max).then_some(Obstacle::TtlAboveMaximum { ttl, max })
}

/// The terms on which the operator holds the lock; `None` if pods hold it.
fn options_of(cluster: &RedisLockCluster, lock: &DistributedLock) -> Option<LeaseOptions> {
    let (holder, uid) = (lock.spec.holder.as_deref()?, lock.metadata.uid.as_deref()?);
    let ttl = lock.spec.ttl().min(cluster.spec.max_ttl());
    let renew_every = lock.spec.renew_every().min(ttl / 2);
    // Of a grant on shorter terms than the spec asks for, less is left.
    let min_validity = lock.spec.min_validity().min(ttl / 2);
    let options =
        LeaseOptions::new(identity(holder, uid), ttl).min_validity(min_validity).priority(lock.spec.priority());
    // Every replica renews it, and each new process adopts it.
    Some(options.renewal(Renewal::Every(renew_every)).shared(true))
}

#[cfg(test)]
mod tests;
