//! The operator's side of a master on real Redis servers, which run with the configuration file of a cluster's pods.

mod arming;
pub(crate) mod harness;
mod hostile;
mod passwords;

use std::time::Duration;

use redlock_engine::{Client, LeaseOptions, LeaseState, LockKey, MasterError, Reason, Released, Renewal, Wait};
use redlock_test_servers::server::{CALL_TIMEOUT, CAP, PATIENCE, eventually};

use super::arm::ArmError;
use super::{Admin, AdminError};
use crate::contract::credentials::RootKey;
use crate::contract::names::{EVERY_NAMESPACE, client_user};
use harness::{MasterServer, UNWRITABLE};

#[tokio::test]
async fn a_fresh_server_is_fit_and_lets_nobody_in_but_the_operator() {
    let server = MasterServer::start(&RootKey::generate()).await;
    let facts = server.facts().await;
    assert_eq!((facts.unfit.as_deref(), facts.marker.as_ref(), facts.is_armed()), (None, None, false));
    assert!(facts.namespaces.is_empty());
    assert_eq!(facts.run_id.len(), 40);
    let anonymous = redis::Client::open(format!("redis://127.0.0.1:{}", server.port)).unwrap();
    let mut anonymous = anonymous.get_multiplexed_async_connection().await.unwrap();
    let refused = redis::cmd("PING").exec_async(&mut anonymous).await.unwrap_err();
    assert_eq!(refused.code(), Some("NOAUTH"));
    assert!(server.as_client::<String>("tests", "PING").await.is_err());
}

#[tokio::test]
async fn a_server_needs_no_folder_that_it_can_write_to() {
    let probe = std::path::Path::new(UNWRITABLE).join("probe");
    assert!(std::fs::write(&probe, "").is_err(), "{UNWRITABLE} can be written to");
    let server = MasterServer::start(&RootKey::generate()).await;
    assert_eq!(server.as_operator::<Vec<String>>("CONFIG GET dir").await, ["dir", UNWRITABLE]);
    server.arm(&["tests"]).await;
    server.as_client::<()>("tests", "SET redlock:tests/a x PX 5000").await.unwrap();
    assert_eq!(server.as_operator::<String>("INFO persistence").await.matches("status:err").count(), 0);
    assert_eq!(server.facts().await.unfit, None);
}

#[tokio::test]
async fn the_operator_of_another_cluster_is_told_that_its_password_is_refused() {
    let server = MasterServer::start(&RootKey::generate()).await;
    let other = RootKey::generate().operator_password();
    assert_eq!(Admin::connect("127.0.0.1", server.port, &other).await.unwrap_err(), AdminError::Login);
}

#[tokio::test]
async fn clients_of_a_namespace_have_all_that_the_engine_needs_on_armed_servers() {
    let key = RootKey::generate();
    let servers = futures::future::join_all((0..3).map(|_| MasterServer::start(&key))).await;
    for server in &servers {
        server.arm(&["tests"]).await;
        let facts = server.facts().await;
        assert!(facts.is_armed());
        assert_eq!(facts.marker.map(|marker| marker.cap), Some(CAP));
    }
    let client =
        Client::new(servers.iter().map(|server| server.master("tests")), CALL_TIMEOUT).expect("valid settings");
    let other = Client::new(servers.iter().map(|server| server.master("tests")), CALL_TIMEOUT).expect("valid settings");
    let lock = LockKey::new("tests", "a/b").unwrap();
    let options = |identity: &str| {
        LeaseOptions::new(identity, Duration::from_secs(5)).renewal(Renewal::Every(Duration::from_millis(100)))
    };
    let lease = client.acquire(&lock, &options("one"), Wait::For(PATIENCE)).await.expect("granted");
    // Renewed by script, seen by the other, waited for by subscription, released with a message.
    let mut state = lease.state();
    let renewed =
        |state: &LeaseState| matches!(state, LeaseState::Held(grant) if grant.renewals >= 2 && grant.votes >= 2);
    tokio::time::timeout(PATIENCE, state.wait_for(renewed)).await.expect("renewed in time").expect("still kept");
    let seen = other.read(&lock).await.expect("readable");
    assert_eq!(seen.holder.as_deref(), Some(lease.owner().to_string().as_str()));
    let waiting = tokio::spawn(async move {
        let (lock, options) = (LockKey::new("tests", "a/b").unwrap(), options("two"));
        let granted = other.acquire(&lock, &options, Wait::For(PATIENCE)).await;
        granted.expect("granted after the release").owner().identity().to_owned()
    });
    assert_eq!(lease.release().await, Released::Freed);
    assert_eq!(waiting.await.unwrap(), "two");
}

