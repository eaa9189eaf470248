//! Faults of masters: crash, restart, data loss, hanging, refusal.

use std::time::Duration;

use redlock_engine::permissions::acl_rules;
use redlock_engine::{
    Client, Credentials, Endpoint, LeaseOptions, LeaseState, LockKey, Marker, MasterError, Reason, RedisMaster,
    Released, Wait,
};
use redlock_test_servers::server::{CALL_TIMEOUT, PATIENCE, Server, client, eventually, gone_everywhere, key};
use tokio::time::{Instant, timeout};

const TTL: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_master_that_restarts_empty_cannot_help_a_second_holder() {
    let mut servers = Server::start_armed(5).await;
    let (one, other, key) = (client(&servers), client(&servers), key("a"));
    // The holder has exactly a majority: masters 3 and 4 were away.
    servers[3].crash().await;
    servers[4].crash().await;
    let lease = one.try_acquire(&key, &LeaseOptions::new("one", TTL)).await.expect("granted by 0, 1 and 2");
    for server in &mut servers[3..] {
        server.restart().await;
        server.arm().await;
    }
    // Master 2 loses its keys and is back at once, but nobody arms it.
    servers[2].crash().await;
    servers[2].restart().await;
    let error = eventually("the other sees the lock held", async || {
        let error = other.try_acquire(&key, &LeaseOptions::new("other", TTL)).await.expect_err("never granted");
        (error.reason() == Reason::Contended || error.reason() == Reason::NoQuorum).then_some(error)
    })
    .await;
    assert!(lease.is_held(), "{error}");
    // The holder seeds its key on the masters that came back.
    let mut state = lease.state();
    let seeded = state.wait_for(|s| matches!(s, LeaseState::Held(grant) if grant.votes == 4));
    timeout(PATIENCE, seeded).await.expect("seeded").expect("a watchdog");
    assert_eq!(servers[2].get(&key).await, None, "an unarmed master is not seeded");
}

#[tokio::test]
async fn a_flushed_master_gives_no_vote_until_it_is_armed_again() {
    let servers = Server::start_armed(3).await;
    let (client, key) = (client(&servers), key("a"));
    for server in &servers[..2] {
        let _: String = server.run("FLUSHALL").await;
    }
    let error = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect_err("two have lost their marker");
    assert_eq!(error.reason(), Reason::Quarantined);
    servers[0].arm().await;
    drop(client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect("two of three are armed"));
}

#[tokio::test]
async fn a_holder_whose_majority_was_flushed_is_not_renewed_by_flushed_masters() {
    let servers = Server::start_armed(3).await;
    let (client, key) = (client(&servers), key("a"));
    let ttl = Duration::from_secs(2);
    let lease = client.try_acquire(&key, &LeaseOptions::new("x", ttl)).await.expect("granted");
    for server in &servers[..2] {
        eventually("the key", async || server.get(&key).await).await;
        let _: String = server.run("FLUSHALL").await;
    }
    let end = timeout(PATIENCE, lease.ended()).await.expect("told");
    assert!(matches!(end, LeaseState::Lost(_)), "{end:?}");
}

#[tokio::test]
async fn scripts_come_back_after_script_flush() {
    let servers = Server::start_armed(3).await;
    let (client, key) = (client(&servers), key("a"));
    for _ in 0..2 {
        let lease = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect("granted");
        for server in &servers {
            let _: String = server.run("SCRIPT FLUSH").await;
        }
        assert_eq!(lease.release().await, Released::Freed);
    }
}

