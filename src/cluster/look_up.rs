//! First step: looks up everything about a cluster (its objects, and what its servers say of themselves).
//!
//! All is read from the API server and from the servers, nothing from a cache: whether a master may have voted, and whether its
//! pod is gone, must not be decided on what was true some time ago. Only the namespaces that use the cluster come from the watch.

use std::collections::{BTreeSet, HashMap};

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{Resource, ResourceExt};

use super::clock::now;
use super::memory::Memory;
use super::observed::{Existing, ObservedMachine, ObservedMaster, ObservedPod, ObservedServer, Snapshot, Stage};
use super::server::clock::{ClockFault, disagreeing};
use super::server::{Admin, AdminError};
use super::tombstones::{self, Former};
use crate::api::RedisLockCluster;
use crate::api::cluster::{MasterState, MasterStatus};
use crate::contract::credentials::RootKey;
use crate::contract::names;
use crate::operator::Context;
use crate::operator::api_server::{ApiServer, Category, Error, Object};
use crate::operator::watch::Watches;
use crate::operator::watch::locks::reference_to;

/// Connections to the servers of the masters, in order; `None` where there is none.
pub(crate) type Admins = Vec<Option<Admin>>;

/// What was found of a cluster.
pub(crate) enum Found {
    /// Nothing, or another of its name.
    Nothing,
    /// It is being deleted.
    Deleted(Box<RedisLockCluster>),
    /// All about it.
    Cluster(Box<Snapshot>, Admins),
}

/// Looks up the cluster that the watch shows as `cached`.
pub(crate) async fn look_up(ctx: &Context, cached: &RedisLockCluster, memory: &Memory) -> Result<Found, Error> {
    let (api, name, namespace) = (&ctx.api, cached.name_any(), cached.namespace().unwrap_or_default());
    let Some(cluster) = api.get::<RedisLockCluster>(&namespace, &name).await? else { return Ok(Found::Nothing) };
    if cluster.uid() != cached.uid() {
        return Ok(Found::Nothing);
    }
    if cluster.meta().deletion_timestamp.is_some() {
        return Ok(Found::Deleted(Box::new(cluster)));
    }
    let names = names::masters(&cluster);
    let pods = objects::<Pod>(api, &cluster, &namespace, &names).await?;
    let services = objects::<Service>(api, &cluster, &namespace, &names).await?;
    let secret = api.get::<Secret>(&namespace, &names::auth_secret(&name)).await?;
    let secret = Existing::of(secret.as_ref(), &cluster, Secret::clone);
    let key = secret.of_our_making().and_then(|secret| RootKey::from_secret(secret).ok());

    let budget = match names.len() {
        0 | 1 => None,
        _ => api.get::<PodDisruptionBudget>(&namespace, &name).await?,
    };
    let budget = Existing::of(budget.as_ref(), &cluster, PodDisruptionBudget::clone);

    let pods: Vec<_> = pods.iter().map(|pod| Existing::of(pod.as_ref(), &cluster, ObservedPod::of)).collect();
    let services = services.iter().map(|service| Existing::of(service.as_ref(), &cluster, Service::clone));
    let servers = join_all(pods.iter().map(|pod| ask(pod, key.as_ref()))).await;
    let servers = keep_out_wrong_clocks(servers.into_iter().zip(&pods).map(|((server, admin), pod)| {
        let stuck = pod.ours().and_then(|pod| memory.stuck(&pod.uid));
        (server.or_stuck(stuck), admin)
    }));
    let rows = cluster.status.as_ref().map(|status| status.masters.as_slice()).unwrap_or_default();
    // A new cluster begins with what one of its name has left.
    let former = if rows.is_empty() { tombstones::of(ctx, &namespace, &name, now()).await? } else { Former::default() };
    let restart_delay = cluster.spec.restart_delay();
    let vouched = cluster.annotations().get(names::GONE_ANNOTATION).map(String::as_str).unwrap_or_default();
    let (mut masters, mut admins) = (Vec::new(), Vec::new());
    for (((name, pod), service), (server, admin)) in names.into_iter().zip(pods).zip(services).zip(servers) {
        let started_before = match &service {
            Existing::Ours(service) => service.annotations().contains_key(names::STARTED_AT_ANNOTATION),
            // A former cluster of this name left it: leases on that may still be held.
            Existing::Orphan(_) => true,
            Existing::Absent | Existing::Foreign(_) => false,
        };
        let row = rows.iter().find(|row| row.name == name).cloned();
        let row = row.or_else(|| former.row(&name, restart_delay, now()));
        let uid = row.as_ref().and_then(|row| row.pod_uid.as_deref());
        masters.push(ObservedMaster {
            address: names::address(&name, &namespace),
            machine: observe_machine(api, row.as_ref(), &pod).await?,
            is_vouched_gone: uid.is_some_and(|uid| vouched.split([',', ' ']).any(|vouched| vouched == uid)),
            row,
            started_before,
            service,
            pod,
            server,
            since_gone: memory.since_gone(&name),
            out_for: memory.out_for(&name),
            backoff: memory.backoff(&name),
            name,
        });
        admins.push(admin);
    }
    let namespaces = client_namespaces(&cluster, &ctx.watches);
    Ok(Found::Cluster(Box::new(Snapshot { cluster, secret, key, budget, masters, namespaces }), admins))
}