#[tokio::test]
async fn a_client_reaches_neither_another_namespace_nor_administration() {
    let server = MasterServer::start(&RootKey::generate()).await;
    server.arm(&["tests", "billing"]).await;
    for allowed in [
        "SET redlock:tests/a x PX 1000",
        "GET redlock:tests/a",
        "GET redlock:armed",
        "PUBLISH redlock:tests/a released",
    ] {
        server.as_client::<redis::Value>("tests", allowed).await.unwrap_or_else(|e| panic!("{allowed}: {e}"));
    }
    for refused in [
        "GET redlock:billing/a",
        "SET redlock:billing/a x",
        "ZADD redlock:billing#fences 1 a",
        "SET redlock:armed x",
        "DEL redlock:armed",
        "PUBLISH redlock:billing/a released",
        "FLUSHALL",
        "FLUSHDB",
        "KEYS *",
        "SCAN 0",
        "CONFIG GET dir",
        "ACL LIST",
        "ACL WHOAMI",
        "REPLICAOF NO ONE",
        "SHUTDOWN NOSAVE",
        "CLIENT LIST",
        "MONITOR",
    ] {
        let error = server.as_client::<redis::Value>("tests", refused).await.expect_err(refused);
        assert_eq!(error.code(), Some("NOPERM"), "{refused}: {error}");
    }
}

#[tokio::test]
async fn clients_follow_the_namespaces_that_have_locks() {
    let server = MasterServer::start(&RootKey::generate()).await;
    server.arm(&["tests", "billing"]).await;
    let mut admin = server.admin().await;
    let wanted = server.clients(&["tests", "reports"]);
    let before = admin.facts().await.unwrap();
    assert!(!wanted.are_known_to(&before));
    admin.maintain(&before, &wanted, CAP).await.unwrap();
    assert!(wanted.are_known_to(&admin.facts().await.unwrap()));
    assert!(server.as_client::<String>("reports", "PING").await.is_ok());
    assert!(server.as_client::<String>("tests", "PING").await.is_ok());
    assert!(server.as_client::<String>("billing", "PING").await.is_err());
    admin.maintain(&before, &server.clients(&[]), CAP).await.unwrap();
}

#[tokio::test]
async fn setting_users_again_disturbs_nobody_who_is_connected() {
    let server = MasterServer::start(&RootKey::generate()).await;
    server.arm(&["tests"]).await;
    let password = server.password("tests");
    let url = format!("redis://{}:{}@127.0.0.1:{}", client_user("tests"), password.expose(), server.port);
    let client = redis::Client::open(url).unwrap();
    let mut subscriber = client.get_async_pubsub().await.unwrap();
    subscriber.subscribe("redlock:tests/a").await.unwrap();
    let mut admin = server.admin().await;
    let facts = admin.facts().await.unwrap();
    admin.maintain(&facts, &server.clients(&["tests"]), CAP).await.unwrap();
    let heard: i64 = server.as_client("tests", "PUBLISH redlock:tests/a released").await.unwrap();
    assert_eq!(heard, 1);
    let message = futures::StreamExt::next(&mut subscriber.on_message()).await.expect("a message");
    assert_eq!(message.get_payload::<String>().unwrap(), "released");
}

