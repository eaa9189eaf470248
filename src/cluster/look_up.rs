//! First step: looks up everything about a cluster (its objects, and what its servers say of themselves).
//!
//! All is read from the API server and from the servers, nothing from a cache: whether a master may have voted, and whether its
//! pod is gone, must not be decided on what was true some time ago. Only the namespaces that use the cluster come from the watch.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{Resource, ResourceExt};

use super::clock::now;
use super::memory::Memory;
use super::observed::{
    ClientNamespace, Existing, ObservedMachine, ObservedMaster, ObservedPod, ObservedServer, Snapshot, Stage,
};
use super::server::clock::{ClockFault, disagreeing, is_operator_wrong};
use super::server::{Admin, AdminError};
use super::tombstones::{self, Former};
use crate::api::RedisLockCluster;
use crate::api::cluster::{MasterState, MasterStatus};
use crate::contract::credentials::RootKey;
use crate::contract::names;
use crate::operator::Context;
use crate::operator::api_server::{ApiServer, Category, Error, Object};
use crate::operator::claim::Claimed;
use crate::operator::watch::Watches;
use crate::operator::watch::locks::reference_to;

/// Connections to the servers of the masters, in order; `None` where there is none.
pub(crate) type Admins = Vec<Option<Admin>>;

/// What was found of a cluster.
pub(crate) enum Found {
    /// Nothing, or another of its name.
    Nothing,
    /// Another operator serves it, which is this.
    ServedBy(String, Box<RedisLockCluster>),
    /// This operator has just claimed it.
    Claimed,
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
    match ctx.claims.look_after(api, &cluster).await? {
        Claimed::StandBy(operator) => return Ok(Found::ServedBy(operator, Box::new(cluster))),
        Claimed::Written => return Ok(Found::Claimed),
        Claimed::Ours => {}
    }
    if cluster.meta().deletion_timestamp.is_some() {
        return Ok(Found::Deleted(Box::new(cluster)));
    }
    let names = names::masters(&cluster);
    let pods = objects::<Pod>(api, &cluster, &namespace, &names).await?;
    let services = objects::<Service>(api, &cluster, &namespace, &names).await?;
    let secret = api.get::<Secret>(&namespace, &names::auth_secret(&name)).await?;
    let secret = Existing::of(secret.as_ref(), &cluster, Secret::clone);
    let stored = secret.of_our_making().and_then(|secret| RootKey::from_secret(secret).ok());
    let key = stored.or_else(|| memory.root_key().cloned());

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
    let ahead = servers.iter().filter_map(|(server, _)| match server {
        ObservedServer::Up(facts) => Some(facts.clock.ahead()),
        _ => None,
    });
    let ahead: Vec<_> = ahead.collect();
    let is_clock_wrong = is_operator_wrong(&ahead);
    if is_clock_wrong {
        tracing::warn!(
            "the operator's clock differs from that of most masters: delays count from when it knows of them"
        );
    }
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
            // A process that did not see it go has only the recorded time. Where its own clock is wrong, it waits from when it read it.
            since_gone: memory.since_gone(&name).or_else(|| memory.since_waiting(&name).filter(|_| is_clock_wrong)),
            out_for: memory.out_for(&name),
            backoff: memory.backoff(&name),
            name,
        });
        admins.push(admin);
    }
    let namespaces = client_namespaces(&cluster, &masters, &ctx.watches);
    let since_rotation = memory.since_rotation();
    let snapshot = Snapshot { cluster, secret, key, budget, masters, namespaces, since_rotation };
    Ok(Found::Cluster(Box::new(snapshot), admins))
}

/// Namespaces with a lock that is, or may be, on `cluster`, and those whose clients can log in to a master, as far as they exist and
/// the cluster admits them.
fn client_namespaces(
    cluster: &RedisLockCluster,
    masters: &[ObservedMaster],
    watches: &Watches,
) -> BTreeMap<String, ClientNamespace> {
    let own = cluster.namespace().unwrap_or_default();
    let in_use = watches.lock_index.namespaces_of(&reference_to(cluster));
    let known = masters.iter().filter_map(|master| match &master.server {
        ObservedServer::Up(facts) => Some(facts.namespaces.keys().cloned()),
        _ => None,
    });
    let recorded = cluster.status.iter().flat_map(|status| &status.credentials).flat_map(|record| &record.leaving);
    let all: BTreeSet<_> =
        known.flatten().chain(recorded.map(|leaving| leaving.name.clone())).chain(in_use.iter().cloned()).collect();
    let admitted = |name: String| {
        let namespace = watches.namespace(&name)?;
        let client = ClientNamespace { uid: namespace.uid()?, in_use: in_use.contains(&name) };
        cluster.spec.admits(&own, &name, namespace.labels()).then_some((name, client))
    };
    all.into_iter().filter_map(admitted).collect()
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
    let Some(key) = key else { return (ObservedServer::KeyLost, None) };
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
    use k8s_openapi::api::core::v1::Namespace;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use kube::core::PartialObjectMetaExt as _;
    use serde_json::json;

    use super::*;
    use crate::api::WatchedLock;
    use crate::api::cluster::{AllowedNamespaces, NamespacesFrom};
    use crate::cluster::fixtures;
    use crate::cluster::server::fitness::Facts;

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
        feeds.locks.list([
            lock("billing", here.clone()),
            lock("keys", here.clone()),
            lock("gone", here),
            lock("reports", elsewhere),
            unreadable,
        ]);
        let labelled = ["billing", "left"];
        feeds.namespaces.list(["billing", "keys", "left", "reports", "unreadable"].map(|name| {
            let labels = labelled.contains(&name).then(|| [("locks".to_owned(), "votes".to_owned())].into());
            let metadata = ObjectMeta {
                name: Some(name.to_owned()),
                uid: Some(format!("uid of {name}")),
                labels,
                ..ObjectMeta::default()
            };
            metadata.into_response_partial::<Namespace>()
        }));
        // A server that lets in clients of a namespace whose last lock is gone.
        let users = ["left", "gone", "*"].map(|name| (name.to_owned(), BTreeSet::new())).into();
        let server = ObservedServer::Up(Facts { namespaces: users, ..fixtures::facts(Some("run-1")) });
        let masters = [fixtures::master(None, Existing::Absent, server)];
        let mut cluster = fixtures::cluster(3);
        let names = |cluster: &RedisLockCluster| {
            let namespaces = client_namespaces(cluster, &masters, &watches);
            assert!(namespaces.iter().all(|(name, namespace)| namespace.uid == format!("uid of {name}")));
            assert!(namespaces.iter().all(|(name, namespace)| namespace.in_use != (name == "left")));
            namespaces.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(names(&cluster), ["keys"]);
        cluster.spec.allowed_namespaces = Some(AllowedNamespaces { from: NamespacesFrom::All, selector: None });
        assert_eq!(names(&cluster), ["billing", "keys", "left", "unreadable"]);
        let selector = Some(serde_json::from_value(json!({"matchLabels": {"locks": "votes"}})).unwrap());
        cluster.spec.allowed_namespaces = Some(AllowedNamespaces { from: NamespacesFrom::Selector, selector });
        assert_eq!(names(&cluster), ["billing", "keys", "left"]);
    }
}
