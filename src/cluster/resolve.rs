//! Reads all that is there of a cluster: its objects, and what its servers say of themselves.
//!
//! Everything is read from the API server, not from a cache: whether a master may have voted, and whether its pod is gone, must
//! not be decided on what was true some time ago.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::api::ListParams;
use kube::runtime::reflector::Store;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::arm::{Admin, AdminError};
use super::decide::MasterFound;
use super::error::Error;
use super::snapshot::{PodFound, ServerFound, Slot, Stage};
use crate::api::{RedisLockCluster, WatchedLock};
use crate::contract::credentials::RootKey;
use crate::contract::names;

/// What is there of a cluster.
#[derive(Debug)]
pub struct Found {
    /// The cluster itself.
    pub cluster: RedisLockCluster,
    /// Its Secret.
    pub secret: Slot<Secret>,
    /// The key in its Secret; `None` while there is no Secret of ours, or no key in it.
    pub key: Option<RootKey>,
    /// Its masters, in order.
    pub masters: Vec<MasterFound>,
    /// Their Services.
    pub services: Vec<Slot<Service>>,
    /// Connections to their servers, where there is one.
    pub admins: Vec<Option<Admin>>,
    /// Namespaces whose locks are kept here.
    pub namespaces: BTreeSet<String>,
}

/// A namespaced kind that can be read and written.
pub(super) trait Object:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug
{
}

impl<K> Object for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug
{
}

/// Reads a cluster; `None` if it is gone or going. `since_gone`: the time since this process last saw a master gone.
pub async fn resolve(
    client: &Client,
    locks: &Store<WatchedLock>,
    cached: &RedisLockCluster,
    since_gone: impl Fn(&str) -> Option<Duration>,
) -> Result<Option<Found>, Error> {
    let (name, namespace) = (cached.name_any(), cached.namespace().unwrap_or_default());
    let Some(cluster) = get::<RedisLockCluster>(client, &namespace, &name).await? else { return Ok(None) };
    if cluster.meta().deletion_timestamp.is_some() || cluster.uid() != cached.uid() {
        return Ok(None);
    }
    let names = names::masters(&cluster);
    let pods = read::<Pod>(client, &cluster, &namespace, &names).await?;
    let services = read::<Service>(client, &cluster, &namespace, &names).await?;
    let secret = get::<Secret>(client, &namespace, &names::auth_secret(&name)).await?;
    let secret = Slot::of(secret.as_ref(), &cluster, Secret::clone);
    let key = secret.ours().and_then(|secret| RootKey::from_secret(secret).ok());

    let pods: Vec<_> = pods.iter().map(|pod| Slot::of(pod.as_ref(), &cluster, PodFound::of)).collect();
    let services: Vec<_> = services.iter().map(|one| Slot::of(one.as_ref(), &cluster, Service::clone)).collect();
    let servers = join_all(pods.iter().map(|pod| ask(pod, key.as_ref()))).await;
    let rows = cluster.status.as_ref().map(|status| status.masters.as_slice()).unwrap_or_default();
    let (mut masters, mut admins) = (Vec::new(), Vec::new());
    for (((name, pod), service), (server, admin)) in names.into_iter().zip(pods).zip(&services).zip(servers) {
        let started_before = match service {
            Slot::Ours(service) => service.annotations().contains_key(names::STARTED_AT_ANNOTATION),
            // A former cluster of this name has only just gone: what it kept may still be held by somebody.
            Slot::Orphan => true,
            Slot::Free | Slot::Foreign(_) => false,
        };
        masters.push(MasterFound {
            address: names::address(&name, &namespace),
            row: rows.iter().find(|row| row.name == name).cloned(),
            started_before,
            pod,
            server,
            since_gone: since_gone(&name),
            name,
        });
        admins.push(admin);
    }
    let namespaces = namespaces_of(&cluster, locks);
    Ok(Some(Found { cluster, secret, key, masters, services, admins, namespaces }))
}

/// Namespaces with a lock that is kept on `cluster` and may be. One that is being deleted counts: it is still given back. So
/// does one that cannot be read: whoever uses it must not be locked out.
fn namespaces_of(cluster: &RedisLockCluster, locks: &Store<WatchedLock>) -> BTreeSet<String> {
    let (name, own) = (cluster.name_any(), cluster.namespace().unwrap_or_default());
    let refers = |lock: &WatchedLock| {
        lock.0.as_ref().map_or(true, |lock| lock.spec.cluster_ref.name == name && lock.cluster_namespace() == own)
    };
    let namespaces = locks.state().into_iter().filter(|lock| refers(lock)).filter_map(|lock| lock.namespace());
    namespaces.filter(|namespace| cluster.spec.admits(&own, namespace)).collect()
}