#[tokio::test]
async fn a_hanging_master_delays_neither_acquire_nor_release() {
    let servers = Server::start_armed(5).await;
    let masters = servers.iter().map(|s| RedisMaster::connect(s.endpoint(Marker::Required)));
    // A call timeout so long that the test would notice a wait for the hanging master.
    let client = Client::new(masters, Duration::from_secs(30)).expect("valid settings");
    let key = key("a");
    client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect("granted").release().await;
    servers[4].freeze();
    let began = Instant::now();
    for _ in 0..20 {
        let lease = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect("granted by four");
        assert_eq!(lease.release().await, Released::Freed);
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    servers[4].thaw();
    eventually("the late key is deleted", async || servers[4].get(&key).await.is_none().then_some(())).await;
}

#[tokio::test]
async fn a_master_that_stays_silent_is_disconnected_and_comes_back() {
    let servers = Server::start_armed(3).await;
    let masters = servers.iter().map(|s| RedisMaster::connect(s.endpoint(Marker::Required)));
    let client = Client::new(masters, Duration::from_millis(100)).expect("valid settings");
    let key = key("a");
    client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect("granted").release().await;
    servers[0].freeze();
    servers[1].freeze();
    eventually("both are disconnected", async || {
        let _ = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await;
        let down = |i: usize| matches!(client.masters()[i].health(), redlock_engine::Health::Down(_));
        (down(0) && down(1)).then_some(())
    })
    .await;
    servers[0].thaw();
    servers[1].thaw();
    let lease = client.acquire(&key, &LeaseOptions::new("x", TTL), Wait::For(PATIENCE)).await.expect("granted again");
    assert!(lease.is_held());
}

#[tokio::test]
async fn a_killed_connection_is_made_again() {
    let servers = Server::start_armed(3).await;
    let (client, key) = (client(&servers), key("a"));
    let lease = client.try_acquire(&key, &LeaseOptions::new("x", Duration::from_secs(3))).await.expect("granted");
    for _ in 0..3 {
        for server in &servers {
            let _: i64 = server.run("CLIENT KILL TYPE normal SKIPME yes").await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let mut state = lease.state();
    let renewed = state.wait_for(|s| !matches!(s, LeaseState::Held(grant) if grant.renewals < 3));
    let state = timeout(PATIENCE, renewed).await.expect("an answer").expect("a watchdog").clone();
    assert!(matches!(state, LeaseState::Held(_)), "{state:?}");
}

#[tokio::test]
async fn waiters_hear_of_releases_after_their_connection_was_killed() {
    let servers = Server::start_armed(3).await;
    let (one, other, key) = (client(&servers), client(&servers), key("a"));
    let lease = one.try_acquire(&key, &LeaseOptions::new("one", TTL)).await.expect("granted");
    let waiting = tokio::spawn({
        let key = key.clone();
        async move { other.acquire(&key, &LeaseOptions::new("other", TTL), Wait::Forever).await }
    });
    let listening = async |server: &Server| {
        let key = &key;
        eventually("the waiter listens", async || (server.listeners(key).await == 1).then_some(())).await;
    };
    for server in &servers {
        listening(server).await;
        let _: i64 = server.run("CLIENT KILL TYPE pubsub").await;
        listening(server).await;
    }
    lease.release().await;
    drop(timeout(PATIENCE, waiting).await.expect("woken").expect("no panic").expect("granted"));
}

fn with(server: &Server, credentials: Credentials) -> Endpoint {
    Endpoint { credentials, ..server.endpoint(Marker::Required) }
}

fn user(name: &str, password: &str) -> Credentials {
    Credentials::Password { username: name.to_owned(), password: password.to_owned() }
}

#[tokio::test]
async fn a_refused_login_is_not_reported_as_a_master_that_is_down_and_shows_no_password() {
    let servers = Server::start_armed(3).await;
    let masters = servers.iter().map(|s| RedisMaster::connect(with(s, user("nobody", "S3NT1NEL"))));
    let client = Client::new(masters, CALL_TIMEOUT).expect("valid settings");
    let error = client.try_acquire(&key("a"), &LeaseOptions::new("x", TTL)).await.expect_err("refused");
    assert_eq!(error.reason(), Reason::Auth, "{error}");
    assert!(!format!("{error} {error:?} {client:?}").contains("S3NT1NEL"));
}

#[tokio::test]
async fn a_user_of_one_namespace_has_all_permissions_that_a_lock_needs_and_none_elsewhere() {
    let servers = Server::start_armed(3).await;
    for server in &servers {
        let rules = acl_rules("tests", false).join(" ");
        let _: String = server.run(&format!("ACL SETUSER ns-tests reset on >S3NT1NEL {rules}")).await;
    }
    let user = || user("ns-tests", "S3NT1NEL");
    let clients: Vec<_> = (0..2)
        .map(|_| {
            Client::new(servers.iter().map(|s| RedisMaster::connect(with(s, user()))), CALL_TIMEOUT)
                .expect("valid settings")
        })
        .collect();
    let (one, other, key) = (&clients[0], &clients[1], key("a"));
    let lease = one.try_acquire(&key, &LeaseOptions::new("one", Duration::from_secs(2))).await.expect("granted");
    let mut state = lease.state();
    let renewed = state.wait_for(|s| !matches!(s, LeaseState::Held(grant) if grant.renewals < 1 || grant.votes < 3));
    assert!(matches!(*timeout(PATIENCE, renewed).await.expect("renewed").expect("a watchdog"), LeaseState::Held(_)));
    assert_eq!(other.read(&key).await.expect("a reading").holder, Some(lease.owner().to_string()));
    let options = LeaseOptions::new("other", TTL);
    let (granted, released) = tokio::join!(other.acquire(&key, &options, Wait::For(PATIENCE)), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        lease.release().await
    });
    assert_eq!(released, Released::Freed);
    assert!(granted.expect("handed over").is_held());

    let foreign = LockKey::new("billing", "a").expect("a valid name");
    let error = one.try_acquire(&foreign, &LeaseOptions::new("one", TTL)).await.expect_err("not its namespace");
    assert_eq!(error.reason(), Reason::Auth, "{error}");
    assert_eq!(servers[0].get(&foreign).await, None);
}

#[tokio::test]
async fn a_missing_permission_leaves_no_partial_grant() {
    let servers = Server::start_armed(3).await;
    for server in &servers {
        // It may set the lock's key, but not the token.
        let _: String = server.run("ACL SETUSER weak reset on >pw ~* &* +@all -zadd").await;
    }
    let masters = servers.iter().map(|s| RedisMaster::connect(with(s, user("weak", "pw"))));
    let client = Client::new(masters, CALL_TIMEOUT).expect("valid settings");
    let error = client.try_acquire(&key("a"), &LeaseOptions::new("x", TTL)).await.expect_err("no vote on the token");
    assert_eq!(error.reason(), Reason::Auth, "{error}");
    gone_everywhere(&servers, &key("a")).await;
}

#[tokio::test]
async fn a_replica_never_counts_as_a_vote() {
    let servers = Server::start_armed(3).await;
    let (client, key) = (client(&servers), key("a"));
    client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect("granted").release().await;
    for server in &servers[1..] {
        let _: String = server.run(&format!("REPLICAOF 127.0.0.1 {}", servers[0].port)).await;
    }
    let error = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect_err("one master of three");
    assert_eq!(error.reason(), Reason::Misconfigured, "{error}");
}

#[tokio::test]
async fn a_master_out_of_memory_says_so() {
    let servers = Server::start_armed(1).await;
    let client = client(&servers);
    client.try_acquire(&key("a"), &LeaseOptions::new("x", TTL)).await.expect("granted").release().await;
    let _: String = servers[0].run("CONFIG SET maxmemory 1").await;
    let error = client.try_acquire(&key("a"), &LeaseOptions::new("x", TTL)).await.expect_err("no room");
    assert_eq!(error.reason(), Reason::OutOfMemory, "{error}");
    let MasterError::OutOfMemory = single_failure(&error) else { panic!("{error}") };
}

fn single_failure(error: &redlock_engine::Error) -> MasterError {
    match error {
        redlock_engine::Error::NoQuorum { failures, .. } => failures[0].error.clone(),
        other => panic!("{other}"),
    }
}
