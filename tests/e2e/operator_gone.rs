//! The operator is killed: the next one renews the leases that it held.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use redlock_operator::api::DistributedLock;

use crate::harness::objects::{
    create_lock, held, is_held, owner, ready_cluster, ready_cluster_for_long_leases, redis_key, token,
};
use crate::harness::probe::Probe;
use crate::harness::{PATIENCE, install, kubectl, scenario_that_disturbs_the_operator, wait};

/// Locks of which none is lost with the leader.
const MANY: usize = 50;

/// How many locks a replica holds, by its metrics. There are none of other scenarios.
async fn held_by(pod: &Pod) -> usize {
    let metrics = install::metrics_of(pod).await.unwrap_or_default();
    let held = metrics.lines().find_map(|line| line.strip_prefix("redlock_locks{activity=\"held\"} "));
    held.map_or(0, |count| count.parse().expect("a count"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_operator_killed_a_lease_stays_held_with_the_same_token() {
    scenario_that_disturbs_the_operator("operator-killed", async |env| {
        let masters = ready_cluster_for_long_leases(env, 3).await;
        create_lock(env, "report", "report", "job/report", "20s").await;
        let lock = held(env, "report").await;
        let probe = Probe::start(&masters, &redis_key(env, "report")).await;
        probe.catch_up(&[0, 1, 2]).await;

        let killed = Timestamp::now();
        let operators: Api<Pod> = Api::namespaced(env.client.clone(), install::NAMESPACE);
        for pod in install::operator_pods().await {
            operators.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
        }
        install::wait_until_one_leads().await;

        // The operator that leads writes the status: a renewal after it began to lead is the new process's.
        let leads = Timestamp::now();
        let locks: Api<DistributedLock> = env.api();
        let kept = wait::until(&locks, "report", "renewed by the next operator", |l| {
            let renewed = l.status.as_ref().and_then(|s| s.renew_time.as_ref());
            is_held(l) && renewed.is_some_and(|t| t.0 > leads)
        })
        .await;
        // Longer after the kill than the TTL, so that no key of the first process is left.
        let later = tokio::time::Instant::now()
            + Duration::from_secs(21).saturating_sub(Timestamp::now().duration_since(killed).unsigned_abs());
        tokio::time::sleep_until(later).await;
        probe.catch_up(&[0, 1, 2]).await;
        let record = probe.finish();

        let (was, is) = (lock.status.as_ref().unwrap(), kept.status.as_ref().unwrap());
        assert_eq!((token(&kept), &is.holder), (token(&lock), &was.holder));
        assert_eq!(is.acquire_time, was.acquire_time, "the same grant");
        let seen: Vec<_> = record.majorities().into_iter().map(|(owner, _)| owner.to_string()).collect();
        assert_eq!(seen, [owner(&lock)], "one owner throughout");
        for master in 0..3 {
            let gaps = record.of(master).skip_while(|(_, said)| said.is_none()).filter(|(_, said)| said.is_none());
            assert_eq!(gaps.count(), 0, "master {master} lost the key meanwhile");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_leader_of_two_killed_under_load_no_lock_of_three_seconds_is_lost() {
    scenario_that_disturbs_the_operator("leader-killed", async |env| {
        ready_cluster(env, 3).await;
        install::scale_operator(2).await;
        install::wait_until_ready().await;
        let leader = install::leader().await;
        for n in 0..MANY {
            let name = format!("lock-{n}");
            create_lock(env, &name, &name, "job/report", "3s").await;
        }
        let mut before = Vec::new();
        for n in 0..MANY {
            before.push(held(env, &format!("lock-{n}")).await);
        }
        let other = install::operator_pods().await.into_iter().find(|pod| pod.uid() != leader.uid()).unwrap();
        let begin = tokio::time::Instant::now();
        while held_by(&other).await < MANY {
            assert!(begin.elapsed() < PATIENCE, "the follower does not renew them all");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }

        let killed = tokio::time::Instant::now();
        let operators: Api<Pod> = Api::namespaced(env.client.clone(), install::NAMESPACE);
        operators.delete(&leader.name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
        install::wait_until_one_leads().await;
        let leads = Timestamp::now();
        let locks: Api<DistributedLock> = env.api();
        for lock in &before {
            let name = lock.name_any();
            let kept = wait::until(&locks, &name, "renewed by the next leader", |l| {
                let renewed = l.status.as_ref().and_then(|s| s.renew_time.as_ref());
                renewed.is_some_and(|t| t.0 > leads)
            })
            .await;
            assert!(is_held(&kept), "{name} after {:?}: {:?}", killed.elapsed(), kept.status);
            let (was, is) = (lock.status.as_ref().unwrap(), kept.status.as_ref().unwrap());
            assert_eq!((token(&kept), is.transitions), (token(lock), was.transitions), "{name}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_whose_finalizer_was_taken_off_while_no_operator_ran_is_neither_renewed_nor_shown() {
    scenario_that_disturbs_the_operator("finalizer-stripped", async |env| {
        let masters = ready_cluster_for_long_leases(env, 3).await;
        create_lock(env, "report", "report", "job/report", "30s").await;
        let lock = held(env, "report").await;
        install::scale_operator(0).await;
        let patch = r#"{"metadata":{"finalizers":null}}"#;
        kubectl(&["-n", &env.namespace, "patch", "dlock", "report", "--type=merge", "-p", patch]).await.unwrap();
        kubectl(&["-n", &env.namespace, "delete", "dlock", "report"]).await.unwrap();
        let key = redis_key(env, "report");
        let left = masters.read(&key).await.into_iter().map(|said| said.unwrap()).collect::<Vec<_>>();
        assert!(left.iter().flatten().all(|said| said.owner == owner(&lock)), "{left:?}");

        install::scale_operator(1).await;
        install::wait_until_ready().await;
        install::wait_until_one_leads().await;
        let begin = tokio::time::Instant::now();
        while masters.read(&key).await.iter().any(|said| *said != Ok(None)) {
            assert!(begin.elapsed() < Duration::from_secs(31), "the key is renewed, though no lock wants it");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let leader = install::leader().await;
        assert_eq!(held_by(&leader).await, 0);
    })
    .await;
}
