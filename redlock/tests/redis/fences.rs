//! The masters' record of tokens: kept for a while after the last use of a lock, then trimmed by whoever runs the engine.

use std::collections::HashMap;
use std::time::Duration;

use redlock_engine::{Client, LeaseOptions, LockKey, Renewal, Wait};
use redlock_test_servers::server::{CAP, PATIENCE, Server, client, eventually, key};

const TTL: Duration = Duration::from_secs(30);
/// How long an entry is kept at least after the last use of its lock.
const RETENTION: Duration = Duration::from_secs(600);

fn command(words: &[&str]) -> redis::Cmd {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command
}

/// Until when each entry of the fences is kept; in milliseconds on the master's clock.
async fn kept(server: &Server) -> HashMap<String, f64> {
    server.send(&command(&["ZRANGE", key("a").kept_key(), "0", "-1", "WITHSCORES"])).await
}

async fn fences(server: &Server) -> Vec<String> {
    server.run(&format!("ZRANGE {} 0 -1", key("a").fences_key())).await
}

/// What passes of the retention for all entries at once: as if nobody had used any of these locks since.
async fn let_retention_pass(server: &Server) {
    for (name, _) in kept(server).await {
        let _: i64 = server.send(&command(&["ZADD", key("a").kept_key(), "XX", "1", &name])).await;
    }
}

async fn take_and_release(client: &Client, key: &LockKey) {
    let lease = client.acquire(key, &LeaseOptions::new("a", TTL), Wait::For(PATIENCE)).await.expect("granted");
    lease.release().await;
}

/// The master's clock, in whole milliseconds as scripts count.
async fn now(server: &Server) -> f64 {
    let (seconds, micros): (f64, f64) = server.run("TIME").await;
    (seconds * 1000.0 + micros / 1000.0).floor()
}

#[tokio::test]
async fn the_tokens_of_locks_that_nobody_uses_any_more_are_trimmed_and_no_others() {
    let servers = Server::start_armed(1).await;
    let client = client(&servers);
    let unrenewed = LeaseOptions::new("a", TTL).renewal(Renewal::None);
    let held = client.try_acquire(&key("held"), &unrenewed).await.expect("granted");
    for number in 0..250 {
        take_and_release(&client, &key(&format!("n{number}"))).await;
    }
    assert_eq!(fences(&servers[0]).await.len(), 251, "within the retention all are kept");
    let_retention_pass(&servers[0]).await;
    // Of a broken clock, an hour ahead, and of a process that was killed: never released.
    let ahead = (now(&servers[0]).await + 3_600_000.0) * 1000.0;
    let lost = key("lost");
    let _: i64 = servers[0].run(&format!("ZADD {} {ahead:.0} {}", lost.fences_key(), lost.redis_key())).await;
    // A hundred go with each release.
    for _ in 0..3 {
        take_and_release(&client, &key("b")).await;
    }
    let mut left = fences(&servers[0]).await;
    left.sort();
    let expected = [key("b"), key("held"), key("lost")].map(|key| key.redis_key().to_owned());
    assert_eq!(left, expected);
    let_retention_pass(&servers[0]).await;
    take_and_release(&client, &key("b")).await;
    let mut left = fences(&servers[0]).await;
    left.sort();
    assert_eq!(left, &expected[..2], "also the token of a clock that was ahead");
    held.release().await;
}

#[tokio::test]
async fn a_token_is_kept_for_ten_minutes_and_for_twice_the_longest_lease() {
    let servers = Server::start_armed(1).await;
    let (client, key) = (client(&servers), key("a"));
    let keeps = async |from: f64, retention: Duration| {
        let until = kept(&servers[0]).await[key.redis_key()];
        let millis = retention.as_secs_f64() * 1000.0;
        assert!(until >= from + millis && until <= now(&servers[0]).await + millis, "{from} {until}");
    };
    let begun = now(&servers[0]).await;
    take_and_release(&client, &key).await;
    keeps(begun, RETENTION).await;

    // Of a cluster with longer leases, also where this one is short.
    let marker: String = servers[0].run("GET redlock:armed").await;
    let run_id = marker.split_once(' ').expect("a marker").0;
    assert_eq!(marker, format!("{run_id} {}", CAP.as_millis()));
    let hour = Duration::from_secs(3600);
    let () = servers[0].send(&command(&["SET", "redlock:armed", &format!("{run_id} {}", hour.as_millis())])).await;
    let begun = now(&servers[0]).await;
    take_and_release(&client, &key).await;
    keeps(begun, 2 * hour).await;
}

#[tokio::test]
async fn a_renewal_keeps_the_token_and_restores_it_where_it_is_lost() {
    let servers = Server::start_armed(1).await;
    let (client, key) = (client(&servers), key("a"));
    let options = LeaseOptions::new("a", TTL).renewal(Renewal::Every(Duration::from_millis(20)));
    let lease = client.try_acquire(&key, &options).await.expect("granted");
    let begun = now(&servers[0]).await;
    for set in [key.fences_key(), key.kept_key()] {
        let _: i64 = servers[0].send(&command(&["DEL", set])).await;
    }
    let until = eventually("a renewal", async || kept(&servers[0]).await.get(key.redis_key()).copied()).await;
    assert!(until >= begun + RETENTION.as_secs_f64() * 1000.0);
    let fence: u64 = servers[0].run(&format!("ZSCORE {} {}", key.fences_key(), key.redis_key())).await;
    assert_eq!(fence, lease.owner().token().get());
    lease.release().await;
}

#[tokio::test]
async fn a_server_without_memory_renews_and_releases_all_the_same() {
    let servers = Server::start_armed(1).await;
    let (client, key) = (client(&servers), key("a"));
    let options = LeaseOptions::new("a", TTL).renewal(Renewal::Every(Duration::from_millis(20)));
    let lease = client.try_acquire(&key, &options).await.expect("granted");
    let () = servers[0].run("CONFIG SET maxmemory 1").await;
    let renewals = |lease: &redlock_engine::Lease| match &*lease.state().borrow() {
        redlock_engine::LeaseState::Held(grant) => grant.renewals,
        ended => panic!("{ended:?}"),
    };
    let before = renewals(&lease);
    eventually("it is renewed", async || (renewals(&lease) > before + 2).then_some(())).await;
    lease.release().await;
    eventually("it is released", async || servers[0].get(&key).await.is_none().then_some(())).await;
}