async fn ask(pod: &Slot<PodFound>, key: Option<&RootKey>) -> (ServerFound, Option<Admin>) {
    let running = pod.ours().filter(|pod| pod.stage == Stage::Running);
    let Some(ip) = running.and_then(|pod| pod.ip.as_ref()) else { return (ServerFound::NotAsked, None) };
    let Some(key) = key else {
        let why = "the Secret with the cluster's key is missing, or not usable";
        return (ServerFound::Refused(why.to_owned()), None);
    };
    let asked = async {
        let mut admin = Admin::connect(ip, names::REDIS_PORT, &key.operator_password()).await?;
        let facts = admin.facts().await?;
        Ok((facts, admin))
    };
    match asked.await {
        Ok((facts, admin)) => (ServerFound::Up(facts), Some(admin)),
        Err(error @ AdminError::Unreachable(_)) => (ServerFound::Unreachable(error.to_string()), None),
        Err(error) => (ServerFound::Refused(error.to_string()), None),
    }
}

/// The objects of these names, in order. Ours come in one list; whatever is not in it is asked for by name, because somebody
/// else's, and one whose labels were taken off, must be seen as well.
async fn read<K>(
    client: &Client,
    cluster: &RedisLockCluster,
    namespace: &str,
    names: &[String],
) -> Result<Vec<Option<K>>, Error>
where
    K: Object,
{
    let labels = format!("{},{}={}", names::MASTER_SELECTOR, names::CLUSTER_LABEL, cluster.name_any());
    let listed = Api::<K>::namespaced(client.clone(), namespace).list(&ListParams::default().labels(&labels)).await;
    let listed = listed.map_err(|source| Error::kube("list", format!("{} objects", K::kind(&())), source))?;
    let mut listed: HashMap<String, K> = listed.items.into_iter().map(|object| (object.name_any(), object)).collect();
    let mut all = Vec::new();
    for name in names {
        all.push(match listed.remove(name) {
            Some(object) => Some(object),
            None => get(client, namespace, name).await?,
        });
    }
    Ok(all)
}

async fn get<K>(client: &Client, namespace: &str, name: &str) -> Result<Option<K>, Error>
where
    K: Object,
{
    let got = Api::<K>::namespaced(client.clone(), namespace).get_opt(name).await;
    got.map_err(|source| Error::kube("get", format!("{} {name}", K::kind(&())), source))
}

#[cfg(test)]
mod tests {
    use kube::runtime::{reflector, watcher};
    use serde_json::json;

    use super::super::fixtures::cluster;
    use super::*;
    use crate::api::cluster::{AllowedNamespaces, NamespacesFrom};

    #[test]
    fn a_lock_that_cannot_be_read_hides_no_other_and_locks_nobody_out() {
        let lock = |namespace: &str, spec: serde_json::Value| -> WatchedLock {
            let metadata = json!({"name": "a", "namespace": namespace, "uid": namespace});
            serde_json::from_value(json!({"apiVersion": "redlock.dev/v1alpha1", "kind": "DistributedLock",
                "metadata": metadata, "spec": spec}))
            .unwrap()
        };
        let here = json!({"clusterRef": {"name": "votes", "namespace": "keys"}});
        let elsewhere = json!({"clusterRef": {"name": "other", "namespace": "keys"}});
        let unreadable = lock("unreadable", json!({"clusterRef": {"name": "votes"}, "lease": {"ttl": "soon"}}));
        assert!(unreadable.0.is_err());
        let (store, mut writer) = reflector::store();
        writer.apply_watcher_event(&watcher::Event::Init);
        for lock in [lock("billing", here), lock("reports", elsewhere), unreadable] {
            writer.apply_watcher_event(&watcher::Event::InitApply(lock));
        }
        writer.apply_watcher_event(&watcher::Event::InitDone);
        let mut cluster = cluster(3);
        cluster.spec.allowed_namespaces = Some(AllowedNamespaces { from: NamespacesFrom::All });
        assert_eq!(Vec::from_iter(namespaces_of(&cluster, &store)), ["billing", "unreadable"]);
    }
}
