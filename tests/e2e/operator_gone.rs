//! The operator is killed: the next one renews the leases that it held.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use redlock_operator::api::DistributedLock;

use crate::harness::objects::{create_lock, held, is_held, owner, ready_cluster_for_long_leases, redis_key, token};
use crate::harness::probe::Probe;
use crate::harness::{install, scenario_that_disturbs_the_operator, wait};

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
