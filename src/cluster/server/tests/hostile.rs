//! Sixty commands by which the client of a namespace could harm others, on a real server, and what each is answered.
//!
//! The few that are allowed show what remains: docs/security.md says what one tenant can still do to another.

use redlock_test_servers::server::request;

use super::harness::MasterServer;
use crate::api::cluster::ClientScripts;
use crate::contract::credentials::RootKey;

/// What a command is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// No permission, for the command, a key or a channel.
    NoPermission,
    /// The same, inside a script: the script fails and nothing is done. Without EVAL, as [`Answer::NoPermission`].
    ScriptFails,
    /// A wrong user or password.
    WrongPassword,
    /// The server has it switched off.
    SwitchedOff,
    /// It is done.
    Done,
}
use Answer::{Done, NoPermission, ScriptFails, SwitchedOff, WrongPassword};

/// The commands, as the client of `tests`. `billing` is another namespace of the cluster.
const COMMANDS: [(&str, Answer); 60] = [
    // Administration.
    ("CONFIG GET *", NoPermission),
    ("CONFIG SET maxmemory-policy allkeys-lru", NoPermission),
    ("CONFIG RESETSTAT", NoPermission),
    ("CONFIG REWRITE", NoPermission),
    ("DEBUG SLEEP 10", SwitchedOff),
    ("SHUTDOWN NOSAVE", NoPermission),
    ("REPLICAOF 127.0.0.1 1", NoPermission),
    ("FAILOVER", NoPermission),
    ("SYNC", NoPermission),
    ("PSYNC ? -1", NoPermission),
    ("MODULE LOAD /tmp/x.so", SwitchedOff),
    ("CLUSTER RESET", NoPermission),
    ("LATENCY RESET", NoPermission),
    ("SLOWLOG GET", NoPermission),
    ("MEMORY PURGE", NoPermission),
    ("SAVE", NoPermission),
    ("BGREWRITEAOF", NoPermission),
    ("SWAPDB 0 0", NoPermission),
    ("SELECT 0", NoPermission),
    // Users and connections.
    ("ACL LIST", NoPermission),
    ("ACL SETUSER ns-tests allcommands", NoPermission),
    ("ACL DELUSER ns-billing", NoPermission),
    ("AUTH operator guess", WrongPassword),
    ("AUTH ns-billing guess", WrongPassword),
    ("HELLO 3 AUTH operator guess", WrongPassword),
    ("CLIENT LIST", NoPermission),
    ("CLIENT KILL TYPE normal", NoPermission),
    ("CLIENT PAUSE 10000", NoPermission),
    ("CLIENT NO-EVICT on", NoPermission),
    ("MONITOR", NoPermission),
    // It logs its own connection out, and no more.
    ("RESET", Done),
    // The whole server.
    ("FLUSHALL", NoPermission),
    ("FLUSHDB", NoPermission),
    ("KEYS *", NoPermission),
    ("SCAN 0", NoPermission),
    ("RANDOMKEY", NoPermission),
    ("DBSIZE", NoPermission),
    ("WAIT 1 10000", NoPermission),
    ("BLPOP redlock:tests/a 0", NoPermission),
    // Locks, fences and queues of others.
    ("GET redlock:billing/a", NoPermission),
    ("SET redlock:billing/a x", NoPermission),
    ("DEL redlock:tests/a redlock:billing/a", NoPermission),
    ("ZADD redlock:billing#fences 9007199254740991 redlock:billing/a", NoPermission),
    ("ZPOPMIN redlock:billing#queue/a", NoPermission),
    ("SET session:1 x", NoPermission),
    // The marker, and the operator's own keys.
    ("SET redlock:armed x", NoPermission),
    ("DEL redlock:armed", NoPermission),
    ("PEXPIRE redlock:armed 1", NoPermission),
    ("RENAME redlock:armed redlock:tests/a", NoPermission),
    ("COPY redlock:armed redlock:tests/a", NoPermission),
    ("GET redlock:arming", NoPermission),
    ("SET redlock:disarmed x", NoPermission),
    // Channels of others.
    ("PUBLISH redlock:billing/a released", NoPermission),
    ("SUBSCRIBE redlock:billing/a", NoPermission),
    ("PSUBSCRIBE *", NoPermission),
    // Scripts.
    ("SCRIPT FLUSH", NoPermission),
    ("FUNCTION LOAD #!lua", NoPermission),
    ("EVAL return(redis.call('GET','redlock:billing/a')) 0", ScriptFails),
    ("EVAL return(redis.call('DEL','redlock:armed')) 0", ScriptFails),
    ("INFO", Done),
];