#[tokio::test]
async fn a_flushed_server_is_not_armed_and_a_new_cap_does_not_arm_it() {
    let server = MasterServer::start(&RootKey::generate()).await;
    server.arm(&["tests"]).await;
    let mut admin = server.admin().await;
    let facts = admin.facts().await.unwrap();
    let (clients, cap) = (server.clients(&["tests"]), Duration::from_secs(120));
    admin.maintain(&facts, &clients, cap).await.unwrap();
    assert_eq!(admin.facts().await.unwrap().marker.unwrap().cap, Duration::from_secs(120));
    let () = server.as_operator("FLUSHALL").await;
    assert!(!admin.poll().await.unwrap().is_armed());
    let error = admin.maintain(&facts, &server.clients(&["tests", "billing"]), cap).await.unwrap_err();
    assert_eq!(error, AdminError::Refused("it changed meanwhile".to_owned()));
    let after = admin.poll().await.unwrap();
    assert_eq!((after.is_armed(), after.namespaces.len()), (false, 2), "neither a marker nor a user was added");
    // A client of the engine learns the reason.
    let client = Client::new([server.master("tests")], CALL_TIMEOUT).expect("valid settings");
    let error = eventually("the master says that it is not armed", || async {
        let options = LeaseOptions::new("one", Duration::from_secs(5));
        let error = client.try_acquire(&LockKey::new("tests", "a").unwrap(), &options).await.expect_err("not armed");
        (error.reason() == Reason::Quarantined).then_some(error)
    });
    assert!(error.await.to_string().contains(&MasterError::Quarantined.to_string()));
}

#[tokio::test]
async fn a_server_that_could_forget_or_already_knows_something_is_not_fit() {
    for (command, why) in [
        ("CONFIG SET maxmemory-policy allkeys-lru", "maxmemory-policy is allkeys-lru"),
        ("REPLICAOF 127.0.0.1 1", "role is slave"),
        ("SET session:1 someone", "was never armed"),
        ("SET redlock:tests/a someone", "was never armed"),
    ] {
        let server = MasterServer::start(&RootKey::generate()).await;
        let _: redis::Value = server.as_operator(command).await;
        let unfit = server.facts().await.unfit.expect(command);
        assert!(unfit.contains(why), "{unfit}");
    }
}

#[tokio::test]
async fn the_operator_keeps_locks_as_a_client_that_an_unarmed_server_refuses() {
    let server = MasterServer::start(&RootKey::generate()).await;
    let client = Client::new([server.master(EVERY_NAMESPACE)], CALL_TIMEOUT).expect("valid settings");
    let key = LockKey::new("tests", "a").unwrap();
    let options = LeaseOptions::new("one", Duration::from_secs(5));
    let error = client.try_acquire(&key, &options).await.expect_err("not armed");
    assert_eq!(error.reason(), Reason::Auth, "{error}");
    assert_eq!(server.as_operator::<u64>("DBSIZE").await, 0, "a server that is not armed stays empty");
    server.arm(&[]).await;
    let lease = client.acquire(&key, &options, Wait::For(PATIENCE)).await.expect("granted once it is armed");
    assert!(server.as_client::<redis::Value>(EVERY_NAMESPACE, "SET redlock:armed x").await.is_err());
    assert!(server.as_client::<redis::Value>(EVERY_NAMESPACE, "SET session:1 x").await.is_err());
    drop(lease);
}

#[tokio::test]
async fn a_marker_that_names_another_process_does_not_count() {
    let server = MasterServer::start(&RootKey::generate()).await;
    let _: redis::Value = server.as_operator("CONFIG SET loglevel notice").await;
    let password = server.key.operator_password();
    let url = format!("redis://operator:{}@127.0.0.1:{}", password.expose(), server.port);
    let mut connection = redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap();
    let () = redis::cmd("SET")
        .arg("redlock:armed")
        .arg(format!("{} 60000", "0".repeat(40)))
        .query_async(&mut connection)
        .await
        .unwrap();
    let facts = server.facts().await;
    assert!(!facts.is_armed() && facts.unfit.is_some(), "somebody else wrote it: {facts:?}");
}

#[tokio::test]
async fn what_was_read_of_one_process_is_never_used_to_arm_the_next() {
    let key = RootKey::generate();
    let mut server = MasterServer::start(&key).await;
    let mut admin = server.admin().await;
    let facts = admin.facts().await.unwrap();
    server.crash_and_restart().await;
    let error = admin.arm(&facts, &server.clients(&["tests"]), CAP).await.unwrap_err();
    assert!(matches!(error, ArmError::NotSent(AdminError::Unreachable(_))), "{error}");
    let fresh = server.facts().await;
    assert!(!fresh.is_armed() && fresh.run_id != facts.run_id && fresh.namespaces.is_empty(), "{fresh:?}");
}
