//! Which locks are on a cluster, and which namespaces use it. Kept up to date by each event, so that a look-up does not
//! depend on the number of locks elsewhere. No IO.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{PoisonError, RwLock};

use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube::{Resource as _, ResourceExt as _};

use crate::api::{DistributedLock, RedisLockCluster, WatchedCluster, WatchedLock};

/// A reference to a lock.
type LockObjectRef = ObjectRef<WatchedLock>;
/// A reference to a cluster.
pub(crate) type ClusterObjectRef = ObjectRef<WatchedCluster>;

/// Locks, by their namespace. No set is empty.
type LocksByNamespace = BTreeMap<String, HashSet<LockObjectRef>>;

/// The index.
#[derive(Debug, Default)]
pub(crate) struct LockIndex(RwLock<Entries>);

#[derive(Debug, Default)]
struct Entries {
    by_lock: HashMap<LockObjectRef, Entry>,
    by_cluster: HashMap<ClusterObjectRef, LocksByNamespace>,
    /// Locks that cannot be read: which cluster they are on is unknown.
    unreadable: LocksByNamespace,
    /// The list that is being received.
    incoming: Vec<(LockObjectRef, Entry)>,
}

/// What the index knows of a lock.
#[derive(Clone, Debug)]
struct Entry {
    namespace: String,
    uid: String,
    /// Its cluster; `None` if the lock cannot be read.
    cluster: Option<ClusterObjectRef>,
    is_deleting: bool,
}

