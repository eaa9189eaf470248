//! Servers whose wall clock, by which keys expire, jumps or stands still.

use std::time::Duration;

use redlock_engine::{LeaseOptions, LeaseState, Loss, Owner, Reason, Renewal, Wait};
use redlock_test_servers::faketime::Clock;
use redlock_test_servers::server::{PATIENCE, Server, connected, eventually, gone_everywhere, held_everywhere, key};
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(30);
const HOUR: i64 = 3600;

/// Armed servers, each with a clock of its own.
async fn start_armed(count: usize) -> (Vec<Server>, Vec<Clock>) {
    let clocks: Vec<_> = (0..count).map(|_| Clock::right()).collect();
    let start = |clock: &Clock| {
        let environment = clock.environment();
        async move { Server::start_in(&environment, &[]).await }
    };
    let servers = futures::future::join_all(clocks.iter().map(start)).await;
    for server in &servers {
        server.arm().await;
    }
    (servers, clocks)
}

/// Microseconds since 1970 on a server's clock.
async fn time(server: &Server) -> i64 {
    let (seconds, micros): (i64, i64) = server.run("TIME").await;
    seconds * 1_000_000 + micros
}

async fn server_shows(server: &Server, owner: &Owner) -> bool {
    server.get(&key("a")).await == Some(owner.to_string())
}

fn renewed_each(period: Duration) -> LeaseOptions {
    LeaseOptions::new("one", TTL).renewal(Renewal::Every(period))
}

#[tokio::test]
async fn a_minority_whose_clocks_jump_forward_is_seeded_again_and_lets_nobody_else_in() {
    let (servers, clocks) = start_armed(5).await;
    let (one, other, key) = (connected(&servers).await, connected(&servers).await, key("a"));
    let lease = one.try_acquire(&key, &renewed_each(Duration::from_millis(300))).await.expect("granted");
    // A clock that jumps before the other three masters have the key would let another win.
    held_everywhere(&servers, &key, lease.owner()).await;
    for (server, clock) in servers.iter().zip(&clocks).take(2) {
        let before = time(server).await;
        clock.jump(HOUR);
        assert!(time(server).await - before >= HOUR * 1_000_000, "the server uses the clock of the test");
    }
    // The keys of the two have expired at once. The marker has not: it never expires.
    let error = other.try_acquire(&key, &LeaseOptions::new("other", TTL)).await.expect_err("held by three");
    assert_eq!(error.reason(), Reason::Contended, "{error}");
    for server in &servers[..2] {
        let owner = eventually("seeded", async || server.get(&key).await.filter(|o| o.starts_with("one@"))).await;
        assert_eq!(owner, lease.owner().to_string());
        let left = server.pttl(&key).await;
        assert!((1..=30_000).contains(&left), "{left}");
    }
    assert!(lease.is_held());
}

#[tokio::test]
async fn a_holder_learns_at_the_next_renewal_that_a_majority_of_clocks_jumped_and_the_next_token_is_larger() {
    let (servers, clocks) = start_armed(5).await;
    let (one, other, key) = (connected(&servers).await, connected(&servers).await, key("a"));
    let lease = one.try_acquire(&key, &renewed_each(Duration::from_secs(2))).await.expect("granted");
    held_everywhere(&servers, &key, lease.owner()).await;
    for clock in &clocks[..3] {
        clock.jump(HOUR);
    }
    // Another contender may win up to one period early: the tokens tell the two apart.
    let early = other.try_acquire(&key, &LeaseOptions::new("other", TTL)).await.expect("granted");
    assert!(early.owner().token() > lease.owner().token());
    // Long before its validity of 30 s is over.
    let end = timeout(PATIENCE, lease.ended()).await.expect("told");
    assert_eq!(end, LeaseState::Lost(Loss::Taken));
    assert!(early.is_held() && !lease.is_held());
}

#[tokio::test]
async fn clocks_that_jump_back_make_no_second_holder_and_keep_nobody_out_after_a_release() {
    let (servers, clocks) = start_armed(3).await;
    let (one, other, key) = (connected(&servers).await, connected(&servers).await, key("a"));
    let lease = one.try_acquire(&key, &renewed_each(Duration::from_millis(200))).await.expect("granted");
    let first = lease.owner().token();
    for clock in &clocks {
        clock.jump(-HOUR);
    }
    let mut state = lease.state();
    let renewals = lease.state().borrow().valid_at(tokio::time::Instant::now()).map_or(0, |g| g.renewals);
    let renewed = state.wait_for(|s| !matches!(s, LeaseState::Held(grant) if grant.renewals < renewals + 3));
    assert!(matches!(*timeout(PATIENCE, renewed).await.expect("renewed").expect("a watchdog"), LeaseState::Held(_)));
    for server in &servers {
        // A renewal sets the expiry by the present clock, also where its answer was not needed.
        eventually("an expiry by the present clock", async || (server.pttl(&key).await <= 30_000).then_some(())).await;
    }
    lease.release().await;
    let lease = other.acquire(&key, &LeaseOptions::new("other", TTL), Wait::For(PATIENCE)).await.expect("granted");
    assert!(lease.owner().token() > first);
}

#[tokio::test]
async fn a_clock_that_stands_still_neither_prolongs_a_lease_nor_keeps_the_next_holder_out() {
    let (servers, clocks) = start_armed(3).await;
    let (one, other, key) = (connected(&servers).await, connected(&servers).await, key("a"));
    clocks[0].stop();
    let stopped = time(&servers[0]).await;
    let short = LeaseOptions::new("one", Duration::from_secs(1)).renewal(Renewal::None);
    let lease = one.try_acquire(&key, &short).await.expect("granted");
    eventually("the key", async || servers[0].get(&key).await).await;
    assert!(matches!(timeout(PATIENCE, lease.ended()).await.expect("told"), LeaseState::Lost(Loss::Expired { .. })));
    drop(lease);
    gone_everywhere(&servers, &key).await;
    // Nobody deletes the keys of a holder that died. Where the clock stands still, its key never expires.
    let dead = one.try_acquire(&key, &short).await.expect("granted");
    let owner = dead.owner().clone();
    let stays = async || (server_shows(&servers[0], &owner).await).then_some(());
    eventually("the key", stays).await;
    dead.abandon();
    let granted = other.acquire(&key, &LeaseOptions::new("other", TTL), Wait::For(PATIENCE)).await.expect("granted");
    assert!(granted.is_held() && granted.owner().token() > owner.token());
    assert!(server_shows(&servers[0], &owner).await);
    assert_eq!(time(&servers[0]).await, stopped, "the clock stood still all the time");
}
