//! The operator's side of a master on real Redis servers, which run with the configuration file of a cluster's pods.

use std::time::Duration;

use redlock_engine::{
    Address, Client, Credentials, Endpoint, LeaseOptions, LeaseState, LockKey, Marker, MasterError, Reason,
    RedisMaster, Released, Renewal, Wait,
};
use redlock_test_servers::server::{
    CALL_TIMEOUT, CAP, PATIENCE, eventually, has_started, on_free_port, redis_server, request,
};
use tempfile::TempDir;
use tokio::process::Child;

use super::acl::Clients;
use super::arm::ArmError;
use super::fitness::Facts;
use super::{Admin, AdminError};
use crate::cluster::build::conf::redis_conf;
use crate::contract::credentials::{Password, RootKey};
use crate::contract::names::{EVERY_NAMESPACE, client_user};

/// A server as a master's pod runs it, except for its port and folder.
struct MasterServer {
    key: RootKey,
    port: u16,
    folder: TempDir,
    process: Child,
}

impl MasterServer {
    async fn start(key: &RootKey) -> Self {
        on_free_port(async |port| {
            let folder = tempfile::tempdir().expect("a folder for the server");
            // The data folder of a pod does not exist here, and the server changes to it as soon as it reads the line.
            let conf = redis_conf(&key.operator_password(), 64 << 20);
            let conf = conf.replace("\ndir /data\n", &format!("\ndir {}\n", folder.path().display()));
            std::fs::write(folder.path().join("redis.conf"), conf).expect("the configuration file");
            let mut server = Self { key: key.clone(), port, process: spawn(port, &folder), folder };
            server.has_started().await.then_some(server)
        })
        .await
    }

    async fn has_started(&mut self) -> bool {
        let (port, password) = (self.port, self.key.operator_password());
        has_started(&mut self.process, async || {
            // Another test's server on this port would refuse this password.
            match Admin::connect("127.0.0.1", port, &password).await {
                Ok(_) => Some(true),
                Err(AdminError::Unreachable(_)) => None,
                Err(_) => Some(false),
            }
        })
        .await
    }

    async fn admin(&self) -> Admin {
        Admin::connect("127.0.0.1", self.port, &self.key.operator_password()).await.expect("the operator logs in")
    }

    async fn facts(&self) -> Facts {
        self.admin().await.facts().await.expect("facts")
    }

    fn clients(&self, namespaces: &[&str]) -> Clients {
        let mut clients = Clients::of(&self.key);
        for &namespace in namespaces {
            clients.admit(namespace, [self.password(namespace)]);
        }
        clients
    }

    /// The password of the clients of a namespace, of the first generation.
    fn password(&self, namespace: &str) -> Password {
        if namespace == EVERY_NAMESPACE {
            return self.key.own_client_password();
        }
        self.key.client_password(&format!("uid of {namespace}"), 1, 1)
    }

    async fn arm(&self, namespaces: &[&str]) {
        let mut admin = self.admin().await;
        let facts = admin.facts().await.expect("facts");
        admin.arm(&facts, &self.clients(namespaces), CAP).await.expect("armed");
    }

    /// Runs a command as `user`, given in words.
    async fn run<T: redis::FromRedisValue>(&self, user: &str, password: &str, command: &str) -> redis::RedisResult<T> {
        let url = format!("redis://{user}:{password}@127.0.0.1:{}", self.port);
        let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        request(command).query_async(&mut connection).await
    }

    async fn as_operator<T: redis::FromRedisValue>(&self, command: &str) -> T {
        let password = self.key.operator_password();
        self.run("operator", password.expose(), command).await.unwrap_or_else(|e| panic!("{command}: {e}"))
    }

    async fn as_client<T: redis::FromRedisValue>(&self, namespace: &str, command: &str) -> redis::RedisResult<T> {
        let password = self.password(namespace);
        self.run(&client_user(namespace), password.expose(), command).await
    }

    fn master(&self, namespace: &str) -> RedisMaster {
        let credentials = Credentials::Password {
            username: client_user(namespace),
            password: self.password(namespace).expose().to_owned(),
        };
        let address = Address::Tcp("127.0.0.1".to_owned(), self.port);
        RedisMaster::connect(Endpoint {
            name: format!("r{}", self.port),
            address,
            credentials,
            marker: Marker::Required,
        })
    }
}

