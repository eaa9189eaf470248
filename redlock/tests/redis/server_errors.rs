//! What servers answer instead of a vote, and that the caller learns each answer as an error of its own.

use std::fs;
use std::time::Duration;

use redlock_engine::{
    Client, Credentials, Endpoint, Error, Health, LeaseOptions, LeaseState, Loss, Marker, MasterError, Reason,
    RedisMaster, Released, Renewal, Wait,
};
use redlock_test_servers::proxy::{Flow, Proxy};
use redlock_test_servers::server::{
    CALL_TIMEOUT, CAP, PATIENCE, Server, client, connected, eventually, gone_everywhere, held_everywhere, key,
    until_connected,
};
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(10);

fn user(name: &str, password: &str) -> Credentials {
    Credentials::Password { username: name.to_owned(), password: password.to_owned() }
}

/// A client that logs in to all servers as the user `weak` with these ACL rules.
async fn weak_client(servers: &[Server], rules: &str) -> Client {
    for server in servers {
        let () = server.run(&format!("ACL SETUSER weak reset on >pw {rules}")).await;
    }
    let masters = servers.iter().map(|server| {
        let endpoint = server.endpoint(Marker::Required);
        RedisMaster::connect(Endpoint { credentials: user("weak", "pw"), ..endpoint })
    });
    let client = Client::new(masters, CALL_TIMEOUT).expect("valid settings");
    until_connected(&client).await;
    client
}

fn failures(error: Error) -> Vec<MasterError> {
    match error {
        Error::NoQuorum { failures, .. } => failures.into_iter().map(|failure| failure.error).collect(),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn without_permission_to_renew_a_lease_ends_with_its_validity_and_not_before() {
    let servers = Server::start_armed(3).await;
    let client = weak_client(&servers, "~* &* +@all -pexpire").await;
    let renewal = Renewal::Every(Duration::from_millis(100));
    let options = LeaseOptions::new("x", Duration::from_secs(2)).renewal(renewal);
    let lease = client.try_acquire(&key("a"), &options).await.expect("granted");
    let LeaseState::Held(grant) = lease.state().borrow().clone() else { panic!("held") };
    assert!(matches!(timeout(PATIENCE, lease.ended()).await.expect("told"), LeaseState::Lost(Loss::Expired { .. })));
    assert!(tokio::time::Instant::now() >= grant.valid_until, "a refused renewal does not end a lease");
    for server in &servers {
        eventually("two refused renewals", async || (server.refusals("pexpire").await > 1).then_some(())).await;
    }
    gone_everywhere(&servers, &key("a")).await;
}

#[tokio::test]
async fn without_permission_for_the_channel_a_lock_is_still_handed_on() {
    let servers = Server::start_armed(3).await;
    let one = weak_client(&servers, "~* resetchannels +@all").await;
    let other = weak_client(&servers, "~* resetchannels +@all").await;
    // Longer than the test waits: nobody gets it because it expires.
    let long = Duration::from_secs(60);
    let lease = one.try_acquire(&key("a"), &LeaseOptions::new("one", long)).await.expect("granted");
    let waiting =
        tokio::spawn(async move { other.acquire(&key("a"), &LeaseOptions::new("other", long), Wait::Forever).await });
    for server in &servers {
        eventually("its subscription is refused", async || (server.refusals("subscribe").await > 0).then_some(()))
            .await;
    }
    lease.release().await;
    let lease = timeout(PATIENCE, waiting).await.expect("handed on").expect("no panic").expect("granted");
    assert_eq!(lease.owner().identity(), "other");
}

#[tokio::test]
async fn a_refused_subscription_does_not_end_the_connection() {
    let servers = Server::start_armed(3).await;
    let (one, other) = (client(&servers), weak_client(&servers, "~* resetchannels +@all").await);
    let renewal = Renewal::Every(Duration::from_millis(100));
    let long = LeaseOptions::new("one", Duration::from_secs(60)).renewal(renewal);
    let held = one.try_acquire(&key("a"), &long).await.expect("granted");
    let own = other.try_acquire(&key("b"), &long.clone().identity("other".to_owned())).await;
    let own = own.expect("granted");
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.acquire(&key("a"), &LeaseOptions::new("other", TTL), Wait::Forever).await }
    });
    for server in &servers {
        eventually("its subscription is refused", async || (server.refusals("subscribe").await > 0).then_some(()))
            .await;
        let _: i64 = server.run("CLIENT KILL USER weak").await;
    }
    // It reconnects while it waits: the lock that it holds is renewed, and the lock that it waits for is handed on.
    let LeaseState::Held(before) = own.state().borrow().clone() else { panic!("held") };
    let mut state = own.state();
    let renewed = state.wait_for(|s| !matches!(s, LeaseState::Held(g) if g.renewals < before.renewals + 3));
    assert!(matches!(*timeout(PATIENCE, renewed).await.expect("renewed").expect("a watchdog"), LeaseState::Held(_)));
    held.release().await;
    drop(timeout(PATIENCE, waiting).await.expect("handed on").expect("no panic").expect("granted"));
}

