//! Fencing tokens when something is wrong with what the masters have of them: broken values, data that is lost.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redlock_engine::{Client, Environment, LeaseOptions, LeaseState, Marker, RedisMaster, Renewal, System, Wait};
use redlock_test_servers::environment::WallClock;
use redlock_test_servers::server::{CALL_TIMEOUT, PATIENCE, Server, client, eventually, key};
use tokio::time::{Instant, timeout};

const TTL: Duration = Duration::from_secs(30);

#[tokio::test]
async fn tokens_that_have_run_out_end_a_wait_at_once() {
    let servers = Server::start_armed(3).await;
    let (client, key) = (client(&servers), key("a"));
    for server in &servers {
        let _: i64 = server.run(&format!("ZADD {} 1e16 {}", key.fences_key(), key.redis_key())).await;
    }
    let options = LeaseOptions::new("a", TTL);
    let error = timeout(PATIENCE, client.acquire(&key, &options, Wait::Forever))
        .await
        .expect("an end")
        .expect_err("no token is left");
    assert_eq!(error.to_string(), "fencing tokens have run out");
    // The other locks of the namespace are none the worse.
    let other = redlock_test_servers::server::key("b");
    client.try_acquire(&other, &LeaseOptions::new("a", TTL)).await.expect("granted").release().await;
}

#[tokio::test]
async fn a_broken_token_on_a_minority_of_masters_stops_nobody() {
    let servers = Server::start_armed(3).await;
    let (client, key) = (client(&servers), key("a"));
    let _: i64 = servers[0].run(&format!("ZADD {} inf {}", key.fences_key(), key.redis_key())).await;
    let lease = client.try_acquire(&key, &LeaseOptions::new("a", TTL)).await.expect("granted by the others");
    client.read(&key).await.expect("a majority answers");
    lease.release().await;
    client.try_acquire(&key, &LeaseOptions::new("a", TTL)).await.expect("granted again").release().await;
}

/// An hour ahead.
const AHEAD: WallClock = WallClock(|| System.unix_micros() + 3_600_000_000);

#[tokio::test]
async fn a_rolling_restart_under_a_holder_whose_clock_was_ahead_lets_no_token_fall() {
    let mut servers = Server::start_armed(3).await;
    let key = key("a");
    let masters = servers.iter().map(|s| RedisMaster::connect(s.endpoint(Marker::Required)));
    let ahead = Client::with_environment(masters, CALL_TIMEOUT, Arc::new(AHEAD)).expect("valid settings");
    let options = LeaseOptions::new("a", TTL).renewal(Renewal::Every(Duration::from_millis(50)));
    let lease = ahead.try_acquire(&key, &options).await.expect("granted");
    let value = lease.owner().to_string();
    for index in 0..servers.len() {
        let server = &mut servers[index];
        server.crash().await;
        server.restart().await;
        server.arm().await;
        for server in &servers {
            eventually("the lock is on all", async || (server.get(&key).await.as_ref() == Some(&value)).then_some(()))
                .await;
        }
    }
    let token = lease.owner().token();
    lease.release().await;
    let next =
        client(&servers).acquire(&key, &LeaseOptions::new("b", TTL), Wait::For(PATIENCE)).await.expect("granted");
    assert!(next.owner().token() > token, "{} after {token}", next.owner().token());
}

/// When the first token was drawn.
static DRAWN: OnceLock<Instant> = OnceLock::new();
/// Sleeps as it is read.
const SLEEPY: WallClock = WallClock(|| {
    let _ = DRAWN.set(Instant::now());
    std::thread::sleep(Duration::from_millis(2));
    System.unix_micros()
});

#[tokio::test]
async fn a_process_that_sleeps_as_it_draws_a_token_has_no_fresh_validity_with_the_old_token() {
    let servers = Server::start_armed(3).await;
    let masters = servers.iter().map(|s| RedisMaster::connect(s.endpoint(Marker::Required)));
    let client = Client::with_environment(masters, CALL_TIMEOUT, Arc::new(SLEEPY)).expect("valid settings");
    let options = LeaseOptions::new("a", TTL).renewal(Renewal::None);
    let lease = client.try_acquire(&key("a"), &options).await.expect("granted");
    let drawn = *DRAWN.get().expect("a token was drawn");
    let LeaseState::Held(grant) = lease.state().borrow().clone() else { panic!("not held") };
    assert!(grant.acquired_at <= drawn, "validity counts from {:?} after the token", grant.acquired_at - drawn);
}
