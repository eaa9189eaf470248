//! Direct connections to the masters of a cluster, as the operator's user.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue, RedisConnectionInfo, cmd};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::{Env, forward};

/// The masters of a `RedisLockCluster`.
#[derive(Clone)]
pub struct Masters {
    pods: Api<Pod>,
    cluster: String,
    password: String,
    /// How many there are.
    pub count: usize,
}

/// A connection to one master.
pub struct Connection {
    connection: MultiplexedConnection,
    driver: JoinHandle<()>,
}

/// A key on a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The key's value.
    pub owner: String,
    /// The rest of its TTL on the master's clock.
    pub left: Duration,
}

impl Masters {
    /// The masters of the cluster `name`, once the operator has created their credentials.
    pub async fn of(env: &Env, name: &str, count: usize) -> Self {
        let key = root_key(env, name).await;
        Self { pods: env.api(), cluster: name.to_owned(), password: password(&key, "operator"), count }
    }

    /// The pod of the master `index`.
    pub fn pod(&self, index: usize) -> String {
        format!("{}-{index}", self.cluster)
    }

    /// Connects to the master `index`.
    pub async fn connect(&self, index: usize) -> Result<Connection, String> {
        let name = self.pod(index);
        let stream = forward::connect(&self.pods, &name, 6379).await?;
        self.log_in(&name, stream).await
    }

    /// Connects to the server at an address, whatever became of its pod's object. On the local cluster only.
    pub async fn connect_to(&self, ip: &str) -> Result<Connection, String> {
        let stream = TcpStream::connect((ip, 6379)).await.map_err(|error| format!("{ip}: {error}"))?;
        self.log_in(ip, stream).await
    }

    async fn log_in<S>(&self, name: &str, stream: S) -> Result<Connection, String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let login = RedisConnectionInfo::default().set_username("operator").set_password(&self.password);
        let timeouts = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(2)));
        let connecting = MultiplexedConnection::new_with_config(&login, stream, timeouts);
        let (connection, driver) = tokio::time::timeout(Duration::from_secs(5), connecting)
            .await
            .map_err(|_| format!("{name}: no login in time"))?
            .map_err(|error| format!("{name}: {error}"))?;
        Ok(Connection { connection, driver: tokio::spawn(driver) })
    }

    /// `key` on each master; an error if the master cannot be asked.
    pub async fn read(&self, key: &str) -> Vec<Result<Option<Owned>, String>> {
        let each = (0..self.count).map(|index| async move { self.connect(index).await?.read(key).await });
        futures::future::join_all(each).await
    }
}

impl Connection {
    /// Who owns `key`, and for how long.
    pub async fn read(&mut self, key: &str) -> Result<Option<Owned>, String> {
        let mut both = redis::pipe();
        both.atomic().get(key).pttl(key);
        let (owner, left): (Option<String>, i64) =
            both.query_async(&mut self.connection).await.map_err(|e| e.to_string())?;
        let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
        Ok(owner.map(|owner| Owned { owner, left }))
    }

    /// Any command.
    pub async fn command<T: FromRedisValue>(&mut self, words: &[&str]) -> Result<T, String> {
        let mut command = cmd(words[0]);
        words[1..].iter().for_each(|word| {
            command.arg(*word);
        });
        command.query_async(&mut self.connection).await.map_err(|e| e.to_string())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The root key of the cluster `name`, as its Secret has it.
pub async fn root_key(env: &Env, name: &str) -> String {
    let secrets: Api<Secret> = env.api();
    let has_key = |s: &Secret| s.data.as_ref().is_some_and(|d| d.contains_key("key"));
    let secret = super::wait::until(&secrets, &format!("{name}-auth"), "made", has_key).await;
    String::from_utf8(secret.data.unwrap()["key"].0.clone()).expect("a root key is text")
}

/// The password that is derived from a root key for `purpose`.
pub fn password(key: &str, purpose: &str) -> String {
    let key = URL_SAFE_NO_PAD.decode(key).expect("a root key is base64url");
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("HMAC takes a key of any length");
    mac.update(purpose.as_bytes());
    URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())
}
