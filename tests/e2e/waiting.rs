//! Contenders for one lock: one holds it, the others wait, and get it as soon as it is released.

use kube::Api;
use kube::api::DeleteParams;
use redlock_operator::api::DistributedLock;
use redlock_operator::api::lock::LockPhase;

use crate::harness::objects::{
    condition, create_lock, held, is_held, owner, phase, ready_cluster_for_long_leases, redis_key, token,
};
use crate::harness::probe::Probe;
use crate::harness::{scenario, wait};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_releases_at_once_on_all_masters_and_the_waiter_gets_the_lock() {
    scenario("handover", async |env| {
        // The TTL is far longer than a release takes: a key that is gone early was deleted and did not expire.
        let masters = ready_cluster_for_long_leases(env, 5).await;
        let locks: Api<DistributedLock> = env.api();
        create_lock(env, "first", "report", "job/first", "60s").await;
        held(env, "first").await;
        create_lock(env, "second", "report", "job/second", "60s").await;
        let waits = |l: &DistributedLock| {
            let names_holder = l.status.as_ref().is_some_and(|s| s.holder.as_deref() == Some("job/first"));
            phase(l) == Some(LockPhase::Waiting) && names_holder
        };
        let second = wait::until(&locks, "second", "waiting for the first", waits).await;
        let why = condition(&second, "Held").expect("a condition Held");
        assert_eq!((why.status.as_str(), why.reason.as_str()), ("False", "Contended"), "{}", why.message);
        assert!(why.message.contains("job/first"), "the message names the holder: {}", why.message);

        let probe = Probe::start(&masters, &redis_key(env, "report")).await;
        let first = wait::until(&locks, "first", "on all masters", |l| {
            l.status.as_ref().is_some_and(|s| s.votes.as_deref() == Some("5/5"))
        })
        .await;
        probe.catch_up(&[0, 1, 2, 3, 4]).await;

        let deleted = tokio::time::Instant::now();
        locks.delete("first", &DeleteParams::default()).await.unwrap();
        wait::gone(&locks, "first").await;
        let second = wait::until(&locks, "second", "held", is_held).await;
        let took = deleted.elapsed();
        probe.catch_up(&[0, 1, 2, 3, 4]).await;
        let record = probe.finish();

        assert!(took.as_secs() < 20, "the second holds it only {took:?} after the first was deleted");
        for master in 0..5 {
            record.assert_deleted(master, &owner(&first));
        }
        record.assert_tokens_only_grow();
        assert!(token(&second) > token(&first), "a later grant has a larger token");
        assert_eq!(second.status.as_ref().unwrap().holder.as_deref(), Some("job/second"));
        assert_eq!(record.majorities().last().unwrap().0.to_string(), owner(&second));
    })
    .await;
}