#[tokio::test]
async fn permission_for_other_keys_alone_gives_no_vote_and_is_reported() {
    let servers = Server::start_armed(3).await;
    for rules in [
        "~redlock:other/* ~redlock:other#fences %R~redlock:armed &* +@all",
        // The lock, but not its fence; then without the marker.
        "~redlock:tests/* %R~redlock:armed &* +@all",
        "~redlock:tests/* ~redlock:tests#fences &* +@all",
    ] {
        let client = weak_client(&servers, rules).await;
        let error = client.try_acquire(&key("a"), &LeaseOptions::new("x", TTL)).await.expect_err("refused");
        assert_eq!(error.reason(), Reason::Auth, "{rules}: {error}");
        gone_everywhere(&servers, &key("a")).await;
    }
}

#[tokio::test]
async fn a_rotated_password_is_used_without_a_new_client() {
    let servers = Server::start_armed(3).await;
    let folder = tempfile::tempdir().expect("a folder");
    let (username, password) = (folder.path().join("username"), folder.path().join("password"));
    fs::write(&username, "app\n").expect("a file");
    fs::write(&password, "old\n").expect("a file");
    for server in &servers {
        let () = server.run("ACL SETUSER app reset on >old ~* &* +@all").await;
    }
    let masters = servers.iter().map(|server| {
        let credentials = Credentials::Files { username: username.clone(), password: password.clone() };
        RedisMaster::connect(Endpoint { credentials, ..server.endpoint(Marker::Required) })
    });
    let client = Client::new(masters, CALL_TIMEOUT).expect("valid settings");
    until_connected(&client).await;
    let renewal = Renewal::Every(Duration::from_millis(200));
    let options = LeaseOptions::new("x", TTL).renewal(renewal);
    let lease = client.try_acquire(&key("a"), &options).await.expect("granted");
    for server in &servers {
        let () = server.run("ACL SETUSER app resetpass >new").await;
        let _: i64 = server.run("CLIENT KILL USER app").await;
    }
    eventually("refused", async || {
        let refused = |m: &RedisMaster| matches!(m.health(), Health::Down(MasterError::Auth(_)));
        client.masters().iter().all(refused).then_some(())
    })
    .await;
    fs::write(&password, "new\n").expect("a file");
    eventually("logged in again", async || {
        client.masters().iter().all(|m| matches!(m.health(), Health::Up { .. })).then_some(())
    })
    .await;
    let LeaseState::Held(before) = lease.state().borrow().clone() else { panic!("held throughout") };
    let mut state = lease.state();
    let renewed = state.wait_for(|s| !matches!(s, LeaseState::Held(grant) if grant.renewals <= before.renewals));
    assert!(matches!(*timeout(PATIENCE, renewed).await.expect("renewed").expect("a watchdog"), LeaseState::Held(_)));
}

#[tokio::test]
async fn a_master_out_of_memory_grants_nothing_but_renews_and_releases() {
    let servers = Server::start_armed(3).await;
    let client = connected(&servers).await;
    let renewal = Renewal::Every(Duration::from_millis(100));
    let options = LeaseOptions::new("x", TTL).renewal(renewal);
    let lease = client.try_acquire(&key("a"), &options).await.expect("granted");
    for server in &servers {
        eventually("the key", async || server.get(&key("a")).await).await;
        let () = server.run("CONFIG SET maxmemory 1").await;
    }
    let error = client.try_acquire(&key("b"), &options).await.expect_err("out of memory");
    assert_eq!(error.reason(), Reason::OutOfMemory, "{error}");
    assert_eq!(failures(error)[0], MasterError::OutOfMemory);
    let LeaseState::Held(before) = lease.state().borrow().clone() else { panic!("held") };
    let mut state = lease.state();
    let renewed = state.wait_for(|s| !matches!(s, LeaseState::Held(g) if g.renewals < before.renewals + 3));
    assert!(matches!(*timeout(PATIENCE, renewed).await.expect("renewed").expect("a watchdog"), LeaseState::Held(_)));
    assert_eq!(lease.release().await, Released::Freed);
    gone_everywhere(&servers, &key("a")).await;
}

