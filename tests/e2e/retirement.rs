//! A cluster that follows one of the same name does not vote before the leases on the former one have ended.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::{DeleteParams, PropagationPolicy};
use kube::{Api, ResourceExt as _};
use redlock_operator::api::RedisLockCluster;
use redlock_operator::api::cluster::MasterState;

use crate::harness::objects::{RESTART_DELAY, create_cluster, create_lock, held, ready_cluster};
use crate::harness::redis::root_key;
use crate::harness::{
    Env, clocks_apart, install, kubectl, output, scenario, scenario_that_disturbs_the_operator, wait,
};

/// Deletes the cluster `main` as `how` says, creates it again at once, and checks that none of its masters votes before the
/// restart delay of the former is over.
async fn recreated(env: &Env, how: DeleteParams) {
    let masters = ready_cluster(env, 3).await;
    create_lock(env, "report", "report", "job/report", "4s").await;
    held(env, "report").await;
    let (clusters, pods): (Api<RedisLockCluster>, Api<Pod>) = (env.api(), env.api());
    let mut old = Vec::new();
    for index in 0..masters.count {
        old.push(pods.get(&masters.pod(index)).await.unwrap().uid());
    }
    let before = Timestamp::now();
    clusters.delete("main", &how).await.unwrap();
    wait::gone_within(Duration::from_secs(30), &clusters, "main").await;
    ready_again(env, before).await;
    for (index, old) in old.iter().enumerate() {
        assert_ne!(pods.get(&masters.pod(index)).await.unwrap().uid(), *old, "another pod");
    }
}

/// Creates the cluster `main` again, and checks that it was quarantined since a time after `before`.
async fn ready_again(env: &Env, before: Timestamp) {
    let spec = serde_json::json!({"masters": 3, "maxTTL": "5s", "restartDelay": "8s"});
    create_cluster(env, spec).await;
    waits_for_former_leases(env, before).await;
}

