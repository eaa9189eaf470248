//! What is to be done with a lock. No IO, no clock.

use std::time::Duration;

use super::connections::Unconnected;
use super::identity::{identity, recorded_owner};
use super::state::State;
use crate::api::{DistributedLock, RedisLockCluster};
use redlock_engine::{LeaseOptions, LockKey, Owner, Renewal};

/// What is known when a lock is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The object.
    pub lock: &'a DistributedLock,
    /// Its cluster, if that exists.
    pub cluster: Option<&'a RedisLockCluster>,
    /// Why the cluster cannot be connected to, if it cannot.
    pub unconnected: Option<&'a Unconnected>,
    /// Where the lock stands; `None` without an actor.
    pub state: Option<&'a State>,
    /// Whether this process decides.
    pub leader: bool,
}

/// Why a lock cannot be worked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Its name is none that the masters can have.
    InvalidKey(String),
    /// Its cluster does not exist.
    ClusterNotFound,
    /// Its cluster cannot be connected to.
    Unconnected(Unconnected),
    /// Its cluster does not admit its namespace.
    NamespaceNotAllowed,
    /// Its lease would be longer than its cluster allows.
    TtlAboveMaximum {
        /// What it asks for.
        ttl: Duration,
        /// What the cluster allows.
        max: Duration,
    },
}

/// A grant that status shows, and of which lock.
pub type Recorded = (LockKey, Owner);

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing: another process decides, or the object is going without having left anything.
    Nothing,
    /// Stop the actor, leaving what it holds to the leader.
    Abandon,
    /// Renew the leader's grant.
    Follow {
        /// The lock.
        key: LockKey,
        /// How.
        options: LeaseOptions,
        /// The grant.
        owner: Owner,
    },
    /// Give back what the deleted lock holds, and let it go.
    Finalize {
        /// The grant that status shows.
        recorded: Option<Recorded>,
    },
    /// Do nothing with the masters until something changes, and say why. What is held stays held.
    Wait(Obstacle),
    /// The lock cannot work as it is written: give back what is held, and say why.
    Refuse {
        /// Why.
        obstacle: Obstacle,
        /// The grant that status shows.
        recorded: Option<Recorded>,
    },
    /// Take the lock and keep it.
    Hold {
        /// The lock.
        key: LockKey,
        /// In which name, and how.
        options: LeaseOptions,
        /// A grant to go on with.
        adopt: Option<Owner>,
        /// What is wrong with the spec although the lock is kept on.
        obstacle: Option<Obstacle>,
    },
    /// Watch who holds the lock.
    Observe {
        /// The lock.
        key: LockKey,
    },
}

/// The finalizer that has a deleted lock given back.
pub const FINALIZER: &str = "redlock.dev/release";

impl Obstacle {
    /// The bounded word for it: the reason of a condition.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidKey(_) => "InvalidKey",
            Self::ClusterNotFound => "ClusterNotFound",
            Self::Unconnected(why) => why.reason(),
            Self::NamespaceNotAllowed => "NamespaceNotAllowed",
            Self::TtlAboveMaximum { .. } => "TtlAboveMaximum",
        }
    }

    /// Whether it is the spec that has to change, of the lock or of its cluster.
    #[must_use]
    pub fn is_in_spec(&self) -> bool {
        matches!(self, Self::InvalidKey(_) | Self::NamespaceNotAllowed | Self::TtlAboveMaximum { .. })
    }

    /// What is wrong with `lock`, and what to do about it.
    #[must_use]
    pub fn message(&self, lock: &DistributedLock) -> String {
        let cluster = format!("{}/{}", lock.cluster_namespace(), lock.spec.cluster_ref.name);
        match self {
            Self::InvalidKey(why) => format!("{why}: create the lock with another spec.key"),
            Self::ClusterNotFound => {
                format!("there is no RedisLockCluster {cluster}: create it, or create the lock with another clusterRef")
            }
            Self::Unconnected(why) => why.to_string(),
            Self::NamespaceNotAllowed => {
                let namespace = lock.metadata.namespace.as_deref().unwrap_or_default();
                format!(
                    "RedisLockCluster {cluster} does not admit namespace {namespace}: \
                     set spec.allowedNamespaces.from of the cluster to All, or use a cluster of this namespace"
                )
            }
            Self::TtlAboveMaximum { ttl, max } => format!(
                "spec.lease.ttl {} is above maxTTL {} of RedisLockCluster {cluster}: lower ttl, or raise maxTTL",
                seconds(*ttl),
                seconds(*max)
            ),
        }
    }
}

