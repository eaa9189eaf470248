//! Pods that the API server refuses: the cluster says so in its words, writes next to nothing, and goes on once they are accepted.

use std::time::Duration;

use k8s_openapi::api::core::v1::{LimitRange, ResourceQuota};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use redlock_operator::api::RedisLockCluster;
use serde_json::json;

use crate::harness::objects::{condition, create_cluster};
use crate::harness::{Env, audit, scenario, wait};

/// For how long a cluster is observed whose pods are refused.
const OBSERVED: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_that_refuses_a_pod_is_told_in_its_words_costs_few_writes_and_heals_when_it_is_lifted() {
    scenario("quota", async |env| {
        let quotas: Api<ResourceQuota> = env.api();
        let quota = json!({"metadata": {"name": "small"}, "spec": {"hard": {"pods": "2"}}});
        quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
        let enforced = |q: &ResourceQuota| q.status.as_ref().is_some_and(|s| s.hard.is_some());
        wait::until(&quotas, "small", "enforced", enforced).await;
        create_cluster(env, json!({"masters": 3, "maxTTL": "5s", "restartDelay": "8s"})).await;
        let message = refused(env).await;
        assert!(message.contains("exceeded quota: small"), "{message}");
        let clusters: Api<RedisLockCluster> = env.api();
        let available = |c: &RedisLockCluster| condition(c, "Available").is_some_and(|c| c.status == "True");
        wait::until(&clusters, "main", "available by the other masters", available).await;
        assert_few_writes(env, 1).await;
        quotas.delete("small", &DeleteParams::default()).await.unwrap();
        healed(env).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_range_that_refuses_all_pods_is_told_in_its_words_and_a_changed_spec_is_tried_at_once() {
    scenario("limit-range", async |env| {
        let limits = json!([{"type": "Container", "max": {"memory": "48Mi"}}]);
        let range = json!({"metadata": {"name": "small"}, "spec": {"limits": limits}});
        let ranges: Api<LimitRange> = env.api();
        ranges.create(&PostParams::default(), &serde_json::from_value(range).unwrap()).await.unwrap();
        create_cluster(env, json!({"masters": 3, "maxTTL": "5s", "restartDelay": "8s"})).await;
        let message = refused(env).await;
        assert!(message.contains("maximum memory usage per Container is 48Mi, but limit is 64Mi"), "{message}");
        assert_few_writes(env, 3).await;
        let resources = json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "48Mi"}});
        let patch = Patch::Merge(json!({"spec": {"resources": resources}}));
        env.api::<RedisLockCluster>().patch("main", &PatchParams::default(), &patch).await.unwrap();
        healed(env).await;
    })
    .await;
}

/// Waits until the cluster says that a pod is refused, and returns its words.
async fn refused(env: &Env) -> String {
    let is_refused = |c: &RedisLockCluster| {
        condition(c, "ConfigValid").is_some_and(|c| c.status == "False" && c.reason == "PodRefused")
    };
    let cluster = wait::until(&env.api(), "main", "told that a pod is refused", is_refused).await;
    condition(&cluster, "ConfigValid").unwrap().message
}

/// Waits until the cluster is ready, and says nothing of refusals any more.
async fn healed(env: &Env) {
    let holds = |c: &RedisLockCluster| {
        ["Ready", "ConfigValid"].iter().all(|type_| condition(c, type_).is_some_and(|c| c.status == "True"))
    };
    wait::until(&env.api::<RedisLockCluster>(), "main", "ready", holds).await;
}

/// Observes the cluster for a while in which nothing changes but that the pods of `refused` masters are tried again.
async fn assert_few_writes(env: &Env, refused: usize) {
    let Some(before) = audit::writes(&env.namespace) else { return };
    tokio::time::sleep(OBSERVED).await;
    let since = audit::writes(&env.namespace).unwrap().split_off(before.len());
    let attempts = since.iter().filter(|write| *write == "create pods").count();
    // 2, 4, 8 and 16 s after each other.
    assert!(attempts <= 4 * refused, "{since:?}");
    // The others may be armed meanwhile.
    assert!(since.len() - attempts <= 8, "{since:?}");
}
