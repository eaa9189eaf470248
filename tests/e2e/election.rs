//! Pods elect a leader by their sidecars, as in `examples/20-leader-election.yaml`.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{AttachParams, DeleteParams, PostParams};
use redlock_operator::api::DistributedLock;
use serde_json::json;
use tokio::time::Instant;

use crate::harness::agent::{self, Claim, Watch};
use crate::harness::objects::{example, is_held, ready_cluster, ready_pods, redis_key};
use crate::harness::probe::Probe;
use crate::harness::redis::Masters;
use crate::harness::{Env, PATIENCE, install, scenario, scenario_that_disturbs_the_operator, wait};

/// Time to live of the example's leases.
const TTL: Duration = Duration::from_secs(5);
/// The example's pods.
const PODS: &str = "app=web";
/// Masters of this module's clusters.
const MASTERS: usize = 3;

/// Kills the process `redlock` in a pod that shares its process namespace; needs only a shell.
const KILL_SIDECAR: &str =
    r#"for p in /proc/[0-9]*; do read -r n <$p/comm && [ "$n" = redlock ] && kill -9 "${p#/proc/}"; done; true"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_pods_elect_one_leader_which_releases_the_lock_when_it_is_stopped() {
    scenario("election", async |env| {
        let (masters, names) = three_pods(env).await;
        let pods: Api<Pod> = env.api();
        let mut watch = Watch::start(&pods, names.clone());
        let leader = watch.claim(PODS, "a first leader", |_| true).await;
        let owner = shown_in_status(env, &leader).await;
        for name in &names {
            let expected = if *name == leader.pod { 200 } else { 503 };
            assert_eq!(agent::get(&pods, name, agent::PORT, "/leader").await.unwrap().0, expected, "{name}");
            // It knows the leader once a majority of the masters has answered it.
            knows_the_leader(&pods, name, &leader).await;
            assert_eq!(agent::get(&pods, name, agent::PORT, "/readyz").await.unwrap().0, 200, "{name} is ready");
        }

        let probe = Probe::start(&masters, &redis_key(env, "web-leader")).await;
        probe.until_on_all(&owner).await;
        pods.delete(&leader.pod, &DeleteParams::default()).await.unwrap();
        let next = watch.claim(PODS, "a successor", |c| c.token > leader.token).await;
        assert_ne!(next.pod, leader.pod);
        shown_in_status(env, &next).await;
        probe.catch_up(&[0, 1, 2]).await;
        let record = probe.finish();

        agent::assert_one_leader_at_a_time(&watch.finish());
        record.assert_tokens_only_grow();
        for master in 0..MASTERS {
            record.assert_deleted(master, &owner);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_has_a_successor_within_ttl_plus_two_seconds_with_a_larger_token() {
    scenario("leader-killed", async |env| {
        let (_, names) = three_pods(env).await;
        let mut watch = Watch::start(&env.api(), names);
        let leader = watch.claim(PODS, "a first leader", |_| true).await;
        let owner = shown_in_status(env, &leader).await;
        let next = kill_and_follow(env, &mut watch, &leader).await;
        assert_ne!(shown_in_status(env, &next).await, owner, "another grant");
        agent::assert_one_leader_at_a_time(&watch.finish());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_has_a_successor_as_soon_while_no_operator_runs() {
    scenario_that_disturbs_the_operator("no-operator", async |env| {
        let (_, names) = three_pods(env).await;
        let mut watch = Watch::start(&env.api(), names);
        let leader = watch.claim(PODS, "a first leader", |_| true).await;
        install::scale_operator(0).await;
        let next = kill_and_follow(env, &mut watch, &leader).await;
        agent::assert_one_leader_at_a_time(&watch.finish());
        install::make_ready().await;
        shown_in_status(env, &next).await;
    })
    .await;
}

/// The example's three pods, all ready, on a cluster of this scenario.
async fn three_pods(env: &Env) -> (Masters, Vec<String>) {
    let mut locks = 0;
    for mut object in example(env, "20-leader-election.yaml") {
        if object["kind"] == "DistributedLock" {
            let lock: DistributedLock = serde_json::from_value(object).unwrap();
            env.api().create(&PostParams::default(), &lock).await.unwrap();
            locks += 1;
        } else {
            // So that the application can kill its sidecar, which then has no chance to release the lock.
            object["spec"]["template"]["spec"]["shareProcessNamespace"] = json!(true);
            let pods: Deployment = serde_json::from_value(object).unwrap();
            env.api().create(&PostParams::default(), &pods).await.unwrap();
        }
    }
    assert_eq!(locks, 1, "the example has one lock");
    // The lock and the pods come first, as with `kubectl apply -f examples/`: they wait for the cluster.
    let masters = ready_cluster(env, MASTERS).await;
    (masters, ready_pods(env, PODS, 3).await)
}

/// Kills the leader's sidecar and pod at once, and checks that another leads within the TTL and two seconds.
async fn kill_and_follow(env: &Env, watch: &mut Watch, leader: &Claim) -> Claim {
    let pods: Api<Pod> = env.api();
    let in_app = AttachParams::default().container("web").stderr(false);
    let mut shell = pods.exec(&leader.pod, ["sh", "-c", KILL_SIDECAR], &in_app).await.unwrap();
    let ended = shell.take_status().expect("asked for once");
    let said = ended.await.expect("the end of the command");
    assert_eq!(said.status.as_deref(), Some("Success"), "{said:?}");
    let killed = Instant::now();
    pods.delete(&leader.pod, &DeleteParams::default().grace_period(0)).await.unwrap();
    let next = watch.claim(PODS, "a successor", |c| c.token > leader.token).await;
    let took = next.received - killed;
    assert!(took <= TTL + Duration::from_secs(2), "the successor leads only {took:?} after the kill");
    next
}

/// Waits until the lock's status names this leader and its token. Returns the owner that it shows.
async fn shown_in_status(env: &Env, leader: &Claim) -> String {
    let locks: Api<DistributedLock> = env.api();
    let shows = |lock: &DistributedLock| {
        let status = lock.status.as_ref();
        let token = status.and_then(|s| s.fencing_token).and_then(|t| u64::try_from(t).ok());
        let holder = status.and_then(|s| s.holder.as_deref());
        is_held(lock) && token == Some(leader.token) && holder == Some(&leader.pod)
    };
    wait::until(&locks, "web-leader", &format!("led by {} with {}", leader.pod, leader.token), shows).await;
    let lock = locks.get("web-leader").await.unwrap();
    lock.status.and_then(|s| s.owner).expect("a held lock shows its owner")
}

/// Waits until a sidecar knows the leader, also if it does not lead itself.
async fn knows_the_leader(pods: &Api<Pod>, name: &str, leader: &Claim) {
    let begin = Instant::now();
    loop {
        let answer = agent::ask(pods, name).await.unwrap();
        assert_eq!(answer.own, name, "a sidecar's identity is its pod");
        if answer.name.as_deref() == Some(&leader.pod) && answer.token == Some(leader.token) {
            assert_eq!(answer.claim().is_some(), name == leader.pod, "{answer:?}");
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{name} knows of {answer:?}, not of {leader:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