fn spawn(port: u16, folder: &TempDir) -> Child {
    redis_server(port, |command| _ = command.arg(folder.path().join("redis.conf")))
}

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
    admin.set_users(&before, &wanted).await.unwrap();
    assert!(wanted.are_known_to(&admin.facts().await.unwrap()));
    assert!(server.as_client::<String>("reports", "PING").await.is_ok());
    assert!(server.as_client::<String>("tests", "PING").await.is_ok());
    assert!(server.as_client::<String>("billing", "PING").await.is_err());
    admin.set_users(&before, &server.clients(&[])).await.unwrap();
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
    admin.set_users(&facts, &server.clients(&["tests"])).await.unwrap();
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
    admin.set_cap(&facts, Duration::from_secs(120)).await.unwrap();
    assert_eq!(admin.facts().await.unwrap().marker.unwrap().cap, Duration::from_secs(120));
    let () = server.as_operator("FLUSHALL").await;
    assert_eq!(admin.check().await.unwrap(), (facts.run_id.clone(), false));
    admin.set_cap(&facts, Duration::from_secs(180)).await.unwrap();
    assert!(!admin.facts().await.unwrap().is_armed());
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
        ("SET session:1 someone", "keys of unknown origin"),
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
    // Keys that clients of this very process have written do not prevent arming it again.
    let _: i64 = server.as_operator("DEL redlock:armed").await;
    assert_eq!(server.facts().await.unfit, None);
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
    assert_eq!((facts.is_armed(), facts.unfit), (false, None), "it may be armed over it");
    assert!(!server.admin().await.check().await.unwrap().1);
}

#[tokio::test]
async fn what_was_read_of_one_process_is_never_used_to_arm_the_next() {
    let key = RootKey::generate();
    let mut server = MasterServer::start(&key).await;
    let mut admin = server.admin().await;
    let facts = admin.facts().await.unwrap();
    server.process.kill().await.expect("SIGKILL to our own child");
    server.process = spawn(server.port, &server.folder);
    assert!(server.has_started().await, "the server did not come back on its port");
    let error = admin.arm(&facts, &server.clients(&["tests"]), CAP).await.unwrap_err();
    assert!(matches!(error, ArmError::NotSent(AdminError::Unreachable(_))), "{error}");
    let fresh = server.facts().await;
    assert!(!fresh.is_armed() && fresh.run_id != facts.run_id && fresh.namespaces.is_empty(), "{fresh:?}");
}

/// A connection that is logged in as the clients of `tests`.
async fn logged_in(
    server: &MasterServer,
    password: &Password,
) -> redis::RedisResult<redis::aio::MultiplexedConnection> {
    let url = format!("redis://{}:{}@127.0.0.1:{}", client_user("tests"), password.expose(), server.port);
    redis::Client::open(url)?.get_multiplexed_async_connection().await
}

async fn works(connection: &mut redis::aio::MultiplexedConnection) -> bool {
    redis::cmd("GET").arg("redlock:tests/a").exec_async(connection).await.is_ok()
}

#[tokio::test]
async fn two_passwords_are_valid_while_one_replaces_the_other_and_then_nobody_stays_with_the_former() {
    let server = MasterServer::start(&RootKey::generate()).await;
    server.arm(&["tests"]).await;
    let (old, new) = (server.password("tests"), server.key.client_password("uid of tests", 2, 1));
    let clients = |passwords: &[&Password]| {
        let mut clients = Clients::of(&server.key);
        clients.admit("tests", passwords.iter().map(|&password| password.clone()));
        clients
    };
    let mut early = logged_in(&server, &old).await.unwrap();
    let mut admin = server.admin().await;
    let both = clients(&[&old, &new]);
    admin.set_users(&admin.clone().facts().await.unwrap(), &both).await.unwrap();
    let facts = admin.facts().await.unwrap();
    assert!(both.are_known_to(&facts));
    assert!(
        works(&mut early).await && logged_in(&server, &old).await.is_ok() && logged_in(&server, &new).await.is_ok()
    );

    let only = clients(&[&new]);
    assert!(only.replace_passwords_of(&facts) && !only.revoke_passwords_of(&facts));
    admin.set_users(&facts, &only).await.unwrap();
    assert!(only.are_known_to(&admin.facts().await.unwrap()));
    assert!(!works(&mut early).await, "it was logged in with the former password");
    assert!(logged_in(&server, &old).await.is_err());
    assert!(works(&mut logged_in(&server, &new).await.unwrap()).await);
}

#[tokio::test]
async fn a_revoked_password_stops_working_at_once_also_where_it_is_logged_in() {
    let server = MasterServer::start(&RootKey::generate()).await;
    server.arm(&["tests", "billing"]).await;
    let (old, new) = (server.password("tests"), server.key.client_password("uid of tests", 1, 2));
    let mut revoked = Clients::of(&server.key);
    revoked.admit("tests", [new.clone()]);
    revoked.admit("billing", [server.password("billing")]);
    let mut connection = logged_in(&server, &old).await.unwrap();
    let mut admin = server.admin().await;
    let facts = admin.facts().await.unwrap();
    assert!(revoked.revoke_passwords_of(&facts));
    admin.set_users(&facts, &revoked).await.unwrap();
    assert!(!works(&mut connection).await && logged_in(&server, &old).await.is_err());
    assert!(logged_in(&server, &new).await.is_ok() && server.as_client::<String>("billing", "PING").await.is_ok());
}
