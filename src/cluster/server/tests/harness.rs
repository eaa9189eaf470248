//! A master's server as a test runs it.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use redlock_engine::{Address, Credentials, Endpoint, Marker, RedisMaster};
use redlock_test_servers::server::{CAP, PATIENCE, has_started, on_free_port, redis_server, request};
use tempfile::TempDir;
use tokio::process::Child;

use crate::api::cluster::ClientScripts;
use crate::cluster::build::conf::{FOLDER, redis_conf};
use crate::cluster::server::acl::Clients;
use crate::cluster::server::fitness::Facts;
use crate::cluster::server::{Admin, AdminError, IDENTITY_DIRECTIVE};
use crate::contract::credentials::{Password, RootKey};
use crate::contract::names::{EVERY_NAMESPACE, client_user};

/// The uid of the pod for which each server says that it was started.
pub(crate) const POD_UID: &str = "11111111-2222-3333-4444-666666666666";

/// A folder to which not even root can write.
pub(crate) const UNWRITABLE: &str = "/proc";

/// A server as a master's pod runs it, except for its port and folder.
pub(crate) struct MasterServer {
    pub(crate) key: RootKey,
    pub(crate) port: u16,
    folder: TempDir,
    process: Child,
    /// Which scripts the clients may run with whom it is armed.
    pub(crate) scripts: ClientScripts,
}

impl MasterServer {
    pub(crate) async fn start(key: &RootKey) -> Self {
        Self::start_in(key, &[]).await
    }

    /// The same, with environment variables.
    pub(crate) async fn start_in(key: &RootKey, environment: &[(&'static str, String)]) -> Self {
        on_free_port(async |port| {
            let folder = tempfile::tempdir().expect("a folder for the server");
            // The folder of a pod does not exist here. Nobody can write to it either.
            let conf = redis_conf(&key.operator_password(), 64 << 20);
            let conf = conf.replace(&format!("\ndir {FOLDER}\n"), &format!("\ndir {UNWRITABLE}\n"));
            std::fs::write(folder.path().join("redis.conf"), conf).expect("the configuration file");
            let process = spawn(port, &folder, environment);
            let mut server = Self { key: key.clone(), port, process, folder, scripts: ClientScripts::Any };
            server.has_started().await.then_some(server)
        })
        .await
    }

    pub(crate) async fn has_started(&mut self) -> bool {
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

    pub(crate) async fn admin(&self) -> Admin {
        Admin::connect("127.0.0.1", self.port, &self.key.operator_password()).await.expect("the operator logs in")
    }

    pub(crate) async fn facts(&self) -> Facts {
        self.admin().await.facts().await.expect("facts")
    }

    pub(crate) fn clients(&self, namespaces: &[&str]) -> Clients {
        let mut clients = Clients::of(&self.key, self.scripts);
        for &namespace in namespaces {
            clients.admit(namespace, [self.password(namespace)]);
        }
        clients
    }

    /// The password of the clients of a namespace, of the first generation.
    pub(crate) fn password(&self, namespace: &str) -> Password {
        if namespace == EVERY_NAMESPACE {
            return self.key.own_client_password();
        }
        self.key.client_password(&format!("uid of {namespace}"), 1, 1)
    }

    pub(crate) async fn arm(&self, namespaces: &[&str]) {
        let mut admin = self.admin().await;
        let facts = admin.facts().await.expect("facts");
        admin.arm(&facts, &self.clients(namespaces), CAP).await.expect("armed");
    }

    /// Ends it as a crash does, and starts another process in its place.
    pub(crate) async fn crash_and_restart(&mut self) {
        self.process.kill().await.expect("SIGKILL to our own child");
        self.process = spawn(self.port, &self.folder, &[]);
        assert!(self.has_started().await, "the server did not come back on its port");
    }

    /// Lets it hang: its connections stay open, and it answers nothing.
    pub(crate) fn freeze(&self) {
        let pid = self.process.id().expect("a running server");
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGSTOP).expect("a signal to our own child");
    }

    /// Runs a command as `user`, given in words.
    pub(crate) async fn run<T: redis::FromRedisValue>(
        &self,
        user: &str,
        password: &str,
        command: &str,
    ) -> redis::RedisResult<T> {
        request(command).query_async(&mut self.log_in(user, password).await?).await
    }

    pub(crate) async fn log_in(&self, user: &str, password: &str) -> redis::RedisResult<MultiplexedConnection> {
        let url = format!("redis://{user}:{password}@127.0.0.1:{}", self.port);
        // Longer timeouts than the library's: the machine may be busy.
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE)).set_response_timeout(Some(PATIENCE));
        redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
    }

    /// A connection of a client.
    pub(crate) async fn client(&self, namespace: &str) -> redis::RedisResult<MultiplexedConnection> {
        self.log_in(&client_user(namespace), self.password(namespace).expose()).await
    }

    pub(crate) async fn as_operator<T: redis::FromRedisValue>(&self, command: &str) -> T {
        let password = self.key.operator_password();
        self.run("operator", password.expose(), command).await.unwrap_or_else(|e| panic!("{command}: {e}"))
    }

    pub(crate) async fn as_client<T: redis::FromRedisValue>(
        &self,
        namespace: &str,
        command: &str,
    ) -> redis::RedisResult<T> {
        request(command).query_async(&mut self.client(namespace).await?).await
    }

    pub(crate) fn master(&self, namespace: &str) -> RedisMaster {
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

fn spawn(port: u16, folder: &TempDir, environment: &[(&'static str, String)]) -> Child {
    redis_server(port, |command| {
        let identity = format!("--{IDENTITY_DIRECTIVE}");
        command.arg(folder.path().join("redis.conf")).args([&identity, POD_UID]).envs(environment.iter().cloned());
    })
}