impl LockIndex {
    /// Takes up an event of the watch.
    pub(crate) fn update(&self, event: &Event<WatchedLock>) {
        let mut entries = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Apply(lock) => entries.insert(LockObjectRef::from_obj(lock), Entry::of(lock)),
            Event::Delete(lock) => entries.remove(&LockObjectRef::from_obj(lock)),
            Event::Init => entries.incoming.clear(),
            Event::InitApply(lock) => entries.incoming.push((LockObjectRef::from_obj(lock), Entry::of(lock))),
            Event::InitDone => {
                let listed = std::mem::take(&mut entries.incoming);
                *entries = Entries::default();
                for (lock, entry) in listed {
                    entries.insert(lock, entry);
                }
            }
        }
    }

    /// The locks on a cluster.
    pub(crate) fn locks_on(&self, cluster: &ClusterObjectRef) -> Vec<LockObjectRef> {
        self.read(|entries| {
            entries.by_cluster.get(cluster).into_iter().flat_map(BTreeMap::values).flatten().cloned().collect()
        })
    }

    /// The namespaces with a lock that is, or may be, on `cluster`.
    ///
    /// A lock that is being deleted counts: it is still to be released. So does one that cannot be read: its users must
    /// not be locked out.
    pub(crate) fn namespaces_of(&self, cluster: &ClusterObjectRef) -> BTreeSet<String> {
        self.read(|entries| {
            let readable = entries.by_cluster.get(cluster).into_iter().flat_map(BTreeMap::keys);
            readable.chain(entries.unreadable.keys()).cloned().collect()
        })
    }

    /// Whether a lock of `namespace`, other than the one with `uid`, needs to reach `cluster`: one on it that is not being
    /// deleted, or one that cannot be read.
    pub(crate) fn is_needed(&self, namespace: &str, cluster: &ClusterObjectRef, uid: &str) -> bool {
        self.read(|entries| {
            let of_namespace = entries.by_cluster.get(cluster).and_then(|on_it| on_it.get(namespace));
            let mut readable = of_namespace.into_iter().flatten().filter_map(|lock| entries.by_lock.get(lock));
            readable.any(|entry| entry.uid != uid && !entry.is_deleting) || entries.unreadable.contains_key(namespace)
        })
    }

    /// The namespaces with a lock that cannot be read.
    pub(crate) fn unreadable_namespaces(&self) -> BTreeSet<String> {
        self.read(|entries| entries.unreadable.keys().cloned().collect())
    }

    fn read<T>(&self, look_up: impl FnOnce(&Entries) -> T) -> T {
        look_up(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Entries {
    fn insert(&mut self, lock: LockObjectRef, entry: Entry) {
        self.remove(&lock);
        let by_namespace = match &entry.cluster {
            Some(cluster) => self.by_cluster.entry(cluster.clone()).or_default(),
            None => &mut self.unreadable,
        };
        by_namespace.entry(entry.namespace.clone()).or_default().insert(lock.clone());
        self.by_lock.insert(lock, entry);
    }

    fn remove(&mut self, lock: &LockObjectRef) {
        let Some(Entry { namespace, cluster, .. }) = self.by_lock.remove(lock) else { return };
        let Some(cluster) = cluster else { return remove_from(&mut self.unreadable, &namespace, lock) };
        if let Some(on_it) = self.by_cluster.get_mut(&cluster) {
            remove_from(on_it, &namespace, lock);
            if on_it.is_empty() {
                self.by_cluster.remove(&cluster);
            }
        }
    }
}

/// Removes a lock, and its namespace with the last lock of it.
fn remove_from(locks: &mut LocksByNamespace, namespace: &str, lock: &LockObjectRef) {
    if let Some(of_namespace) = locks.get_mut(namespace) {
        of_namespace.remove(lock);
        if of_namespace.is_empty() {
            locks.remove(namespace);
        }
    }
}

impl Entry {
    fn of(lock: &WatchedLock) -> Self {
        Self {
            namespace: lock.namespace().unwrap_or_default(),
            uid: lock.uid().unwrap_or_default(),
            cluster: lock.0.as_ref().ok().map(cluster_of),
            is_deleting: lock.meta().deletion_timestamp.is_some(),
        }
    }
}

/// The cluster of that name.
pub(crate) fn cluster_ref(namespace: &str, name: &str) -> ClusterObjectRef {
    ClusterObjectRef::new(name).within(namespace)
}

/// The cluster of a lock.
pub(crate) fn cluster_of(lock: &DistributedLock) -> ClusterObjectRef {
    cluster_ref(&lock.cluster_namespace(), &lock.spec.cluster_ref.name)
}

/// A reference to `cluster`.
pub(crate) fn reference_to(cluster: &RedisLockCluster) -> ClusterObjectRef {
    cluster_ref(&cluster.namespace().unwrap_or_default(), &cluster.name_any())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lock(namespace: &str, name: &str, spec: &serde_json::Value) -> WatchedLock {
        let metadata = json!({"name": name, "namespace": namespace, "uid": format!("{namespace}-{name}")});
        let body = json!({"apiVersion": "redlock.dev/v1alpha1", "kind": "DistributedLock", "metadata": metadata, "spec": spec});
        serde_json::from_value(body).unwrap()
    }

    fn on(cluster: &str) -> serde_json::Value {
        json!({"clusterRef": {"name": cluster, "namespace": "keys"}})
    }

    fn unreadable() -> serde_json::Value {
        json!({"clusterRef": {"name": "votes"}, "lease": {"ttl": "soon"}})
    }

    fn deleting(mut lock: WatchedLock) -> WatchedLock {
        lock.meta_mut().deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        lock
    }

    fn listed(locks: Vec<WatchedLock>) -> LockIndex {
        let index = LockIndex::default();
        list(&index, locks);
        index
    }

    fn list(index: &LockIndex, locks: Vec<WatchedLock>) {
        index.update(&Event::Init);
        for lock in locks {
            index.update(&Event::InitApply(lock));
        }
        index.update(&Event::InitDone);
    }

    fn votes() -> ClusterObjectRef {
        cluster_ref("keys", "votes")
    }

    fn names(index: &LockIndex, cluster: &ClusterObjectRef) -> Vec<String> {
        let mut names: Vec<_> = index.locks_on(cluster).into_iter().map(|lock| lock.name).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_lock_that_cannot_be_read_hides_no_other_and_locks_nobody_out() {
        let index = listed(vec![
            lock("billing", "a", &on("votes")),
            lock("reports", "a", &on("other")),
            lock("unreadable", "a", &unreadable()),
        ]);
        assert_eq!(Vec::from_iter(index.namespaces_of(&votes())), ["billing", "unreadable"]);
        assert!(index.is_needed("unreadable", &votes(), ""));
        assert_eq!(names(&index, &votes()), ["a"]);
    }

    #[test]
    fn a_namespace_needs_a_cluster_until_its_last_lock_there_is_being_deleted() {
        let index = listed(vec![lock("billing", "a", &on("votes")), lock("billing", "b", &on("votes"))]);
        assert!(index.is_needed("billing", &votes(), "billing-a"));
        index.update(&Event::Apply(deleting(lock("billing", "b", &on("votes")))));
        assert!(!index.is_needed("billing", &votes(), "billing-a"));
        assert!(index.is_needed("billing", &votes(), "billing-b"));
        assert_eq!(Vec::from_iter(index.namespaces_of(&votes())), ["billing"], "both are still to be released");
        index.update(&Event::Delete(lock("billing", "a", &on("votes"))));
        index.update(&Event::Delete(lock("billing", "b", &on("votes"))));
        assert!(index.namespaces_of(&votes()).is_empty());
    }

    #[test]
    fn a_lock_that_becomes_readable_or_is_made_anew_on_another_cluster_moves() {
        let index = listed(vec![lock("billing", "a", &unreadable())]);
        index.update(&Event::Apply(lock("billing", "a", &on("votes"))));
        assert_eq!(names(&index, &votes()), ["a"]);
        assert!(!index.is_needed("billing", &cluster_ref("keys", "other"), ""), "it is readable now");
        index.update(&Event::Apply(lock("billing", "a", &on("other"))));
        assert!(names(&index, &votes()).is_empty());
        assert_eq!(names(&index, &cluster_ref("keys", "other")), ["a"]);
    }

    #[test]
    fn a_new_list_replaces_all_and_nothing_is_left_of_what_is_gone() {
        let index = listed((0..100).map(|n| lock("billing", &format!("l{n}"), &on("votes"))).collect());
        assert_eq!(index.locks_on(&votes()).len(), 100);
        list(&index, vec![lock("shop", "x", &on("votes"))]);
        assert_eq!(Vec::from_iter(index.namespaces_of(&votes())), ["shop"]);
        index.update(&Event::Delete(lock("shop", "x", &on("votes"))));
        let empty = index.read(|e| e.by_lock.is_empty() && e.by_cluster.is_empty() && e.unreadable.is_empty());
        assert!(empty && index.locks_on(&votes()).is_empty());
    }
}
