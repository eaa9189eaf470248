//! How a pod can end: its machine dies or restarts, memory is short, it is evicted. The master returns after its delay, not before.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::EvictParams;
use kube::{Api, ResourceExt as _};
use redlock_operator::api::RedisLockCluster;
use redlock_operator::api::cluster::{MasterState, MasterStatus};

use crate::harness::objects::{RESTART_DELAY, master_state, ready_cluster};
use crate::harness::redis::Masters;
use crate::harness::{
    Env, clocks_apart, existing_cluster, install, kubectl, machine, scenario, scenario_that_disturbs_the_operator, wait,
};

/// How long Kubernetes may take to notice that a machine is dead, and to give its pods up.
const GIVEN_UP: Duration = Duration::from_secs(180);

/// A master whose machine runs no pod of the operator, and its pod.
async fn master_apart(env: &Env, masters: &Masters) -> (String, Pod) {
    let operators: Vec<_> = install::operator_pods().await.iter().map(machine::machine_of).collect();
    for index in 0..masters.count {
        let pod = env.api::<Pod>().get(&masters.pod(index)).await.unwrap();
        if !operators.contains(&machine::machine_of(&pod)) {
            return (masters.pod(index), pod);
        }
    }
    panic!("all masters are on the machine of the operator");
}

/// Waits until a master is kept out, and returns its record.
async fn kept_out(env: &Env, name: &str) -> MasterStatus {
    let clusters: Api<RedisLockCluster> = env.api();
    let out = |c: &RedisLockCluster| master_state(c, name) == Some(MasterState::Quarantined);
    let cluster = wait::until_within(GIVEN_UP, &clusters, "main", out).await.unwrap_or_else(|last| panic!("{last}"));
    cluster.status.unwrap().masters.into_iter().find(|row| row.name == name).unwrap()
}

/// Waits until a master that was kept out votes again, and checks that its delay was over and that it has another pod.
async fn back(env: &Env, old: &Pod, row: &MasterStatus) -> Pod {
    let clusters: Api<RedisLockCluster> = env.api();
    let armed = |c: &RedisLockCluster| master_state(c, &row.name) == Some(MasterState::Armed);
    wait::until(&clusters, "main", "armed again", armed).await;
    let until = row.restart_not_before.as_ref().unwrap().0;
    assert!(until.duration_since(row.last_crash_time.as_ref().unwrap().0) >= RESTART_DELAY.try_into().unwrap());
    assert!(Timestamp::now() + clocks_apart() >= until, "armed before {until}");
    let pod = env.api::<Pod>().get(&row.name).await.unwrap();
    assert_ne!(pod.uid(), old.uid(), "another pod");
    pod
}

async fn until_ready(env: &Env, name: &str, ready: &str) {
    let machines = Api::<Node>::all(env.client.clone());
    let found = wait::until_within(GIVEN_UP, &machines, name, |machine| {
        let conditions = machine.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.filter(|condition| condition.type_ == "Ready").any(|condition| condition.status == ready)
    });
    found.await.unwrap_or_else(|last| panic!("not {ready}: {last}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "waits about a minute: make e2e-full"]
async fn a_master_on_a_frozen_machine_that_was_deleted_from_kubernetes_is_disarmed_and_returns_on_another() {
    if existing_cluster() {
        return;
    }
    scenario_that_disturbs_the_operator("machine-deleted", async |env| {
        let masters = ready_cluster(env, 3).await;
        let (name, old) = master_apart(env, &masters).await;
        let ip = old.status.as_ref().unwrap().pod_ip.clone().unwrap();
        let lost = machine::freeze_machine_of(&old).await.restarted_at_the_end();
        let machine = machine::machine_of(&old);
        kubectl(&["delete", "node", &machine]).await.unwrap();

        let row = kept_out(env, &name).await;
        assert!(row.message.as_ref().is_some_and(|text| text.contains("Kubernetes node was deleted")), "{row:?}");
        assert!(machine::server_runs(&old), "its server runs on, out of reach of Kubernetes");
        let armed: Option<String> =
            masters.connect_to(&ip).await.unwrap().command(&["GET", "redlock:armed"]).await.unwrap();
        assert_eq!(armed, None, "but it was stripped of its vote");
        let new = back(env, &old, &row).await;
        assert_ne!(machine::machine_of(&new), machine);
        drop(lost);
        until_ready(env, &machine, "True").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "waits about a minute: make e2e-full"]
async fn a_master_on_a_frozen_machine_that_is_tainted_out_of_service_returns_on_another() {
    if existing_cluster() {
        return;
    }
    scenario_that_disturbs_the_operator("out-of-service", async |env| {
        let masters = ready_cluster(env, 3).await;
        let (name, old) = master_apart(env, &masters).await;
        let machine = machine::machine_of(&old);
        let lost = machine::freeze_machine_of(&old).await;
        until_ready(env, &machine, "Unknown").await;
        let taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";
        kubectl(&["taint", "nodes", &machine, taint]).await.unwrap();

        let row = kept_out(env, &name).await;
        assert!(row.message.as_ref().is_some_and(|text| text.contains("out-of-service")), "{row:?}");
        let new = back(env, &old, &row).await;
        assert_ne!(machine::machine_of(&new), machine);
        kubectl(&["taint", "nodes", &machine, &format!("{taint}-")]).await.unwrap();
        lost.thaw().await;
        until_ready(env, &machine, "True").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_whose_machine_restarts_waits_from_the_report_of_its_kubelet() {
    if existing_cluster() {
        return;
    }
    scenario_that_disturbs_the_operator("restarted", async |env| {
        let masters = ready_cluster(env, 3).await;
        let (name, old) = master_apart(env, &masters).await;
        machine::restart_machine_of(&old).await;
        assert!(!machine::server_runs(&old));
        let row = kept_out(env, &name).await;
        back(env, &old, &row).await;
        until_ready(env, &machine::machine_of(&old), "True").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_evicted_by_the_api_is_kept_out_for_its_delay() {
    scenario("evicted", async |env| {
        let masters = ready_cluster(env, 3).await;
        let old = env.api::<Pod>().get(&masters.pod(1)).await.unwrap();
        env.api::<Pod>().evict(&masters.pod(1), &EvictParams::default()).await.unwrap();
        let row = kept_out(env, &masters.pod(1)).await;
        assert_eq!(row.crashes, 1);
        back(env, &old, &row).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_the_kernel_kills_for_its_memory_is_kept_out_for_its_delay_and_says_why() {
    scenario("out-of-memory", async |env| {
        let masters = ready_cluster(env, 3).await;
        let old = env.api::<Pod>().get(&masters.pod(1)).await.unwrap();
        let mut server = masters.connect(1).await.unwrap();
        // Above what redis.conf allows for keys, so that its container is at its limit of 64Mi.
        server.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await.unwrap();
        let filled = async {
            for i in 0..200 {
                server.command::<()>(&["SETRANGE", &format!("filler:{i}"), "1000000", "x"]).await?;
            }
            Ok::<_, String>(())
        };
        assert!(filled.await.is_err(), "it is killed meanwhile");
        let row = kept_out(env, &masters.pod(1)).await;
        assert!(row.message.as_ref().is_some_and(|text| text.contains("OOMKilled")), "{row:?}");
        back(env, &old, &row).await;
    })
    .await;
}