/// Checks that the cluster `main`, which was created again, is quarantined since a time after `before`.
async fn waits_for_former_leases(env: &Env, before: Timestamp) {
    let clusters: Api<RedisLockCluster> = env.api();
    let quarantined = |c: &RedisLockCluster| {
        let rows = c.status.as_ref().map(|s| s.masters.clone()).unwrap_or_default();
        rows.len() == 3 && rows.iter().all(|row| row.state == MasterState::Quarantined)
    };
    let cluster = wait::until(&clusters, "main", "keeping all masters out", quarantined).await;
    for row in cluster.status.unwrap().masters {
        let gone = row.last_crash_time.expect("since when").0;
        let until = row.restart_not_before.expect("until when").0;
        assert!(gone + clocks_apart() >= before, "{} since {gone}, before {before}", row.name);
        assert!(until.duration_since(gone) >= RESTART_DELAY.try_into().unwrap(), "{} until {until}", row.name);
    }
    let any_armed = |c: &RedisLockCluster| {
        c.status.as_ref().is_some_and(|s| s.masters.iter().any(|row| row.state == MasterState::Armed))
    };
    wait::until(&clusters, "main", "armed", any_armed).await;
    assert!(
        Timestamp::now() + clocks_apart() >= before + RESTART_DELAY,
        "a master votes before the former leases have ended"
    );
    held(env, "report").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_made_again_at_once_waits_until_the_former_leases_have_ended() {
    scenario("recreated", async |env| recreated(env, DeleteParams::default()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_deleted_in_the_foreground_or_without_its_dependents_is_retired_alike() {
    scenario("foreground", async |env| recreated(env, DeleteParams::foreground()).await).await;
    scenario("orphaned", async |env| {
        let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
        let secret = |env: &Env| env.api::<Secret>();
        recreated(env, orphan).await;
        let taken_over = secret(env).get("main-auth").await.unwrap();
        let cluster: RedisLockCluster = env.api().get("main").await.unwrap();
        assert_eq!(
            taken_over.owner_references().iter().map(|o| Some(o.uid.clone())).collect::<Vec<_>>(),
            [cluster.uid()]
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_whose_finalizer_was_taken_off_by_force_leaves_no_vote_either() {
    scenario_that_disturbs_the_operator("stripped", async |env| {
        ready_cluster(env, 3).await;
        create_lock(env, "report", "report", "job/report", "4s").await;
        held(env, "report").await;
        // Nobody is there to retire it.
        kubectl(&["-n", install::NAMESPACE, "scale", "deployment", install::RELEASE, "--replicas=0"]).await.unwrap();
        let pods: Api<Pod> = Api::namespaced(env.client.clone(), install::NAMESPACE);
        for pod in install::operator_pods().await {
            wait::gone(&pods, &pod.name_any()).await;
        }
        let clusters: Api<RedisLockCluster> = env.api();
        clusters.delete("main", &DeleteParams::default()).await.unwrap();
        let free = ["patch", "rlc", "main", "--type=merge", "--patch", r#"{"metadata":{"finalizers":null}}"#];
        kubectl(&[&["-n", env.namespace.as_str()][..], &free].concat()).await.unwrap();
        wait::gone(&clusters, "main").await;
        let before = Timestamp::now();
        install::make_ready().await;
        ready_again(env, before - Duration::from_secs(60)).await;
        let store: Api<ConfigMap> = Api::namespaced(env.client.clone(), install::NAMESPACE);
        let store = store.get("redlock-tombstones").await.unwrap();
        let left = store.data.unwrap_or_default();
        assert!(!left.contains_key(&format!("{}.main", env.namespace)), "its tombstone is in the new record: {left:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_replaced_by_force_waits_until_the_former_leases_have_ended() {
    scenario("replaced", async |env| {
        ready_cluster(env, 3).await;
        create_lock(env, "report", "report", "job/report", "4s").await;
        held(env, "report").await;
        let before = Timestamp::now();
        let file = saved(env, "rlc/main").await;
        kubectl(&["replace", "--force", "--timeout=40s", "-f", &file]).await.unwrap();
        waits_for_former_leases(env, before).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_deleted_while_the_operator_is_down_is_retired_by_the_next_one() {
    scenario_that_disturbs_the_operator("deleted-meanwhile", async |env| {
        ready_cluster(env, 3).await;
        create_lock(env, "report", "report", "job/report", "4s").await;
        held(env, "report").await;
        install::scale_operator(0).await;
        let clusters: Api<RedisLockCluster> = env.api();
        clusters.delete("main", &DeleteParams::default()).await.unwrap();
        // A user who sees that it is still there deletes its pods too.
        kubectl(&["-n", &env.namespace, "delete", "pods", "--all", "--force", "--wait=false"]).await.unwrap();
        assert!(clusters.get("main").await.unwrap().metadata.deletion_timestamp.is_some(), "its finalizer holds it");
        let before = Timestamp::now();
        install::make_ready().await;
        wait::gone_within(Duration::from_secs(30), &clusters, "main").await;
        ready_again(env, before).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_restored_without_an_owner_is_taken_over_and_its_pods_are_replaced_after_the_delay() {
    scenario("restored", async |env| {
        let masters = ready_cluster(env, 3).await;
        create_lock(env, "report", "report", "job/report", "4s").await;
        held(env, "report").await;
        let key = root_key(env, "main").await;
        let objects = saved(env, "pods,services,secrets,rlc").await;
        let clusters: Api<RedisLockCluster> = env.api();
        clusters.delete("main", &DeleteParams::default()).await.unwrap();
        wait::gone_within(Duration::from_secs(30), &clusters, "main").await;
        for index in 0..masters.count {
            wait::gone(&env.api::<Pod>(), &masters.pod(index)).await;
        }
        wait::gone(&env.api::<Secret>(), "main-auth").await;

        let before = Timestamp::now() - Duration::from_secs(60);
        kubectl(&["apply", "-f", &objects]).await.unwrap();
        waits_for_former_leases(env, before).await;
        assert_eq!(root_key(env, "main").await, key, "clients go on with their passwords");
        let cluster = clusters.get("main").await.unwrap();
        let secret: Secret = env.api().get("main-auth").await.unwrap();
        let owners: Vec<_> = secret.owner_references().iter().map(|owner| Some(owner.uid.clone())).collect();
        assert_eq!(owners, [cluster.uid()]);
        let ready = |c: &RedisLockCluster| {
            c.status.as_ref().is_some_and(|s| s.masters.iter().all(|row| row.state == MasterState::Armed))
        };
        wait::until(&clusters, "main", "ready", ready).await;
    })
    .await;
}

/// Writes objects of the scenario to a file as a backup has them: without an owner, or what a server has added.
async fn saved(env: &Env, what: &str) -> String {
    let all = kubectl(&["-n", &env.namespace, "get", what, "-o", "json"]).await.unwrap();
    let mut all: serde_json::Value = serde_json::from_str(&all).unwrap();
    let strip = |object: &mut serde_json::Value| {
        let metadata = object["metadata"].as_object_mut().unwrap();
        for part in ["ownerReferences", "uid", "resourceVersion", "creationTimestamp", "managedFields", "finalizers"] {
            metadata.remove(part);
        }
        let object = object.as_object_mut().unwrap();
        object.remove("status");
        for part in ["nodeName", "clusterIP", "clusterIPs"] {
            object.get_mut("spec").and_then(|spec| spec.as_object_mut()).map(|spec| spec.remove(part));
        }
    };
    match all.get_mut("items").and_then(|items| items.as_array_mut()) {
        Some(items) => items.iter_mut().for_each(strip),
        None => strip(&mut all),
    }
    let file = output("mktemp", &[]).await.unwrap().trim().to_owned();
    std::fs::write(&file, all.to_string()).unwrap();
    file
}