#[tokio::test]
async fn a_master_that_cannot_save_is_reported_and_its_keys_expire() {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Server::start(&["--save", "3600 1"]).await);
    }
    for server in &servers {
        server.arm().await;
    }
    let client = connected(&servers).await;
    let options = LeaseOptions::new("x", Duration::from_secs(10)).renewal(Renewal::None);
    let lease = client.try_acquire(&key("a"), &options).await.expect("granted");
    held_everywhere(&servers, &key("a"), lease.owner()).await;
    for server in &servers {
        // Redis cannot replace a folder by its dump.
        fs::create_dir(server.folder().join("dump.rdb")).expect("a folder");
        let () = server.run("BGSAVE").await;
        eventually("it failed", async || {
            let info: redis::InfoDict = server.run("INFO persistence").await;
            (info.get::<String>("rdb_last_bgsave_status").as_deref() == Some("err")).then_some(())
        })
        .await;
    }
    let error = client.try_acquire(&key("b"), &options).await.expect_err("no writes");
    assert_eq!(error.reason(), Reason::Misconfigured, "{error}");
    assert!(error.to_string().contains("MISCONF"), "{error}");
    // It is not reported as a release, because the keys are still there.
    assert_eq!(lease.release().await, Released::Unknown);
    gone_everywhere(&servers, &key("a")).await;
}

#[tokio::test]
async fn a_master_that_is_loading_gives_no_vote_and_is_not_flooded_with_connections() {
    let mut server =
        Server::start(&["--loading-process-events-interval-bytes", "1024", "--key-load-delay", "3000"]).await;
    server.arm().await;
    let fill = "for i=1,3000 do redis.call('SET',i,string.rep('x',100)) end";
    let mut connection = redis::Client::open(format!("redis://127.0.0.1:{}", server.port)).expect("a client");
    let () = redis::cmd("EVAL").arg(fill).arg(0).query(&mut connection).expect("filled");
    let () = server.run("SAVE").await;
    let (link, key) = (Proxy::to(server.port).await, key("a"));
    let client = Client::new([RedisMaster::connect(link.endpoint(&server))], CALL_TIMEOUT).expect("valid settings");
    until_connected(&client).await;
    client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect("granted").release().await;
    server.crash().await;
    server.restart().await;
    let began = tokio::time::Instant::now();
    let before = link.accepted();
    eventually("it is known to be loading", async || {
        let error = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect_err("not loaded");
        (failures(error)[0] == MasterError::Misconfigured("still loading its data".to_owned())).then_some(())
    })
    .await;
    // Many calls do not make many connections.
    for _ in 0..1000 {
        client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect_err("not loaded");
    }
    let (tries, longest) = ((link.accepted() - before) as u128, began.elapsed().as_millis() / 100 + 2);
    assert!(tries <= longest, "{tries} connections: two are at least a tenth of a second apart");
    let () = server.run("CONFIG SET key-load-delay 0").await;
    // Loaded, with the marker of the former process: it is quarantined.
    eventually("it is quarantined", async || {
        let error = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect_err("not armed");
        (error.reason() == Reason::Quarantined).then_some(())
    })
    .await;
    assert_eq!(server.run::<i64>("EXISTS redlock:armed").await, 1);
    server.arm().await;
    drop(client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect("granted"));
}

#[tokio::test]
async fn a_master_that_comes_back_with_its_data_is_quarantined_until_it_is_armed() {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Server::start(&["--appendonly", "yes", "--appendfsync", "always"]).await);
    }
    for server in &servers {
        server.arm().await;
    }
    let (one, other, held) = (connected(&servers).await, connected(&servers).await, key("a"));
    let renewal = Renewal::Every(Duration::from_millis(200));
    let options = LeaseOptions::new("one", Duration::from_secs(30)).renewal(renewal);
    let lease = one.try_acquire(&held, &options).await.expect("granted");
    held_everywhere(&servers, &held, lease.owner()).await;
    for server in &mut servers[1..] {
        server.crash().await;
        server.restart().await;
        let get = format!("GET {}", held.redis_key());
        let loaded = eventually("loaded", async || server.ask::<Option<String>>(&get).await.ok()).await;
        assert_eq!(loaded, Some(lease.owner().to_string()), "it still has its data");
    }
    // The key counts. The marker, which names another process, does not: they give no vote for another lock.
    for (lock, reason) in [(&held, Reason::Contended), (&key("b"), Reason::Quarantined)] {
        eventually("refused", async || {
            let error = other.try_acquire(lock, &LeaseOptions::new("other", TTL)).await.expect_err("refused");
            (error.reason() == reason).then_some(())
        })
        .await;
    }
    for server in &servers[1..] {
        server.arm().await;
    }
    let mut state = lease.state();
    let all = state.wait_for(|s| !matches!(s, LeaseState::Held(grant) if grant.votes < 3));
    assert!(matches!(*timeout(PATIENCE, all).await.expect("in time").expect("a watchdog"), LeaseState::Held(_)));
}

