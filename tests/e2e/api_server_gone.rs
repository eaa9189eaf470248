//! The API server stands still: held locks stay held, and status is right again afterwards.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _};
use redlock_operator::api::DistributedLock;
use tokio::time::Instant;

use crate::harness::objects::{create_lock, held, is_held, owner, ready_cluster_for_long_leases, redis_key, token};
use crate::harness::redis::Connection;
use crate::harness::{Env, existing_cluster, install, machine, scenario_that_disturbs_the_operator, wait};

/// TTL of the lock: shorter than a term outlasts its last renewal.
const TTL: &str = "6s";
/// How long status may be outdated after the API server is back: a leader renews its Lease, then the times in turn.
const CAUGHT_UP: Duration = Duration::from_secs(30);

/// Freezes the API server for a while, with this number of operators.
async fn frozen(env: &Env, operators: i32, pause: Duration) {
    let masters = ready_cluster_for_long_leases(env, 3).await;
    install::scale_operator(operators).await;
    install::wait_until_ready().await;
    install::wait_until_one_leads().await;
    create_lock(env, "report", "report", "job/report", TTL).await;
    let lock = held(env, "report").await;
    let pods: Api<Pod> = env.api();
    let mut connections: Vec<Connection> = Vec::new();
    for index in 0..3 {
        let pod = pods.get(&masters.pod(index)).await.unwrap();
        let ip = pod.status.and_then(|status| status.pod_ip).expect("an address");
        connections.push(masters.connect_to(&ip).await.unwrap());
    }
    let before = restarts().await;

    let frozen = machine::freeze_api_server().await;
    let (begin, key) = (Instant::now(), redis_key(env, "report"));
    while begin.elapsed() < pause {
        let mut votes = 0;
        for connection in &mut connections {
            let said = connection.read(&key).await.unwrap();
            votes += usize::from(said.is_some_and(|said| said.owner == owner(&lock)));
        }
        assert!(votes >= 2, "{votes} masters have the key after {:?}", begin.elapsed());
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    drop(frozen);

    let back = Timestamp::now();
    let locks: Api<DistributedLock> = env.api();
    let is_true = |lock: &DistributedLock| {
        let until = lock.status.as_ref().and_then(|status| status.valid_until.as_ref());
        is_held(lock) && until.is_some_and(|until| until.0 > Timestamp::now())
    };
    let caught_up = |lock: &DistributedLock| {
        let renewed = lock.status.as_ref().and_then(|status| status.renew_time.as_ref());
        is_true(lock) && renewed.is_some_and(|at| at.0 > back)
    };
    let kept = wait::until_within(CAUGHT_UP, &locks, "report", caught_up).await.unwrap_or_else(|last| panic!("{last}"));
    let (was, is) = (lock.status.as_ref().unwrap(), kept.status.as_ref().unwrap());
    assert_eq!((token(&kept), &is.acquire_time, is.transitions), (token(&lock), &was.acquire_time, was.transitions));
    // From then on, for twice the TTL.
    let end = Instant::now() + Duration::from_secs(12);
    while Instant::now() < end {
        let shown = locks.get("report").await.unwrap();
        assert!(is_true(&shown), "{:?} is in the past at {}", shown.status.unwrap().valid_until, Timestamp::now());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(restarts().await, before, "no operator has ended");
}

/// The operator's pods, and how often each has restarted.
async fn restarts() -> Vec<(String, i32)> {
    let mut all: Vec<_> = install::operator_pods()
        .await
        .iter()
        .map(|pod| {
            let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
            (pod.name_any(), containers.map(|container| container.restart_count).sum())
        })
        .collect();
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_api_server_frozen_a_single_operator_keeps_held_locks_with_the_same_token() {
    if existing_cluster() {
        return;
    }
    scenario_that_disturbs_the_operator("api-frozen", async |env| frozen(env, 1, Duration::from_secs(40)).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the API server is frozen for two minutes: E2E_FULL=1"]
async fn with_the_api_server_frozen_for_two_minutes_one_operator_keeps_held_locks() {
    if existing_cluster() {
        return;
    }
    scenario_that_disturbs_the_operator("api-frozen-1", async |env| frozen(env, 1, Duration::from_secs(120)).await)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the API server is frozen for two minutes: E2E_FULL=1"]
async fn with_the_api_server_frozen_for_two_minutes_two_operators_keep_held_locks() {
    if existing_cluster() {
        return;
    }
    scenario_that_disturbs_the_operator("api-frozen-2", async |env| frozen(env, 2, Duration::from_secs(120)).await)
        .await;
}
