//! Arming as the only door: what a decision is made on, and what cancels it.

use std::time::Duration;

use redlock_engine::{Client, LeaseOptions, LockKey};
use redlock_test_servers::faketime::Clock;
use redlock_test_servers::server::{CALL_TIMEOUT, CAP, Server, eventually};

use super::harness::{MasterServer, POD_UID};
use crate::api::cluster::ClientScripts;
use crate::cluster::server::arm::ArmError;
use crate::cluster::server::clock::ClockFault;
use crate::cluster::server::{Admin, AdminError};
use crate::contract::credentials::RootKey;

fn is_cancelled(armed: &Result<(), ArmError>) -> bool {
    *armed == Err(ArmError::NotSent(AdminError::Refused("it changed meanwhile".to_owned())))
}

/// Neither marker nor users.
async fn is_closed(server: &MasterServer) -> bool {
    let facts = server.admin().await.poll().await.expect("facts");
    !facts.is_armed() && facts.namespaces.is_empty()
}

#[tokio::test]
async fn a_flush_between_the_decision_and_arming_cancels_both_marker_and_users() {
    let server = MasterServer::start(&RootKey::generate()).await;
    let mut admin = server.admin().await;
    let facts = admin.facts().await.unwrap();
    assert_eq!(facts.unfit, None);
    let () = server.as_operator("FLUSHALL").await;
    assert!(is_cancelled(&admin.arm(&facts, &server.clients(&["tests"]), CAP).await));
    assert!(is_closed(&server).await);
}

#[tokio::test]
async fn a_leader_that_was_stopped_does_not_arm_what_a_later_one_has_decided_about() {
    let server = MasterServer::start(&RootKey::generate()).await;
    let (mut stopped, mut later) = (server.admin().await, server.admin().await);
    let decided = stopped.facts().await.unwrap();
    // The later leader arms it, clients take locks, and all of it is flushed.
    let facts = later.facts().await.unwrap();
    later.arm(&facts, &server.clients(&["tests"]), CAP).await.unwrap();
    let () = server.as_client("tests", "SET redlock:tests/a x").await.unwrap();
    let () = server.as_operator("FLUSHALL").await;
    assert!(is_cancelled(&stopped.arm(&decided, &server.clients(&["tests"]), CAP).await));
    assert!(!server.facts().await.is_armed());
    // A decision alone, which nothing has come of yet, cancels the earlier as well.
    let server = MasterServer::start(&RootKey::generate()).await;
    let (mut stopped, mut later) = (server.admin().await, server.admin().await);
    let decided = stopped.facts().await.unwrap();
    let _ = later.facts().await.unwrap();
    assert!(is_cancelled(&stopped.arm(&decided, &server.clients(&["tests"]), CAP).await));
    assert!(is_closed(&server).await);
}

#[tokio::test]
async fn a_decision_is_carried_out_once() {
    let server = MasterServer::start(&RootKey::generate()).await;
    let mut admin = server.admin().await;
    let facts = admin.facts().await.unwrap();
    admin.arm(&facts, &server.clients(&["tests"]), CAP).await.unwrap();
    assert_eq!(server.as_operator::<Option<String>>("GET redlock:arming").await, None);
    let () = server.as_operator("FLUSHALL").await;
    let again = admin.arm(&facts, &server.clients(&["tests"]), CAP).await;
    assert!(matches!(again, Err(ArmError::NotSent(_))), "{again:?}");
}

#[tokio::test]
async fn a_disarmed_server_cuts_its_clients_off_and_is_never_armed_again() {
    let server = MasterServer::start(&RootKey::generate()).await;
    server.arm(&["tests"]).await;
    let mut client = server.client("tests").await.expect("logged in");
    let mut admin = server.admin().await;
    let armed = admin.facts().await.unwrap();
    admin.disarm("its clock stands still").await.unwrap();
    assert!(redis::cmd("PING").exec_async(&mut client).await.is_err(), "its connection is gone");
    let facts = server.facts().await;
    assert_eq!(facts.unfit.as_deref(), Some("its clock stands still"));
    assert!(!facts.is_armed() && facts.namespaces.is_empty());
    assert!(admin.maintain(&armed, &server.clients(&["tests"]), CAP).await.is_err());
    assert!(is_closed(&server).await);
}

#[tokio::test]
async fn a_full_server_is_disarmed_all_the_same() {
    let server = MasterServer::start(&RootKey::generate()).await;
    server.arm(&["tests"]).await;
    let () = server.as_operator("CONFIG SET maxmemory 1").await;
    server.admin().await.disarm("it is full").await.unwrap();
    assert!(is_closed(&server).await);
}

#[tokio::test]
async fn a_replica_of_an_armed_server_makes_it_unfit_and_so_does_a_policy_that_is_set_later() {
    let server = MasterServer::start(&RootKey::generate()).await;
    server.arm(&["tests"]).await;
    let mut admin = server.admin().await;
    assert_eq!(admin.poll().await.unwrap().unfit, None);
    let () = server.as_operator("CONFIG SET maxmemory-policy allkeys-lru").await;
    assert!(admin.poll().await.unwrap().unfit.unwrap().contains("allkeys-lru"));
    let () = server.as_operator("CONFIG SET maxmemory-policy noeviction").await;
    let replica = Server::start(&[]).await;
    let _: String = replica.run("CONFIG SET masteruser operator").await;
    let _: String = replica.run(&format!("CONFIG SET masterauth {}", server.key.operator_password().expose())).await;
    let _: String = replica.run(&format!("REPLICAOF 127.0.0.1 {}", server.port)).await;
    let unfit = eventually("the replica is connected", async || server.facts().await.unfit).await;
    assert!(unfit.contains("1 connected replicas"), "{unfit}");
}

