//! Locks that their holder acquires again.

use std::time::Duration;

use redlock_engine::{Error, LeaseOptions, LeaseState, Loss, Reason, Reentrant, Released, Renewal, Wait};
use redlock_test_servers::server::{PATIENCE, Server, client, delete_until_lost, held_everywhere, key};
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(30);

#[tokio::test]
async fn the_last_of_several_holds_releases_the_lock() {
    let servers = Server::start_armed(3).await;
    let (locks, other, key) = (Reentrant::new(client(&servers)), client(&servers), key("a"));
    let options = LeaseOptions::new("job", TTL);
    let first = locks.acquire(&key, &options, Wait::Forever).await.expect("granted");
    let second = locks.clone().acquire(&key, &options, Wait::Forever).await.expect("the same holder");
    let third = locks.acquire(&key, &options, Wait::Forever).await.expect("the same holder");
    assert_eq!(first.owner(), second.owner(), "one grant, one token");
    assert_eq!(first.release().await, None);
    drop(third);
    let error = other.try_acquire(&key, &LeaseOptions::new("other", TTL)).await.expect_err("held by the second");
    assert_eq!(error.reason(), Reason::Contended);
    assert_eq!(second.release().await, Some(Released::Freed));
    drop(other.try_acquire(&key, &LeaseOptions::new("other", TTL)).await.expect("free"));
}

#[tokio::test]
async fn another_identity_waits_and_so_does_a_hold_of_a_lost_lease() {
    let servers = Server::start_armed(3).await;
    let (locks, key) = (Reentrant::new(client(&servers)), key("a"));
    let options = LeaseOptions::new("job", TTL).renewal(Renewal::Every(Duration::from_millis(20)));
    let first = locks.acquire(&key, &options, Wait::Forever).await.expect("granted");
    let short = Wait::For(Duration::from_millis(100));
    let error = locks.acquire(&key, &LeaseOptions::new("other", TTL), short).await.expect_err("another holds it");
    assert_eq!(error.to_string(), format!("held by {}", first.owner()));

    delete_until_lost(&servers, &first).await;
    assert_eq!(timeout(PATIENCE, first.ended()).await.expect("told"), LeaseState::Lost(Loss::Taken));
    let second = locks.acquire(&key, &options, Wait::Forever).await.expect("granted anew");
    assert!(second.owner().token() > first.owner().token());
    held_everywhere(&servers, &key, second.owner()).await;
    // The first is a hold of another grant: its release leaves the second's key.
    assert_eq!(first.release().await, Some(Released::AlreadyExpired));
    assert!(second.is_held());
    held_everywhere(&servers, &key, second.owner()).await;
}

#[tokio::test]
async fn a_further_hold_is_refused_where_too_little_of_the_lease_is_left() {
    let servers = Server::start_armed(3).await;
    let (locks, key) = (Reentrant::new(client(&servers)), key("a"));
    let options = LeaseOptions::new("job", TTL).renewal(Renewal::None);
    let _first = locks.acquire(&key, &options, Wait::Forever).await.expect("granted");
    let more = options.min_validity(TTL);
    let error = locks.acquire(&key, &more, Wait::Forever).await.expect_err("part of it is over");
    assert!(matches!(error, Error::TooSlow { needed: TTL, .. }), "{error}");
}
