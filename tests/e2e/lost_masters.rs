//! A minority of masters is lost: leases stay held, and a lost master is quarantined for its restart delay.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;
use redlock_operator::api::cluster::{MasterState, MasterStatus};
use redlock_operator::api::lock::LockPhase;
use redlock_operator::api::{DistributedLock, RedisLockCluster};

use crate::harness::objects::{
    RESTART_DELAY, create_lock, held, is_held, master_state, owner, phase, ready_cluster, redis_key, token,
};
use crate::harness::probe::Probe;
use crate::harness::redis::Masters;
use crate::harness::{Env, clocks_apart, existing_cluster, machine, scenario, wait};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_one_then_two_of_five_masters_killed_the_lease_stays_held_and_they_return_after_their_delay() {
    scenario("two-killed", async |env| {
        let masters = ready_cluster(env, 5).await;
        create_lock(env, "holder", "report", "job/holder", "4s").await;
        let lock = on_all_masters(env, "holder", "5/5").await;
        create_lock(env, "rival", "report", "job/rival", "4s").await;
        let probe = Probe::start(&masters, &redis_key(env, "report")).await;

        let before_first = Timestamp::now();
        let pods: Api<Pod> = env.api();
        if existing_cluster() {
            pods.delete(&masters.pod(0), &DeleteParams::default().grace_period(0)).await.unwrap();
        } else {
            machine::kill_server(&pods.get(&masters.pod(0)).await.unwrap()).await;
        }
        let first = quarantined(env, &masters.pod(0), before_first).await;

        let before_second = Timestamp::now();
        stop_server(&masters, 1).await;
        let second = quarantined(env, &masters.pod(1), before_second).await;

        returned(env, &first).await;
        returned(env, &second).await;
        let kept = on_all_masters(env, "holder", "5/5").await;
        probe.catch_up(&[0, 1, 2, 3, 4]).await;
        let record = probe.finish();

        assert!(is_held(&kept));
        assert_eq!(token(&kept), token(&lock), "the same grant throughout");
        record.assert_always_owned(&[2, 3, 4], &owner(&lock));
        record.assert_tokens_only_grow();
        for returned in [0, 1] {
            let last = record.of(returned).last().and_then(|(_, said)| said.cloned());
            assert_eq!(last.map(|o| o.owner), Some(owner(&lock)), "a returned master gets the key of the holder");
        }
        let rival: DistributedLock = env.api().get("rival").await.unwrap();
        assert_eq!(phase(&rival), Some(LockPhase::Waiting), "no second holder");
        assert_eq!(rival.status.unwrap().acquire_time, None, "the rival never held it");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_master_is_quarantined_for_its_delay() {
    scenario("flushed", async |env| {
        let masters = ready_cluster(env, 3).await;
        create_lock(env, "holder", "report", "job/holder", "4s").await;
        let lock = on_all_masters(env, "holder", "3/3").await;
        let probe = Probe::start(&masters, &redis_key(env, "report")).await;

        let before = Timestamp::now();
        masters.connect(0).await.unwrap().command::<()>(&["FLUSHALL"]).await.unwrap();
        let flushed = tokio::time::Instant::now();
        let row = quarantined(env, &masters.pod(0), before).await;
        returned(env, &row).await;
        let kept = on_all_masters(env, "holder", "3/3").await;
        probe.catch_up(&[0, 1, 2]).await;
        let record = probe.finish();

        assert_eq!(token(&kept), token(&lock));
        record.assert_always_owned(&[1, 2], &owner(&lock));
        let out_until = flushed + (RESTART_DELAY - clocks_apart());
        for (sighting, said) in record.of(0).filter(|(s, _)| s.sent > flushed && s.received < out_until) {
            assert_eq!(said, None, "a quarantined master has no key: {sighting:?}");
        }
    })
    .await;
}

async fn on_all_masters(env: &Env, name: &str, votes: &str) -> DistributedLock {
    held(env, name).await;
    let locks: Api<DistributedLock> = env.api();
    let on_all = |l: &DistributedLock| {
        let has = l.status.as_ref().and_then(|s| s.votes.as_deref()) == Some(votes);
        has && is_held(l)
    };
    wait::until(&locks, name, &format!("held on {votes}"), on_all).await
}

/// Ends the server process of a master, which closes the connection of the command.
async fn stop_server(masters: &Masters, index: usize) {
    let mut connection = masters.connect(index).await.unwrap();
    let answer = connection.command::<()>(&["SHUTDOWN", "NOSAVE", "NOW", "FORCE"]).await;
    assert!(answer.is_err(), "a server that ends does not answer");
}

/// Waits until a master is quarantined, and returns its row, which must say until when: the restart delay after the loss.
async fn quarantined(env: &Env, name: &str, before: Timestamp) -> MasterStatus {
    let clusters: Api<RedisLockCluster> = env.api();
    let is_out = |c: &RedisLockCluster| master_state(c, name) == Some(MasterState::Quarantined);
    let cluster = wait::until(&clusters, "main", &format!("keeping {name} out"), is_out).await;
    let row = cluster.status.unwrap().masters.into_iter().find(|n| n.name == name).unwrap();
    let gone = row.last_crash_time.as_ref().expect("a lost master's row says when it went").0;
    let not_before = row.restart_not_before.as_ref().expect("a lost master's row says until when it is kept out").0;
    assert!(gone + clocks_apart() >= before, "seen to be gone at {gone}, before it was killed at {before}");
    assert_eq!(not_before.duration_since(gone), SignedDuration::try_from(RESTART_DELAY).unwrap());
    assert_eq!(row.crashes, 1);
    row
}

/// Waits until the master is armed again, which must not be before the time in its row.
async fn returned(env: &Env, row: &MasterStatus) {
    let clusters: Api<RedisLockCluster> = env.api();
    let armed = |c: &RedisLockCluster| master_state(c, &row.name) == Some(MasterState::Armed);
    wait::until(&clusters, "main", &format!("armed again on {}", row.name), armed).await;
    let seen = Timestamp::now();
    let not_before = row.restart_not_before.as_ref().unwrap().0;
    assert!(seen + clocks_apart() >= not_before, "armed at {seen} already, not only after {not_before}");
    let pod = env.api::<Pod>().get(&row.name).await.unwrap();
    let created = pod.metadata.creation_timestamp.unwrap().0;
    // A creation time has whole seconds.
    let created = created + clocks_apart() + Duration::from_secs(1);
    assert!(created > not_before, "its pod was made at {created} already, not only after {not_before}");
    assert_ne!(pod.metadata.uid, row.pod_uid, "another pod than the one that was lost");
}
