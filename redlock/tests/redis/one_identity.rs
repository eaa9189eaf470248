//! Two processes of one identity: what one of them undoes is never the other's.

use std::sync::Arc;
use std::time::Duration;

use redlock_engine::{Client, LeaseOptions, LockKey, Marker, Reason, RedisMaster};
use redlock_test_servers::environment::WallClock;
use redlock_test_servers::proxy::{Flow, Proxy};
use redlock_test_servers::server::{CALL_TIMEOUT, Server, eventually, key, until_connected};

const TTL: Duration = Duration::from_secs(30);

/// A machine whose clock stands still: another process there draws the same token.
const STOPPED_CLOCK: WallClock = WallClock(|| 1_796_032_462_123_456);

#[tokio::test]
async fn the_undo_of_a_lost_vote_leaves_the_grant_of_the_same_identity_and_token() {
    let servers = Server::start_armed(3).await;
    let slow = Proxy::to(servers[2].port).await;
    let process = |endpoints: Vec<_>| {
        Client::with_environment(endpoints.into_iter().map(RedisMaster::connect), CALL_TIMEOUT, Arc::new(STOPPED_CLOCK))
            .expect("valid settings")
    };
    let endpoint = |index: usize| servers[index].endpoint(Marker::Required);
    let winner = process(vec![endpoint(0), endpoint(1), endpoint(2)]);
    let loser = process(vec![endpoint(0), endpoint(1), slow.endpoint(&servers[2])]);
    until_connected(&winner).await;
    until_connected(&loser).await;
    // So that the server knows the script by which the loser undoes its vote.
    let elsewhere = LockKey::new("elsewhere", "a").expect("a valid name");
    let other = winner.try_acquire(&elsewhere, &LeaseOptions::new("other", TTL)).await.expect("granted");
    other.release().await;
    eventually("the script has run", async || (servers[2].calls("del").await == 1).then_some(())).await;

    let (key, options) = (key("a"), LeaseOptions::new("twin", TTL));
    let lease = winner.try_acquire(&key, &options).await.expect("granted");
    let value = lease.owner().to_string();
    eventually("it is on the last master", async || {
        (servers[2].get(&key).await.as_ref() == Some(&value)).then_some(())
    })
    .await;
    let before = servers[2].calls("evalsha").await;
    slow.answers(Flow::Hold);
    let error = loser.try_acquire(&key, &options).await.expect_err("held by its twin");
    assert_eq!(error.reason(), Reason::Contended);
    eventually("the vote is undone", async || (servers[2].calls("evalsha").await > before).then_some(())).await;
    assert_eq!(servers[2].get(&key).await, Some(value), "the grant is still there");
    slow.answers(Flow::Pass);
    lease.release().await;
}
