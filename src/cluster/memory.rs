//! What this process remembers of a cluster besides its status: its own monotonic clock, its root key, and which users it has set.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use kube::ResourceExt;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::server::acl::Clients;
use super::server::fitness::Facts;
use crate::api::cluster::{MasterState, MasterStatus};
use crate::api::{RedisLockCluster, WatchedCluster};
use crate::contract::credentials::RootKey;
use crate::operator::watch::Watch;

/// What is remembered of one cluster. After a restart of the operator it is empty: then the status alone decides.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// When this process last saw a master gone, by its monotonic clock.
    gone: HashMap<String, Instant>,
    /// The users that this process has set, by master: on which server process (its `run_id`), and for which clients.
    users: HashMap<String, (String, Clients)>,
    /// The root key, so that a Secret that is deleted by mistake can be restored.
    root_key: Option<RootKey>,
    /// When this process put new passwords of clients into force.
    rotated: Option<Instant>,
}

/// The memories of all clusters, by the UID of the cluster.
#[derive(Debug, Default)]
pub(crate) struct Memories(std::sync::Mutex<HashMap<String, Arc<Mutex<Memory>>>>);

// === impl Memory ===

impl Memory {
    /// Time since this process last saw the master gone; `None` if it did not.
    pub(crate) fn since_gone(&self, master: &str) -> Option<Duration> {
        self.gone.get(master).map(Instant::elapsed)
    }

    /// The master is gone, as of now.
    pub(crate) fn note_gone(&mut self, master: &str) {
        self.gone.insert(master.to_owned(), Instant::now());
    }

    /// Forgets when those masters were gone that are armed by now, or exist no more.
    pub(crate) fn forget_returned(&mut self, rows: &[MasterStatus]) {
        self.gone.retain(|master, _| rows.iter().any(|row| row.name == *master && row.state != MasterState::Armed));
    }

    /// Whether this process has set the users of `clients` on this very server process.
    pub(crate) fn has_set_users(&self, master: &str, facts: &Facts, clients: &Clients) -> bool {
        self.users.get(master).is_some_and(|(run_id, set)| *run_id == facts.run_id && set == clients)
    }

    /// This process has set the users of `clients`.
    pub(crate) fn note_users(&mut self, master: &str, facts: &Facts, clients: &Clients) {
        self.users.insert(master.to_owned(), (facts.run_id.clone(), clients.clone()));
    }

    /// Time since this process put new passwords into force; `None` if it did not.
    pub(crate) fn since_rotation(&self) -> Option<Duration> {
        self.rotated.map(|at| at.elapsed())
    }

    /// New passwords come into force, as of now.
    pub(crate) fn note_rotation(&mut self) {
        self.rotated = Some(Instant::now());
    }

    /// The root key, as far as this process knows it.
    pub(crate) fn root_key(&self) -> Option<&RootKey> {
        self.root_key.as_ref()
    }

    /// This is the root key. One with which a server let the operator in (`is_proven`) replaces another; one that no server has
    /// accepted yet is better than none.
    pub(crate) fn note_root_key(&mut self, key: &RootKey, is_proven: bool) {
        if is_proven || self.root_key.is_none() {
            self.root_key = Some(key.clone());
        }
    }
}

// === impl Memories ===

impl Memories {
    /// The memory of `cluster`. Memories of clusters that do not exist any more are dropped.
    pub(crate) fn of(&self, cluster: &RedisLockCluster, existing: &Watch<WatchedCluster>) -> Arc<Mutex<Memory>> {
        let uid = cluster.uid().unwrap_or_default();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains_key(&uid) {
            let existing: HashSet<_> = existing.store().state().iter().filter_map(|cluster| cluster.uid()).collect();
            all.retain(|uid, _| existing.contains(uid));
        }
        Arc::clone(all.entry(uid).or_default())
    }
}
