//! The objects that scenarios create.

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use redlock_operator::api::cluster::MasterState;
use redlock_operator::api::lock::LockPhase;
use redlock_operator::api::{DistributedLock, RedisLockCluster};
use serde::Deserialize;
use serde_json::{Value, json};

use super::redis::Masters;
use super::{Env, PATIENCE, install, wait};

/// Restart delay of a scenario's cluster.
pub const RESTART_DELAY: std::time::Duration = std::time::Duration::from_secs(8);

/// Creates a cluster `main` with short times, and waits until it is ready.
pub async fn ready_cluster(env: &Env, masters: usize) -> Masters {
    create_cluster(env, json!({"masters": masters, "maxTTL": "5s", "restartDelay": "8s"})).await;
    ready(env, masters).await
}

/// Creates a cluster `main` for leases of up to a minute, and waits until it is ready.
pub async fn ready_cluster_for_long_leases(env: &Env, masters: usize) -> Masters {
    create_cluster(env, json!({"masters": masters, "maxTTL": "60s"})).await;
    ready(env, masters).await
}

/// Creates the cluster `main` with the resources of the operator's defaults, and waits until it is ready.
pub async fn ready_scaled_cluster(env: &Env, spec: Value, masters: usize) -> Masters {
    let cluster: RedisLockCluster = object(env, "RedisLockCluster", "main", &spec);
    env.api().create(&PostParams::default(), &cluster).await.expect("create the cluster");
    ready(env, masters).await
}

/// Creates the cluster `main`.
pub async fn create_cluster(env: &Env, mut spec: Value) {
    // The default of 50 ms suits a network; here five masters and a cluster share the cores of one machine.
    spec["callTimeout"] = json!("250ms");
    spec["resources"] = json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}});
    let cluster: RedisLockCluster = object(env, "RedisLockCluster", "main", &spec);
    env.api().create(&PostParams::default(), &cluster).await.expect("create the cluster");
}

async fn ready(env: &Env, masters: usize) -> Masters {
    let clusters: Api<RedisLockCluster> = env.api();
    wait::until(&clusters, "main", "ready", all_vote).await;
    Masters::of(env, "main", masters).await
}

/// Creates a lock on the cluster `main` that the operator holds for `holder`.
pub async fn create_lock(env: &Env, name: &str, key: &str, holder: &str, ttl: &str) -> DistributedLock {
    let spec = json!({"clusterRef": {"name": "main"}, "key": key, "holder": holder, "lease": {"ttl": ttl}});
    let lock: DistributedLock = object(env, "DistributedLock", name, &spec);
    env.api().create(&PostParams::default(), &lock).await.expect("create the lock")
}

/// Whether all masters of the cluster vote.
pub fn all_vote(cluster: &RedisLockCluster) -> bool {
    condition(cluster, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Waits until the lock is held.
pub async fn held(env: &Env, name: &str) -> DistributedLock {
    let locks: Api<DistributedLock> = env.api();
    wait::until(&locks, name, "held", is_held).await
}

/// Whether the condition `Held` is true.
pub fn is_held(lock: &DistributedLock) -> bool {
    condition(lock, "Held").is_some_and(|c| c.status == "True") && phase(lock) == Some(LockPhase::Held)
}

/// The fencing token in status.
pub fn token(lock: &DistributedLock) -> i64 {
    lock.status.as_ref().and_then(|s| s.fencing_token).expect("a held lock shows its fencing token")
}

/// The phase in status.
pub fn phase(lock: &DistributedLock) -> Option<LockPhase> {
    lock.status.as_ref().and_then(|s| s.phase)
}

/// The value that the key of a lock has on the masters while the operator holds it.
pub fn owner(lock: &DistributedLock) -> String {
    let owner = lock.status.as_ref().and_then(|s| s.owner.clone()).expect("a held lock shows its owner");
    let (holder, uid) = (lock.spec.holder.as_ref().expect("a holder"), lock.uid().expect("a UID"));
    assert!(owner.starts_with(&format!("{holder}/{uid}@{}.", token(lock))), "{owner}");
    owner
}

/// The key on the masters.
pub fn redis_key(env: &Env, key: &str) -> String {
    format!("redlock:{}/{key}", env.namespace)
}

/// A condition of either kind.
pub fn condition(object: &impl HasConditions, type_: &str) -> Option<Condition> {
    object.conditions().iter().find(|c| c.type_ == type_).cloned()
}

/// Both kinds.
pub trait HasConditions {
    /// The conditions in status.
    fn conditions(&self) -> &[Condition];
}

impl HasConditions for DistributedLock {
    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |s| &s.conditions)
    }
}

impl HasConditions for RedisLockCluster {
    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |s| &s.conditions)
    }
}

/// The state of the master `name`.
pub fn master_state(cluster: &RedisLockCluster, name: &str) -> Option<MasterState> {
    let masters = &cluster.status.as_ref()?.masters;
    masters.iter().find(|n| n.name == name).map(|n| n.state)
}

/// An object of one of the two kinds, from JSON.
pub fn object<K: for<'a> Deserialize<'a>>(env: &Env, kind: &str, name: &str, spec: &Value) -> K {
    let object = json!({
        "apiVersion": "redlock.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": env.namespace},
        "spec": spec,
    });
    serde_json::from_value(object).expect("an object of that kind")
}

/// The objects of a file in `examples/`, moved to the scenario's namespace and the image under test.
pub fn example(env: &Env, file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let text = text.replace(concat!("redlock-operator:", env!("CARGO_PKG_VERSION")), &install::operator_image());
    let mut objects = Vec::new();
    for document in serde_yaml::Deserializer::from_str(&text) {
        let mut object = Value::deserialize(document).expect("YAML in examples/");
        object["metadata"]["namespace"] = json!(env.namespace);
        objects.push(object);
    }
    objects
}

/// Waits until there are `count` pods with a label and all are ready, and returns their names.
pub async fn ready_pods(env: &Env, label: &str, count: usize) -> Vec<String> {
    let pods: Api<Pod> = env.api();
    let begin = tokio::time::Instant::now();
    loop {
        let all = pods.list(&ListParams::default().labels(label)).await.expect("list pods");
        let ready: Vec<_> = all.iter().filter(|p| is_ready(p)).map(ResourceExt::name_any).collect();
        if ready.len() == count && all.items.len() == count {
            return ready;
        }
        assert!(begin.elapsed() < PATIENCE, "{} of {count} pods {label} are ready after {PATIENCE:?}", ready.len());
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    let ready = conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
    ready && pod.metadata.deletion_timestamp.is_none()
}
