//! Acquire and release by vote.

use std::time::Duration;

use redlock_engine::{
    Client, Error, LeaseOptions, LeaseState, LockKey, Marker, Owner, Reason, RedisMaster, Released, Renewal,
};
use redlock_test_servers::server::{
    CALL_TIMEOUT, CAP, Server, client, eventually, gone_everywhere, held_everywhere, key,
};

const TTL: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_granted_lock_is_on_every_master_with_its_token() {
    let servers = Server::start_armed(5).await;
    let (client, key) = (client(&servers), key("a"));
    let lease = client.try_acquire(&key, &LeaseOptions::new("job/a", TTL)).await.expect("granted");
    let owner = lease.owner().to_string();
    let (name, nonce) = owner.rsplit_once('.').expect("a nonce");
    assert_eq!((name, nonce.len()), (format!("job/a@{}", lease.owner().token()).as_str(), 16));
    held_everywhere(&servers, &key, lease.owner()).await;
    for server in &servers {
        let fence: f64 = server.run("ZSCORE redlock:tests#fences redlock:tests/a").await;
        assert_eq!(fence.to_string(), lease.owner().token().to_string());
        let left = server.pttl(&key).await;
        assert!(left > 0 && left <= 10_000, "{left}");
    }
    assert!(lease.is_held());
    assert!(lease.validity() + Duration::from_millis(102) <= TTL, "{:?}", lease.validity());
    let mut state = lease.state();
    let all = state.wait_for(|s| matches!(s, LeaseState::Held(grant) if grant.votes == 5));
    tokio::time::timeout(Duration::from_secs(5), all).await.expect("all votes counted").expect("a watchdog");

    assert_eq!(lease.release().await, Released::Freed);
    gone_everywhere(&servers, &key).await;
    assert_eq!(*state.borrow(), LeaseState::Released);
}

#[tokio::test]
async fn a_held_lock_is_refused_and_the_refused_try_leaves_nothing() {
    let servers = Server::start_armed(5).await;
    let (one, other, key) = (client(&servers), client(&servers), key("a"));
    let lease = one.try_acquire(&key, &LeaseOptions::new("one", TTL)).await.expect("granted");
    let error = other.try_acquire(&key, &LeaseOptions::new("other", TTL)).await.expect_err("refused");
    assert_eq!(error.reason(), Reason::Contended);
    let seen = other.read(&key).await.expect("a reading");
    assert_eq!(seen.holder, Some(lease.owner().to_string()));
    assert!(seen.remaining.expect("an end") <= TTL);
    lease.release().await;
    let lease = other.try_acquire(&key, &LeaseOptions::new("other", TTL)).await.expect("granted after the release");
    assert!(lease.is_held());
}

#[tokio::test]
async fn tokens_rise_from_grant_to_grant_whoever_is_granted() {
    let servers = Server::start_armed(3).await;
    let (one, other, key) = (client(&servers), client(&servers), key("a"));
    let mut last = 0;
    for _ in 0..10 {
        for (client, identity) in [(&one, "one"), (&other, "other")] {
            let lease = client.try_acquire(&key, &LeaseOptions::new(identity, TTL)).await.expect("granted");
            let token = lease.owner().token().get();
            assert!(token > last, "{token} after {last}");
            last = token;
            assert_eq!(lease.release().await, Released::Freed);
        }
    }
}

#[tokio::test]
async fn a_contender_whose_clock_is_behind_still_gets_a_larger_token() {
    let servers = Server::start_armed(3).await;
    // The masters have seen a token an hour ahead of this machine's clock.
    let ahead = u64::try_from(jiff::Timestamp::now().as_microsecond()).expect("after 1970") + 3_600_000_000;
    // In a namespace of its own: tokens of other tests must not follow this clock.
    let key = LockKey::new("ahead", "a").expect("a valid name");
    for server in &servers {
        let _: i64 = server.run(&format!("ZADD {} {ahead} {}", key.fences_key(), key.redis_key())).await;
    }
    let lease = client(&servers).try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect("granted");
    assert_eq!(lease.owner().token().get(), ahead + 1);
}

#[tokio::test]
async fn two_of_five_masters_may_be_down() {
    let mut servers = Server::start_armed(5).await;
    servers[0].crash().await;
    servers[1].crash().await;
    let (client, key) = (client(&servers), key("a"));
    let lease = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect("granted by three of five");
    assert_eq!(lease.release().await, Released::Freed);
    servers[2].crash().await;
    let error = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect_err("two of five are no majority");
    assert_eq!(error.reason(), Reason::NoQuorum);
    let Error::NoQuorum { usable, needed, masters, failures } = error else { panic!("{error}") };
    assert_eq!((usable, needed, masters, failures.len()), (2, 3, 5, 3));
    // The two votes are released.
    gone_everywhere(&servers[3..], &key).await;
}