#[tokio::test]
async fn a_replica_is_refused_and_gives_no_vote_after_it_was_one() {
    let servers = Server::start_armed(3).await;
    let () = servers[0].run("CONFIG SET repl-diskless-sync-delay 0").await;
    for server in &servers[1..] {
        let () = server.run(&format!("REPLICAOF 127.0.0.1 {}", servers[0].port)).await;
    }
    let client = client(&servers);
    eventually("both are known as replicas", async || {
        let replica = Health::Down(MasterError::Misconfigured("a replica, not a master".to_owned()));
        (client.masters()[1..].iter().all(|m| m.health() == replica)).then_some(())
    })
    .await;
    for server in &servers[1..] {
        eventually("in sync with its master", async || {
            let info: redis::InfoDict = server.run("INFO replication").await;
            (info.get::<String>("master_link_status").as_deref() == Some("up")).then_some(())
        })
        .await;
        let () = server.run("REPLICAOF NO ONE").await;
    }
    // Masters again, with the marker of the master that they replicated.
    let error = eventually("an answer of each", async || {
        let error = client.try_acquire(&key("a"), &LeaseOptions::new("x", TTL)).await.expect_err("not armed");
        (error.reason() == Reason::Quarantined).then_some(error)
    })
    .await;
    assert_eq!(failures(error), [MasterError::Quarantined, MasterError::Quarantined]);
}

/// What is wrong with a master, in the matrix below.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    Held,
    Down,
    Slow,
    Auth,
}

#[tokio::test]
async fn each_combination_of_faults_has_its_reason_and_any_majority_is_enough() {
    use Fault::{Auth, Down, Held, None, Slow};
    let servers = Server::start_armed(5).await;
    for server in &servers {
        let () = server.run("ACL SETUSER weak reset on >pw ~* &* +@all -zadd").await;
    }
    for (faults, expected) in [
        ([None, None, None, Down, Slow], Ok(())),
        ([None, None, None, Held, Auth], Ok(())),
        ([Held, Held, Held, None, None], Err(Reason::Contended)),
        ([Held, Held, Held, Down, Slow], Err(Reason::Contended)),
        // A majority was usable, and not free.
        ([None, None, Held, Down, Down], Err(Reason::Contended)),
        ([None, None, Down, Down, Down], Err(Reason::NoQuorum)),
        ([None, None, Slow, Slow, Slow], Err(Reason::NoQuorum)),
        ([None, None, Down, Slow, Auth], Err(Reason::NoQuorum)),
        ([None, None, Auth, Auth, Auth], Err(Reason::Auth)),
        ([None, Held, Auth, Auth, Down], Err(Reason::Auth)),
    ] {
        let links = futures::future::join_all(servers.iter().map(|s| Proxy::to(s.port))).await;
        for ((server, link), fault) in servers.iter().zip(&links).zip(faults) {
            let () = server.run("DEL redlock:tests/a").await;
            match fault {
                Held => server.run("SET redlock:tests/a another PX 60000").await,
                Down => link.cut(),
                None | Slow | Auth => {}
            }
        }
        let masters = links.iter().zip(&servers).zip(faults).map(|((link, server), fault)| {
            let endpoint = link.endpoint(server);
            let credentials = if matches!(fault, Auth) { user("weak", "pw") } else { Credentials::None };
            RedisMaster::connect(Endpoint { credentials, ..endpoint })
        });
        let client = Client::new(masters, CALL_TIMEOUT).expect("valid settings");
        eventually("each is connected or down", async || {
            client.masters().iter().all(|m| m.health() != Health::Connecting).then_some(())
        })
        .await;
        for (link, _) in links.iter().zip(faults).filter(|(_, fault)| matches!(fault, Slow)) {
            link.answers(Flow::Hold);
        }
        let result = client.try_acquire(&key("a"), &LeaseOptions::new("x", TTL)).await;
        assert_eq!(result.as_ref().map(|_| ()).map_err(Error::reason), expected, "{faults:?}: {result:?}");
        if let Ok(lease) = result {
            lease.release().await;
        }
    }
}

#[tokio::test]
async fn a_master_that_may_evict_a_held_lock_grants_none() {
    let servers = Server::start_armed(1).await;
    let () = servers[0].run("CONFIG SET maxmemory-policy allkeys-lru").await;
    let client = client(&servers);
    let error = eventually("the client has checked the server", async || {
        let error = client.try_acquire(&key("a"), &LeaseOptions::new("x", TTL)).await.expect_err("not fit");
        (error.reason() == Reason::Misconfigured).then_some(error)
    })
    .await;
    assert!(error.to_string().contains("maxmemory-policy is allkeys-lru"), "{error}");
}

#[tokio::test]
async fn nobody_waits_for_a_lease_longer_than_the_masters_allow() {
    let servers = Server::start_armed(3).await;
    let options = LeaseOptions::new("x", CAP + Duration::from_secs(1));
    let error = client(&servers).acquire(&key("a"), &options, Wait::Forever).await.expect_err("above the cap");
    assert_eq!(error.reason(), Reason::Invalid, "{error}");
}
