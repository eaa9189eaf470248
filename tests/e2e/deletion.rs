//! A deletion never hangs: neither of a namespace with a held lock, nor of a lock whose cluster is gone.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use kube::api::DeleteParams;
use redlock_operator::api::{DistributedLock, RedisLockCluster};

use crate::harness::objects::{create_lock, held, ready_cluster};
use crate::harness::{scenario, wait};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_with_a_held_lock_and_its_cluster_is_gone_within_a_minute() {
    scenario("namespace-gone", async |env| {
        ready_cluster(env, 3).await;
        create_lock(env, "report", "report", "job/report", "4s").await;
        held(env, "report").await;
        let namespaces: Api<Namespace> = Api::all(env.client.clone());
        namespaces.delete(&env.namespace, &DeleteParams::default()).await.unwrap();
        wait::gone_within(Duration::from_secs(60), &namespaces, &env.namespace).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_can_be_deleted_after_its_cluster() {
    scenario("cluster-first", async |env| {
        let masters = ready_cluster(env, 3).await;
        create_lock(env, "report", "report", "job/report", "4s").await;
        held(env, "report").await;
        let clusters: Api<RedisLockCluster> = env.api();
        clusters.delete("main", &DeleteParams::default()).await.unwrap();
        wait::gone(&clusters, "main").await;
        let pods: Api<Pod> = env.api();
        for index in 0..masters.count {
            wait::gone(&pods, &masters.pod(index)).await;
        }
        let locks: Api<DistributedLock> = env.api();
        locks.delete("report", &DeleteParams::default()).await.unwrap();
        wait::gone_within(Duration::from_secs(30), &locks, "report").await;
    })
    .await;
}