/// Namespaces with a lock that is, or may be, on `cluster`, as far as the cluster admits them.
fn client_namespaces(cluster: &RedisLockCluster, watches: &Watches) -> BTreeSet<String> {
    let own = cluster.namespace().unwrap_or_default();
    let namespaces = watches.lock_index.namespaces_of(&reference_to(cluster));
    namespaces.into_iter().filter(|namespace| cluster.spec.admits(&own, namespace)).collect()
}

/// The Kubernetes node that matters now: that of a pod whose server is not armed yet, for its record, or that of a recorded pod whose
/// object is gone, for the proof that its server has ended.
async fn observe_machine(
    api: &ApiServer,
    row: Option<&MasterStatus>,
    pod: &Existing<ObservedPod>,
) -> Result<ObservedMachine, Error> {
    let name = match pod {
        Existing::Absent => {
            row.filter(|row| row.state != MasterState::Quarantined).and_then(|row| row.node_name.as_ref())
        }
        Existing::Ours(pod) | Existing::Orphan(pod) => {
            let is_recorded = row.is_some_and(|row| {
                row.pod_uid.as_ref() == Some(&pod.uid) && row.run_id.is_some() && row.boot_id.is_some()
            });
            pod.node_name.as_ref().filter(|_| !is_recorded)
        }
        Existing::Foreign(_) => None,
    };
    let Some(name) = name else { return Ok(ObservedMachine::Unknown) };
    match api.get_kubernetes_node(name).await {
        Ok(found) => Ok(ObservedMachine::of(found.as_ref())),
        // An operator that may not read Kubernetes nodes has only the word of an administrator.
        Err(error) if error.category() == Category::Forbidden => Ok(ObservedMachine::Unknown),
        Err(error) => Err(error),
    }
}