#[tokio::test]
async fn a_server_on_which_scripts_cannot_run_is_not_fit() {
    let server = MasterServer::start(&RootKey::generate()).await;
    let () = server.as_operator("ACL SETUSER operator -eval").await;
    let unfit = server.facts().await.unfit.expect("unfit");
    assert!(unfit.contains("cannot run scripts"), "{unfit}");
}

#[tokio::test]
async fn a_server_that_was_started_for_another_pod_is_not_taken_for_this_one() {
    let server = MasterServer::start(&RootKey::generate()).await;
    let password = server.key.operator_password();
    let connect = |pod_uid| Admin::connect_to_pod("127.0.0.1", server.port, pod_uid, &password);
    connect(POD_UID).await.expect("its own");
    let error = connect("11111111-2222-3333-4444-777777777777").await.unwrap_err();
    assert!(matches!(&error, AdminError::Unreachable(why) if why.contains("another pod")), "{error}");
    // Nobody can make it another's while it runs.
    let changed = server.run::<redis::Value>("operator", password.expose(), "CONFIG SET syslog-ident x").await;
    assert!(changed.is_err(), "{changed:?}");
}

#[tokio::test]
async fn a_server_whose_clock_stands_still_is_not_armed() {
    let clock = Clock::right();
    clock.stop();
    let server = MasterServer::start_in(&RootKey::generate(), &clock.environment()).await;
    assert_eq!(server.facts().await.unfit, Some(ClockFault::Stopped.to_string()));
    clock.jump(3600);
    let ahead = eventually("its clock runs", async || Some(server.facts().await).filter(|facts| facts.unfit.is_none()));
    let ahead = ahead.await.clock.ahead();
    assert!((3590..3610).contains(&ahead.as_secs()), "{ahead:?}");
}

#[tokio::test]
async fn a_raw_client_gets_no_vote_from_a_server_that_is_not_armed() {
    let server = MasterServer::start(&RootKey::generate()).await;
    let set = "SET redlock:tests/a someone NX PX 30000";
    let refused = async || {
        let error = server.as_client::<redis::Value>("tests", set).await.expect_err("no vote");
        assert!(error.kind() == redis::ErrorKind::AuthenticationFailed || error.code() == Some("WRONGPASS"), "{error}");
    };
    refused().await;
    let _ = server.facts().await;
    refused().await;
    let anonymous = redis::Client::open(format!("redis://127.0.0.1:{}", server.port)).unwrap();
    let mut anonymous = anonymous.get_multiplexed_async_connection().await.unwrap();
    let error = redis::cmd("SET").arg(&["redlock:tests/a", "x", "NX"]).exec_async(&mut anonymous).await.unwrap_err();
    assert_eq!(error.code(), Some("NOAUTH"));
    server.arm(&["tests"]).await;
    assert_eq!(server.as_client::<String>("tests", set).await.unwrap(), "OK");
}

#[tokio::test]
async fn clients_of_builtin_scripts_use_locks_and_run_no_script_of_their_own() {
    let mut server = MasterServer::start(&RootKey::generate()).await;
    server.arm(&["tests"]).await;
    assert_eq!(server.as_client::<i64>("tests", "EVAL return(7) 0").await.unwrap(), 7);
    let cached = redis::Script::new("return(7)").get_hash().to_owned();
    assert_eq!(server.as_client::<i64>("tests", &format!("EVALSHA {cached} 0")).await.unwrap(), 7);
    // The cluster's spec changes while it is armed.
    server.scripts = ClientScripts::Builtin;
    let mut admin = server.admin().await;
    let facts = admin.facts().await.unwrap();
    admin.maintain(&facts, &server.clients(&["tests"]), CAP).await.unwrap();
    for (command, code) in [
        ("EVAL return(7) 0".to_owned(), "NOPERM"),
        (format!("EVALSHA {cached} 0"), "NOSCRIPT"),
        ("SCRIPT LOAD return(7)".to_owned(), "NOPERM"),
    ] {
        let error = server.as_client::<redis::Value>("tests", &command).await.expect_err(&command);
        assert_eq!(error.code(), Some(code), "{command}: {error}");
    }
    let client = Client::new([server.master("tests")], CALL_TIMEOUT).expect("valid settings");
    let (key, options) = (LockKey::new("tests", "a").unwrap(), LeaseOptions::new("one", Duration::from_secs(5)));
    let granted = eventually("granted", async || client.try_acquire(&key, &options).await.ok());
    granted.await.release().await;
    let held = server.as_operator::<Option<String>>("GET redlock:tests/a");
    assert_eq!(held.await, None, "released by a script that the operator loaded");
    // They are missed after a flush, and loaded again.
    let () = server.as_operator("SCRIPT FLUSH").await;
    assert!(!admin.poll().await.unwrap().has_scripts);
    admin.load_scripts().await.unwrap();
    assert!(admin.poll().await.unwrap().has_scripts);
}