#[tokio::test]
async fn an_unarmed_master_gives_no_vote_whatever_marker_it_shows() {
    let servers = Server::start_armed(3).await;
    let (client, key) = (client(&servers), key("a"));
    let _: () = servers[0].run("DEL redlock:armed").await;
    let lease = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect("two of three are armed");
    lease.release().await;
    for server in &servers {
        eventually("released everywhere", async || server.get(&key).await.is_none().then_some(())).await;
    }
    // The marker of another process: a restart from an append-only file would bring it back.
    servers[1].set("redlock:armed", b"0123456789 60000", &[]).await.expect("set");
    let error = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect_err("one of three is armed");
    assert_eq!(error.reason(), Reason::Quarantined, "{error}");
    gone_everywhere(&servers, &key).await;
}

#[tokio::test]
async fn a_ttl_above_the_cap_or_of_nothing_is_refused() {
    let servers = Server::start_armed(3).await;
    let (client, key) = (client(&servers), key("a"));
    let long = LeaseOptions::new("x", CAP + Duration::from_millis(1));
    let error = client.try_acquire(&key, &long).await.expect_err("above the cap");
    assert_eq!(error.reason(), Reason::Invalid, "{error}");
    let error = client.try_acquire(&key, &LeaseOptions::new("x", Duration::ZERO)).await.expect_err("no time at all");
    assert_eq!(error.reason(), Reason::Invalid, "{error}");
    gone_everywhere(&servers, &key).await;
}

#[tokio::test]
async fn a_grant_with_too_little_validity_is_released() {
    let servers = Server::start_armed(3).await;
    let (client, key) = (client(&servers), key("a"));
    // What a vote would give if it took no time.
    let min_validity = Duration::from_nanos(9_897_999_999);
    let options = LeaseOptions::new("x", TTL).min_validity(min_validity);
    let error = client.try_acquire(&key, &options).await.expect_err("the vote takes time");
    assert_eq!(error.reason(), Reason::TooSlow, "{error}");
    gone_everywhere(&servers, &key).await;
}

#[tokio::test]
async fn a_client_of_another_library_excludes_us_and_is_excluded() {
    let servers = Server::start_armed(3).await;
    let key = key("a");
    let masters = servers.iter().map(|s| RedisMaster::connect(s.endpoint(Marker::Unused)));
    let client = Client::new(masters, CALL_TIMEOUT).expect("valid settings");
    for server in &servers[..2] {
        let set: Option<String> = server.run("SET redlock:tests/a 6f1c2a NX PX 10000").await;
        assert_eq!(set.as_deref(), Some("OK"));
    }
    let error = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect_err("held by the other library");
    assert_eq!(error.reason(), Reason::Contended);
    assert_eq!(client.read(&key).await.expect("a reading").holder.as_deref(), Some("6f1c2a"));
    for server in &servers[..2] {
        let _: i64 = server.run("DEL redlock:tests/a").await;
    }
    let _lease = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect("granted");
    for server in &servers {
        eventually("our key on each master", async || server.get(&key).await.map(drop)).await;
        let set: Option<String> = server.run("SET redlock:tests/a 6f1c2a NX PX 10000").await;
        assert_eq!(set, None);
    }
}

#[tokio::test]
async fn a_lease_that_has_ended_is_reported_as_such_and_not_revived() {
    let servers = Server::start_armed(3).await;
    let (client, key) = (client(&servers), key("a"));
    let options = LeaseOptions::new("x", Duration::from_millis(300)).renewal(Renewal::None);
    let lease = client.try_acquire(&key, &options).await.expect("granted");
    let owner: Owner = lease.owner().clone();
    assert!(matches!(lease.ended().await, LeaseState::Lost(_)));
    assert!(!lease.is_held());
    assert_eq!(lease.release().await, Released::AlreadyExpired);
    gone_everywhere(&servers, &key).await;
    assert_eq!(client.release(&key, &owner).await, Released::AlreadyExpired);
    let error = client.adopt(&key, &owner, &options).await.expect_err("nothing to adopt");
    assert_eq!(error.reason(), Reason::Lost);
    for server in &servers {
        assert_eq!(server.get(&key).await, None, "adopting never creates a key");
    }
}

#[tokio::test]
async fn a_client_that_uses_up_the_tokens_of_its_namespace_harms_no_other() {
    let servers = Server::start_armed(3).await;
    let client = client(&servers);
    let hostile = LockKey::new("hostile", "a").expect("a valid name");
    for server in &servers {
        let _: i64 = server.run("ZADD redlock:hostile#fences 9007199254740991 redlock:hostile/a").await;
    }
    let error = client.try_acquire(&hostile, &LeaseOptions::new("x", TTL)).await.expect_err("no larger token exists");
    assert_eq!(error.reason(), Reason::Invalid, "{error}");
    let lease = client.try_acquire(&key("a"), &LeaseOptions::new("x", TTL)).await.expect("granted");
    let now = u64::try_from(jiff::Timestamp::now().as_microsecond()).expect("after 1970");
    assert!(lease.owner().token().get() <= now, "a token of now, not one that was driven up");
}
