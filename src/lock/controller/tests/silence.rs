//! How long a follower renews while the API server says nothing.

use futures::{FutureExt as _, StreamExt as _};
use tokio::time::advance;

use super::*;

const WATCH: &str = "/apis/redlock.dev/v1alpha1/distributedlocks";

#[tokio::test(start_paused = true)]
async fn a_follower_that_is_told_nothing_renews_for_a_while_and_not_longer() {
    let bench = Bench::new(Terms::new().1, Some(with_masters(1)), vec![(format!("GET {AUTH}"), auth())]);
    let (ctx, keeper) = (&bench.reconciler.ctx, &bench.reconciler.keeper);
    let mut lock = fixtures::lock();
    lock.status = Some(fixtures::held_status(17));
    ctx.pulses.hear(WATCH);
    bench.reconcile(&lock).await.unwrap();
    assert!(keeper.state(fixtures::UID).is_some(), "it follows");

    let (silence, heard_again) = Silence::new();
    let mut heard_again = Box::pin(heard_again);
    let mut watching = Box::pin(silence.run(&bench.reconciler));
    let limit = ctx.renew_without_api_server;
    advance(limit).await;
    assert!(futures::poll!(&mut watching).is_pending());
    assert!(keeper.state(fixtures::UID).is_some(), "for as long as it may");
    advance(Duration::from_secs(1)).await;
    // The actor ends meanwhile.
    while keeper.state(fixtures::UID).is_some() {
        assert!(futures::poll!(&mut watching).is_pending());
        tokio::task::yield_now().await;
    }
    bench.reconcile(&lock).await.unwrap();
    assert_eq!(keeper.state(fixtures::UID), None, "nor does another reconcile begin it anew");
    assert!(heard_again.next().now_or_never().is_none());

    ctx.pulses.hear(WATCH);
    while heard_again.next().now_or_never().is_none() {
        advance(Duration::from_secs(1)).await;
        assert!(futures::poll!(&mut watching).is_pending());
        tokio::task::yield_now().await;
    }
    bench.reconcile(&lock).await.unwrap();
    assert!(keeper.state(fixtures::UID).is_some(), "it follows again");
    assert_eq!(bench.writes(), [""; 0]);
}

#[tokio::test]
async fn a_grant_that_was_written_and_that_the_watch_does_not_show_yet_is_followed() {
    let bench = Bench::new(Terms::new().1, Some(with_masters(1)), vec![(format!("GET {AUTH}"), auth())]);
    let lock = fixtures::lock();
    bench.reconcile(&lock).await.unwrap();
    assert_eq!(bench.reconciler.keeper.state(fixtures::UID), None, "nothing is recorded");
    // In its term, just before it lost the API server.
    let (subject, status) = (Subject::of(&fixtures::watched(lock.clone())), fixtures::held_status(17));
    let version = |version: &str| Some(version.to_owned());
    bench.reconciler.schedule.record_write(&subject, version("100"), version("102"), status, None);
    bench.reconcile(&lock).await.unwrap();
    assert!(bench.reconciler.keeper.state(fixtures::UID).is_some(), "it follows");
}

#[tokio::test(start_paused = true)]
async fn a_leader_renews_though_the_watch_of_locks_says_nothing() {
    let bench = Bench::leading(Some(with_masters(1)), vec![(format!("GET {AUTH}"), auth())]);
    bench.reconciler.ctx.pulses.hear(WATCH);
    advance(2 * bench.reconciler.ctx.renew_without_api_server).await;
    assert!(!crate::lock::silence::is_too_long(&bench.reconciler.ctx));
}
