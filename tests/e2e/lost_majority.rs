//! A majority of masters is lost: the holder is told, and nobody is granted the lock before the restart delay is over.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;
use redlock_operator::api::cluster::ClusterPhase;
use redlock_operator::api::{DistributedLock, RedisLockCluster};

use crate::harness::objects::{condition, create_lock, held, is_held, owner, ready_cluster, redis_key, token};
use crate::harness::probe::Probe;
use crate::harness::{Env, clocks_apart, scenario, wait};

const TTL: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_three_of_five_masters_killed_the_holder_is_told_and_nobody_is_granted_before_the_delay_is_over() {
    scenario("three-killed", async |env| {
        let masters = ready_cluster(env, 5).await;
        create_lock(env, "report", "report", "job/report", "4s").await;
        let lock = held(env, "report").await;
        let probe = Probe::start(&masters, &redis_key(env, "report")).await;
        probe.catch_up(&[0, 1, 2, 3, 4]).await;

        let before = Timestamp::now();
        let pods: Api<Pod> = env.api();
        let kill = DeleteParams::default().grace_period(0);
        let names: Vec<_> = (0..3).map(|i| masters.pod(i)).collect();
        futures::future::try_join_all(names.iter().map(|name| pods.delete(name, &kill))).await.unwrap();
        let killed = tokio::time::Instant::now();

        let locks: Api<DistributedLock> = env.api();
        let told = wait::until(&locks, "report", "told lost", |l| !is_held(l)).await;
        let took = killed.elapsed();
        // The holder knows by its own clock. The API shows it later, on a machine that may be busy.
        assert!(took < TTL + Duration::from_secs(4), "told only after {took:?}");
        let why = condition(&told, "Held").expect("a condition Held");
        assert_ne!(why.status, "True", "{}: {}", why.reason, why.message);
        assert!(!why.message.is_empty(), "the condition says why");

        let clusters: Api<RedisLockCluster> = env.api();
        wait::until(&clusters, "main", "unavailable", |c| {
            c.status.as_ref().and_then(|s| s.phase) == Some(ClusterPhase::Unavailable)
        })
        .await;
        let earliest = earliest_return(env, &names, before).await;

        let again = wait::until(&locks, "report", "granted again", |l| is_held(l) && token(l) > token(&lock)).await;
        let acquired = again.status.as_ref().unwrap().acquire_time.as_ref().unwrap().0;
        assert!(acquired >= earliest, "granted at {acquired}, before the first master may return at {earliest}");
        probe.catch_up(&[3, 4]).await;
        let record = probe.finish();

        record.assert_tokens_only_grow();
        let majorities = record.majorities();
        let owners: Vec<_> = majorities.iter().map(|(owner, _)| owner.to_string()).collect();
        assert_eq!(owners, [owner(&lock), owner(&again)], "no other had a majority of the masters");
        let since_earliest = Timestamp::now().duration_since(earliest);
        let earliest = tokio::time::Instant::now() - Duration::try_from(since_earliest).unwrap();
        let seen = majorities[1].1 + clocks_apart();
        assert!(seen >= earliest, "a majority had the key {:?} too early", earliest - seen);
    })
    .await;
}

/// When the first of the lost masters may return. Waits until all of them are known to be lost.
async fn earliest_return(env: &Env, names: &[String], before: Timestamp) -> Timestamp {
    let clusters: Api<RedisLockCluster> = env.api();
    let rows = |c: &RedisLockCluster| -> Vec<Timestamp> {
        let masters = c.status.iter().flat_map(|s| &s.masters).filter(|n| names.contains(&n.name));
        masters.filter(|n| n.crashes == 1).filter_map(|n| n.restart_not_before.as_ref().map(|t| t.0)).collect()
    };
    let all_known = |c: &RedisLockCluster| rows(c).len() == names.len();
    let cluster = wait::until(&clusters, "main", "keeping three masters out", all_known).await;
    let earliest = rows(&cluster).into_iter().min().unwrap();
    let least = before + crate::harness::objects::RESTART_DELAY;
    assert!(earliest + clocks_apart() >= least, "{earliest} is less than the delay after {before}");
    earliest
}