/// What is to be done in this situation.
#[must_use]
pub fn decide(situation: &Situation<'_>) -> Action {
    let lock = situation.lock;
    let finalizing = lock.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER);
    if lock.metadata.deletion_timestamp.is_some() {
        return match (situation.leader, finalizing, situation.state) {
            (true, true, _) => {
                let recorded = key_of(lock).ok().and_then(|key| Some((key, recorded_owner(lock)?)));
                Action::Finalize { recorded }
            }
            (_, _, Some(_)) => Action::Abandon,
            (_, _, None) => Action::Nothing,
        };
    }
    if situation.leader { lead(situation) } else { follow(situation) }
}

fn lead(situation: &Situation<'_>) -> Action {
    let lock = situation.lock;
    let recorded = recorded_owner(lock);
    let key = match key_of(lock) {
        Ok(key) => key,
        Err(obstacle) => return Action::Refuse { obstacle, recorded: None },
    };
    let refuse = |obstacle| Action::Refuse { obstacle, recorded: recorded.clone().map(|owner| (key.clone(), owner)) };
    let Some(cluster) = situation.cluster else { return Action::Wait(Obstacle::ClusterNotFound) };
    if !admits(cluster, lock) {
        return refuse(Obstacle::NamespaceNotAllowed);
    }
    let too_long = too_long(cluster, lock);
    let is_held = situation.state.map_or(recorded.is_some(), State::is_held);
    if let (Some(obstacle), false) = (&too_long, is_held) {
        return refuse(obstacle.clone());
    }
    if let Some(why) = situation.unconnected {
        return Action::Wait(Obstacle::Unconnected(why.clone()));
    }
    match options_of(cluster, lock) {
        // A lock that is held is not taken away because its spec was edited to what it cannot be: it is kept on the
        // longest terms that the cluster allows.
        Some(options) => Action::Hold { key, options, adopt: recorded, obstacle: too_long },
        None => Action::Observe { key },
    }
}

fn follow(situation: &Situation<'_>) -> Action {
    let lock = situation.lock;
    let found = situation.cluster.filter(|cluster| admits(cluster, lock) && situation.unconnected.is_none());
    let job = found.and_then(|cluster| Some((key_of(lock).ok()?, options_of(cluster, lock)?, recorded_owner(lock)?)));
    match (job, situation.state) {
        (Some((key, options, owner)), _) => Action::Follow { key, options, owner },
        (None, Some(_)) => Action::Abandon,
        (None, None) => Action::Nothing,
    }
}

fn key_of(lock: &DistributedLock) -> Result<LockKey, Obstacle> {
    let namespace = lock.metadata.namespace.as_deref().unwrap_or_default();
    LockKey::new(namespace, &lock.key()).map_err(|why| Obstacle::InvalidKey(why.to_string()))
}

fn admits(cluster: &RedisLockCluster, lock: &DistributedLock) -> bool {
    let own = cluster.metadata.namespace.as_deref().unwrap_or_default();
    cluster.spec.admits(own, lock.metadata.namespace.as_deref().unwrap_or_default())
}

fn too_long(cluster: &RedisLockCluster, lock: &DistributedLock) -> Option<Obstacle> {
    let (ttl, max) = (lock.spec.ttl(), cluster.spec.max_ttl());
    // Without a holder the lease is its pods' own, and this ttl is nobody's.
    (lock.spec.holder.is_some() && ttl > max).then_some(Obstacle::TtlAboveMaximum { ttl, max })
}

/// How the operator holds the lock; `None` if it does not.
fn options_of(cluster: &RedisLockCluster, lock: &DistributedLock) -> Option<LeaseOptions> {
    let (holder, uid) = (lock.spec.holder.as_deref()?, lock.metadata.uid.as_deref()?);
    let ttl = lock.spec.ttl().min(cluster.spec.max_ttl());
    let renew_every = lock.spec.renew_every().min(ttl / 2);
    let options = LeaseOptions::new(identity(holder, uid), ttl);
    // Every replica renews it, and each new process goes on with it.
    Some(LeaseOptions { renewal: Renewal::Every(renew_every), is_shared: true, ..options })
}

/// A duration as people write it in a spec.
#[must_use]
pub fn seconds(duration: Duration) -> String {
    match duration.subsec_millis() {
        0 => format!("{}s", duration.as_secs()),
        _ => format!("{}ms", duration.as_millis()),
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
