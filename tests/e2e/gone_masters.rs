//! When a master is gone: a server that may still run is never replaced, whatever became of its pod's object.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use redlock_operator::api::RedisLockCluster;
use redlock_operator::api::cluster::MasterState;
use serde_json::json;

use crate::harness::objects::{RESTART_DELAY, master_state, ready_cluster};
use crate::harness::{existing_cluster, machine, scenario_that_disturbs_the_operator, wait};

/// Long enough for an operator that takes the pod for gone to make another one.
const LONG: Duration = RESTART_DELAY.saturating_add(Duration::from_secs(4));

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_deleted_by_force_on_a_frozen_machine_keeps_its_place_until_its_server_has_ended() {
    if existing_cluster() {
        return;
    }
    scenario_that_disturbs_the_operator("frozen", async |env| {
        let masters = ready_cluster(env, 3).await;
        let (pods, clusters): (Api<Pod>, Api<RedisLockCluster>) = (env.api(), env.api());
        let name = masters.pod(1);
        let old = pods.get(&name).await.unwrap();
        let frozen = machine::freeze_machine_of(&old).await;

        pods.delete(&name, &DeleteParams::default().grace_period(0)).await.unwrap();
        let kept = |c: &RedisLockCluster| master_state(c, &name) == Some(MasterState::Terminating);
        wait::until(&clusters, "main", "keeping its place", kept).await;
        let other = |p: &Pod| p.uid() != old.uid();
        let made = wait::until_within(LONG, &pods, &name, other).await;
        assert!(made.is_err(), "another pod was made beside a server that votes");
        assert!(machine::server_runs(&old), "the server that nobody can see votes on");
        assert_eq!(master_state(&clusters.get("main").await.unwrap(), &name), Some(MasterState::Terminating));

        frozen.thaw().await;
        let out = |c: &RedisLockCluster| master_state(c, &name) == Some(MasterState::Quarantined);
        wait::until(&clusters, "main", "keeping it out", out).await;
        assert!(!machine::server_runs(&old), "it has ended before that is recorded");
        let armed = |c: &RedisLockCluster| master_state(c, &name) == Some(MasterState::Armed);
        wait::until(&clusters, "main", "armed again", armed).await;
        assert_ne!(pods.get(&name).await.unwrap().uid(), old.uid());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_whose_object_vanished_keeps_its_place_until_an_administrator_vouches_for_its_end() {
    if existing_cluster() {
        return;
    }
    scenario_that_disturbs_the_operator("vanished", async |env| {
        let masters = ready_cluster(env, 3).await;
        let (pods, clusters): (Api<Pod>, Api<RedisLockCluster>) = (env.api(), env.api());
        let name = masters.pod(1);
        let old = pods.get(&name).await.unwrap();
        let frozen = machine::freeze_machine_of(&old).await;
        pods.delete(&name, &DeleteParams::default().grace_period(0)).await.unwrap();
        let bare = json!({"metadata": {"finalizers": null}});
        pods.patch(&name, &PatchParams::default(), &Patch::Merge(bare)).await.unwrap();

        let vanished = |c: &RedisLockCluster| master_state(c, &name) == Some(MasterState::Vanished);
        let cluster = wait::until(&clusters, "main", "keeping the place", vanished).await;
        let row = cluster.status.unwrap().masters.into_iter().find(|row| row.name == name).unwrap();
        let uid = old.uid().unwrap();
        assert!(row.message.as_ref().is_some_and(|text| text.contains(&uid)), "{row:?}");
        assert_eq!(row.node_name, old.spec.as_ref().unwrap().node_name);
        assert!(row.boot_id.is_some(), "the start of its machine is recorded");
        let made = wait::until_within(LONG, &pods, &name, |_| true).await;
        assert!(made.is_err(), "another pod was made beside a server that votes");

        frozen.thaw().await;
        let vouch = json!({"metadata": {"annotations": {"redlock.dev/gone": uid}}});
        clusters.patch("main", &PatchParams::default(), &Patch::Merge(vouch)).await.unwrap();
        let out = |c: &RedisLockCluster| master_state(c, &name) == Some(MasterState::Quarantined);
        wait::until(&clusters, "main", "keeping it out", out).await;
        let armed = |c: &RedisLockCluster| master_state(c, &name) == Some(MasterState::Armed);
        wait::until(&clusters, "main", "armed again", armed).await;
    })
    .await;
}
