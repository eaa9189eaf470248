//! An object that cannot be reconciled says why, and existing objects of others are not touched.

use k8s_openapi::api::core::v1::{Secret, Service};
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use redlock_operator::api::{DistributedLock, RedisLockCluster};
use serde_json::{Value, json};

use crate::harness::objects::{self, HasConditions, condition, create_cluster, create_lock, ready_cluster};
use crate::harness::{Env, in_another_namespace, scenario, wait};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_without_its_cluster_says_which_is_missing_and_is_held_once_it_exists() {
    scenario("no-cluster", async |env| {
        create_lock(env, "early", "early", "job/early", "4s").await;
        let locks: Api<DistributedLock> = env.api();
        let lock = wait::until(&locks, "early", "told that its cluster is missing", |l| {
            condition(l, "ClusterAvailable").is_some_and(|c| c.status != "True" && c.message.contains("main"))
        });
        let lock = lock.await;
        assert!(!objects::is_held(&lock));
        assert_ne!(condition(&lock, "Held").map(|c| c.status).as_deref(), Some("True"));
        create_cluster(env, json!({"masters": 1, "maxTTL": "5s"})).await;
        objects::held(env, "early").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_the_cluster_does_not_allow_is_refused_with_both_times() {
    scenario("ttl", async |env| {
        create_cluster(env, json!({"masters": 1, "maxTTL": "5s"})).await;
        create_lock(env, "long", "long", "job/long", "6s").await;
        let message = invalid::<DistributedLock>(env, "long", None).await;
        assert!(message.contains("6s") && message.contains("5s"), "{message}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_admits_only_the_namespaces_that_it_names() {
    scenario("private", async |owner| {
        create_cluster(owner, json!({"masters": 1, "maxTTL": "5s"})).await;
        let private = owner.namespace.clone();
        in_another_namespace("stranger", async |stranger| {
            let reference = json!({"name": "main", "namespace": private});
            let spec = json!({"clusterRef": reference, "holder": "job/x", "lease": {"ttl": "4s"}});
            let lock: DistributedLock = objects::object(stranger, "DistributedLock", "outside", &spec);
            stranger.api().create(&PostParams::default(), &lock).await.unwrap();
            let message = invalid::<DistributedLock>(stranger, "outside", None).await;
            assert!(message.contains("allowedNamespaces"), "{message}");
            let secrets: Api<Secret> = stranger.api();
            assert!(
                secrets.list(&ListParams::default()).await.unwrap().items.is_empty(),
                "no credentials for a namespace that is not admitted"
            );
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_of_others_with_our_names_are_not_touched() {
    scenario("conflict", async |env| {
        let service: Service = made(env, "Service", "main-0", json!({"spec": {"ports": [{"port": 80}]}}));
        let service = env.api().create(&PostParams::default(), &service).await.unwrap();
        create_cluster(env, json!({"masters": 1, "maxTTL": "5s"})).await;
        let message = invalid::<RedisLockCluster>(env, "main", Some("NameConflict")).await;
        assert!(message.contains("main-0"), "{message}");
        let now: Service = env.api().get("main-0").await.unwrap();
        assert_eq!((now.resource_version(), now.uid()), (service.resource_version(), service.uid()), "untouched");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_of_others_with_the_name_of_the_clients_is_not_touched() {
    scenario("conflict-secret", async |env| {
        let secret: Secret = made(env, "Secret", "main-client", json!({"stringData": {"mine": "yes"}}));
        let secret = env.api().create(&PostParams::default(), &secret).await.unwrap();
        ready_cluster(env, 1).await;
        create_lock(env, "report", "report", "job/report", "4s").await;
        let message = invalid::<DistributedLock>(env, "report", Some("NameConflict")).await;
        assert!(message.contains("main-client"), "{message}");
        let now: Secret = env.api().get("main-client").await.unwrap();
        assert_eq!((now.resource_version(), now.data), (secret.resource_version(), secret.data), "untouched");
    })
    .await;
}

/// Waits until the condition `ConfigValid` is false, and returns its message.
async fn invalid<K>(env: &Env, name: &str, reason: Option<&str>) -> String
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()> + HasConditions,
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned + Send + 'static,
{
    let is_false = |object: &K| {
        let found = condition(object, "ConfigValid").filter(|c| c.status == "False");
        found.is_some_and(|c| reason.is_none_or(|r| c.reason == r))
    };
    let object = wait::until(&env.api::<K>(), name, "told to be invalid", is_false).await;
    condition(&object, "ConfigValid").unwrap().message
}

fn made<K: serde::de::DeserializeOwned>(env: &Env, kind: &str, name: &str, mut body: Value) -> K {
    body["apiVersion"] = json!("v1");
    body["kind"] = json!(kind);
    body["metadata"] = json!({"name": name, "namespace": env.namespace});
    serde_json::from_value(body).unwrap()
}