#[tokio::test]
async fn sixty_hostile_commands_are_answered_as_documented_whichever_scripts_clients_may_run() {
    for scripts in [ClientScripts::Any, ClientScripts::Builtin] {
        let mut server = MasterServer::start(&RootKey::generate()).await;
        server.scripts = scripts;
        server.arm(&["tests", "billing"]).await;
        let () = server.as_client("billing", "SET redlock:billing/a theirs").await.unwrap();
        let before = server.facts().await;
        for (command, expected) in COMMANDS {
            let answered = server.as_client::<redis::Value>("tests", command).await;
            let code = answered.as_ref().err().and_then(redis::RedisError::code).unwrap_or_default();
            let answer = match &answered {
                Ok(_) => Done,
                Err(_) if code == "NOPERM" => NoPermission,
                Err(_) if code == "WRONGPASS" => WrongPassword,
                Err(error) if error.to_string().contains("command not allowed") => SwitchedOff,
                Err(error) if error.to_string().contains("The user executing the script") => ScriptFails,
                Err(error) => panic!("{scripts:?}: {command}: {error}"),
            };
            let refused_before = scripts == ClientScripts::Builtin && expected == ScriptFails;
            assert_eq!(answer, if refused_before { NoPermission } else { expected }, "{scripts:?}: {command}");
        }
        let after = server.facts().await;
        assert!(after.is_armed() && after.unfit.is_none(), "{after:?}");
        assert_eq!((after.marker, after.namespaces), (before.marker, before.namespaces));
        assert_eq!(server.as_client::<String>("billing", "GET redlock:billing/a").await.unwrap(), "theirs");
    }
}

#[tokio::test]
async fn an_argument_has_at_most_a_mebibyte_and_the_buffers_of_clients_three_fifths_of_the_memory() {
    let server = MasterServer::start(&RootKey::generate()).await;
    server.arm(&["tests"]).await;
    let huge = "x".repeat((1 << 20) + 1);
    let mut client = server.client("tests").await.expect("logged in");
    let refused = redis::cmd("SET").arg("redlock:tests/a").arg(&huge).exec_async(&mut client).await.unwrap_err();
    assert!(refused.to_string().contains("bulk length") || refused.is_connection_dropped(), "{refused}");
    // Many smaller arguments: the buffers of all clients have three fifths of 64 MB, and the largest is closed first.
    let mut client = server.client("tests").await.expect("logged in");
    let mut many = request("DEL");
    many.arg(vec![format!("redlock:tests/{}", "a".repeat(10_000)); 6_000]);
    let refused = many.exec_async(&mut client).await.expect_err("60 MB of arguments");
    assert!(refused.is_io_error() || refused.is_connection_dropped(), "{refused}");
    assert_eq!(server.as_client::<String>("tests", "PING").await.unwrap(), "PONG");
}

#[tokio::test]
async fn what_one_tenant_can_still_do_to_the_others_is_what_the_documentation_says() {
    let server = MasterServer::start(&RootKey::generate()).await;
    server.arm(&["tests", "billing"]).await;
    let () = server.as_client("billing", "SET redlock:billing/held x").await.unwrap();
    // It fills the memory: nobody gets a new lock, and no held one is forgotten.
    let () = server.as_operator("CONFIG SET maxmemory 4mb").await;
    let value = "x".repeat(100_000);
    let mut client = server.client("tests").await.expect("logged in");
    let full = loop {
        let key = format!("redlock:tests/{}", rand::random::<u64>());
        if let Err(error) = redis::cmd("SET").arg(key).arg(&value).exec_async(&mut client).await {
            break error;
        }
    };
    assert_eq!(full.code(), Some("OOM"));
    let refused = server.as_client::<String>("billing", "SET redlock:billing/new x").await.unwrap_err();
    assert_eq!(refused.code(), Some("OOM"));
    assert_eq!(server.as_client::<String>("billing", "GET redlock:billing/held").await.unwrap(), "x");
    assert_eq!(server.as_client::<i64>("billing", "DEL redlock:billing/held").await.unwrap(), 1);
    assert!(server.facts().await.is_armed());
    // It takes all connections.
    let () = server.as_operator("CONFIG SET maxclients 8").await;
    let mut taken = Vec::new();
    while let Ok(client) = server.client("tests").await {
        taken.push(client);
    }
    assert!(server.client("billing").await.is_err());
    drop(taken);
}