/// What the server of a pod says of itself, and the connection on which it said so.
async fn ask(pod: &Existing<ObservedPod>, key: Option<&RootKey>) -> (ObservedServer, Option<Admin>) {
    // A server may reply although its machine was declared dead.
    let running = pod.ours().filter(|pod| matches!(pod.stage, Stage::Running | Stage::DeclaredDead));
    let Some((ip, pod_uid)) = running.and_then(|pod| Some((pod.ip.as_ref()?, &pod.uid))) else {
        return (ObservedServer::NotAsked, None);
    };
    let Some(key) = key else {
        let why = "the Secret with the cluster's key is missing, or not usable";
        return (ObservedServer::Refused(why.to_owned()), None);
    };
    let asked = async {
        let mut admin = Admin::connect_to_pod(ip, names::REDIS_PORT, pod_uid, &key.operator_password()).await?;
        let facts = admin.facts().await?;
        Ok((facts, admin))
    };
    match asked.await {
        Ok((facts, admin)) => (ObservedServer::Up(facts), Some(admin)),
        Err(error @ (AdminError::Unreachable(_) | AdminError::Silent | AdminError::Busy)) => {
            (ObservedServer::Unreachable(error.to_string()), None)
        }
        Err(error) => (ObservedServer::Refused(error.to_string()), None),
    }
}

/// Servers that are not armed must have the time of day that most have: see [`disagreeing`].
fn keep_out_wrong_clocks(
    servers: impl Iterator<Item = (ObservedServer, Option<Admin>)>,
) -> Vec<(ObservedServer, Option<Admin>)> {
    let mut servers: Vec<_> = servers.collect();
    let mut up: Vec<_> = servers.iter_mut().filter_map(|(server, _)| server.up_mut()).collect();
    let ahead: Vec<_> = up.iter().map(|facts| facts.clock.ahead()).collect();
    for (facts, disagrees) in up.iter_mut().zip(disagreeing(&ahead)) {
        if disagrees && !facts.is_armed() && facts.unfit.is_none() {
            facts.unfit = Some(ClockFault::Disagrees.to_string());
        }
    }
    servers
}

/// The objects of these names, in order.
///
/// One list returns ours. A name that is not in it is asked for by itself, so that an object of somebody else, or one without its
/// labels, is seen as well.
async fn objects<K: Object>(
    api: &ApiServer,
    cluster: &RedisLockCluster,
    namespace: &str,
    names: &[String],
) -> Result<Vec<Option<K>>, Error> {
    let labels = format!("{},{}={}", names::MASTER_SELECTOR, names::CLUSTER_LABEL, cluster.name_any());
    let listed = api.list::<K>(namespace, &labels).await?;
    let mut listed: HashMap<String, K> = listed.into_iter().map(|object| (object.name_any(), object)).collect();
    let mut all = Vec::new();
    for name in names {
        all.push(match listed.remove(name) {
            Some(object) => Some(object),
            None => api.get(namespace, name).await?,
        });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::WatchedLock;
    use crate::api::cluster::{AllowedNamespaces, NamespacesFrom};
    use crate::cluster::fixtures;

    #[test]
    fn only_namespaces_that_the_cluster_admits_are_let_in_however_unreadable_their_locks() {
        let lock = |namespace: &str, spec: serde_json::Value| -> WatchedLock {
            let metadata = json!({"name": "a", "namespace": namespace, "uid": namespace});
            let body = json!({"apiVersion": "redlock.dev/v1alpha1", "kind": "DistributedLock", "metadata": metadata, "spec": spec});
            serde_json::from_value(body).unwrap()
        };
        let here = json!({"clusterRef": {"name": "votes", "namespace": "keys"}});
        let elsewhere = json!({"clusterRef": {"name": "other", "namespace": "keys"}});
        let unreadable = lock("unreadable", json!({"clusterRef": {"name": "votes"}, "lease": {"ttl": "soon"}}));
        assert!(unreadable.0.is_err());
        let (watches, mut feeds) = Watches::new();
        feeds.locks.list([lock("billing", here.clone()), lock("keys", here), lock("reports", elsewhere), unreadable]);
        let mut cluster = fixtures::cluster(3);
        assert_eq!(Vec::from_iter(client_namespaces(&cluster, &watches)), ["keys"]);
        cluster.spec.allowed_namespaces = Some(AllowedNamespaces { from: NamespacesFrom::All });
        assert_eq!(Vec::from_iter(client_namespaces(&cluster, &watches)), ["billing", "keys", "unreadable"]);
    }
}
