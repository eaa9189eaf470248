//! What a contender is told whose attempt was refused.

use std::time::Duration;

use redlock_engine::{Error, LeaseOptions, Reason, Wait};
use redlock_test_servers::server::{PATIENCE, Server, client, connected, key};

const TTL: Duration = Duration::from_secs(30);

#[tokio::test]
async fn one_that_tries_is_told_who_holds_the_lock() {
    let servers = Server::start_armed(3).await;
    let (one, other, key) = (client(&servers), connected(&servers).await, key("a"));
    let lease = one.acquire(&key, &LeaseOptions::new("one", TTL), Wait::For(PATIENCE)).await.expect("granted");
    let error = other.try_acquire(&key, &LeaseOptions::new("other", TTL)).await.expect_err("held");
    assert_eq!(error.to_string(), format!("held by {}", lease.owner()));
    assert!(matches!(error, Error::Contended { remaining: Some(left), .. } if left <= TTL), "{error:?}");
}

#[tokio::test]
async fn one_that_tries_where_nobody_has_a_majority_is_told_that_nobody_holds_the_lock() {
    let servers = Server::start_armed(3).await;
    let (client, key) = (connected(&servers).await, key("a"));
    // Two contenders have a vote each that they will not release.
    for (server, owner) in servers.iter().zip(["one@1", "two@2"]) {
        let _: String = server.run(&format!("SET {} {owner} PX 30000", key.redis_key())).await;
    }
    let error = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect_err("split");
    assert_eq!((&error, error.reason()), (&Error::Split, Reason::Contended));
}
