//! A lock is held soon after it is created, renewed, and its status is true.

use std::time::Duration;

use kube::Api;
use kube::api::{Patch, PatchParams};
use redlock_operator::api::DistributedLock;
use serde_json::json;

use crate::harness::objects::{self, condition, create_lock, held, owner, ready_cluster, redis_key, token};
use crate::harness::probe::Probe;
use crate::harness::{scenario, wait};

/// Time to live of this module's leases.
const TTL: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_held_within_seconds_and_its_status_agrees_with_the_masters() {
    scenario("held", async |env| {
        let masters = ready_cluster(env, 5).await;
        let asked = tokio::time::Instant::now();
        create_lock(env, "report", "report", "job/report", "4s").await;
        held(env, "report").await;
        let took = asked.elapsed();
        assert!(took < Duration::from_secs(15), "held only after {took:?}");

        // Other scenarios may have used up the writes for times: then they come with the next.
        let locks: Api<DistributedLock> = env.api();
        let lock = wait::until(&locks, "report", "shown with times", |lock| {
            objects::is_held(lock) && lock.status.as_ref().is_some_and(|status| status.renew_time.is_some())
        })
        .await;
        let status = lock.status.as_ref().unwrap();
        assert_eq!(status.holder.as_deref(), Some("job/report"));
        let (acquired, renewed) = (status.acquire_time.as_ref().unwrap().0, status.renew_time.as_ref().unwrap().0);
        assert!(acquired <= renewed, "{acquired} {renewed}");
        // The token is the time at which it was proposed, in microseconds.
        let proposed = jiff::Timestamp::from_microsecond(token(&lock)).unwrap();
        assert!(proposed.duration_since(acquired).abs() < jiff::SignedDuration::from_secs(2), "{proposed} {acquired}");
        let validity: jiff::SignedDuration = status.validity.as_ref().unwrap().parse().unwrap();
        let validity = Duration::try_from(validity).unwrap();
        // Shown in tenths of a second; exactly it is the TTL less 1 % + 2 ms.
        let until = status.valid_until.as_ref().unwrap().0;
        let exact = Duration::try_from(until.duration_since(renewed)).unwrap();
        let drift = TTL / 100 + Duration::from_millis(2);
        assert!(
            exact.abs_diff(TTL - drift) < Duration::from_millis(1),
            "{exact:?} is TTL less drift, from the sending"
        );
        assert!(validity.abs_diff(exact) <= Duration::from_millis(51), "{validity:?} {exact:?}");
        for good in ["Held", "ClusterAvailable", "ConfigValid"] {
            assert_eq!(condition(&lock, good).map(|c| c.status).as_deref(), Some("True"), "{good}");
        }

        let all = wait::until(&locks, "report", "on all masters", |lock| {
            lock.status.as_ref().is_some_and(|s| s.votes.as_deref() == Some("5/5"))
        });
        assert_eq!(token(&all.await), token(&lock));
        for said in masters.read(&redis_key(env, "report")).await {
            let owned = said.unwrap().expect("each of 5/5 has the key");
            assert_eq!(owned.owner, owner(&lock));
            assert!(owned.left <= TTL, "{owned:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_holder_gets_the_lock_with_a_larger_token_after_the_former_one_has_released_it() {
    scenario("holder-changed", async |env| {
        let masters = ready_cluster(env, 3).await;
        create_lock(env, "report", "report", "job/day", "4s").await;
        let before = held(env, "report").await;
        let probe = Probe::start(&masters, &redis_key(env, "report")).await;
        probe.until_on_all(&owner(&before)).await;

        let locks: Api<DistributedLock> = env.api();
        let change = Patch::Merge(json!({"spec": {"holder": "job/night"}}));
        locks.patch("report", &PatchParams::default(), &change).await.unwrap();
        let after = wait::until(&locks, "report", "held by the next", |lock| {
            objects::is_held(lock) && lock.status.as_ref().unwrap().holder.as_deref() == Some("job/night")
        })
        .await;
        assert!(token(&after) > token(&before), "{} {}", token(&after), token(&before));
        assert_eq!(after.status.as_ref().unwrap().transitions, Some(2));
        probe.until_on_all(&owner(&after)).await;
        let record = probe.finish();
        record.assert_tokens_only_grow();
        let seen: Vec<_> = record.majorities().into_iter().map(|(owner, _)| owner.to_string()).collect();
        assert_eq!(seen, [owner(&before), owner(&after)]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_watchdog_resets_the_ttl_on_every_master_for_longer_than_three_ttls() {
    scenario("renewed", async |env| {
        let masters = ready_cluster(env, 3).await;
        create_lock(env, "long", "long", "job/long", "4s").await;
        let lock = held(env, "long").await;
        let locks: Api<DistributedLock> = env.api();
        wait::until(&locks, "long", "on all masters", |l| {
            l.status.as_ref().is_some_and(|s| s.votes.as_deref() == Some("3/3"))
        })
        .await;

        let probe = Probe::start(&masters, &redis_key(env, "long")).await;
        let begin = tokio::time::Instant::now();
        let acquired = lock.status.as_ref().unwrap().acquire_time.clone().unwrap();
        let three_ttls_later = acquired.0 + TTL * 3;
        let renewed = wait::until(&locks, "long", "renewed after 3 x TTL", |l| {
            l.status.as_ref().and_then(|s| s.renew_time.as_ref()).is_some_and(|t| t.0 > three_ttls_later)
        })
        .await;
        // The masters' own answers count, not only the status.
        tokio::time::sleep_until(begin + TTL * 3).await;
        probe.catch_up(&[0, 1, 2]).await;
        let record = probe.finish();

        assert!(objects::is_held(&renewed));
        assert_eq!((token(&renewed), &renewed.status.as_ref().unwrap().acquire_time), (token(&lock), &Some(acquired)));
        record.assert_always_owned(&[0, 1, 2], &owner(&lock));
        for master in 0..3 {
            let left: Vec<_> = record.of(master).filter_map(|(_, said)| said.map(|o| o.left)).collect();
            let resets = left.windows(2).filter(|pair| pair[1] > pair[0]).count();
            assert!(resets >= 3, "the TTL on master {master} was reset {resets} times in 3 x TTL: {left:?}");
            assert!(left.iter().all(|l| *l <= TTL), "never above the TTL: {left:?}");
        }
    })
    .await;
}
