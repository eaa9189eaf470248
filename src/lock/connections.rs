//! One engine client per `RedisLockCluster`, shared by all locks of the cluster.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use redlock_engine::redis_master::Health;
use redlock_engine::{Address, ClientError, Credentials, Endpoint, Marker, RedisMaster};
use tokio::time::{Instant, sleep};

use super::measured_master::MeasuredMaster;
use crate::api::RedisLockCluster;
use crate::contract::credentials::{Password, RootKey, UnusableKey};
use crate::contract::names::{self, EVERY_NAMESPACE, REDIS_PORT};
use crate::operator::api_server::{ApiServer, Error};
use crate::operator::metrics::Metrics;

/// How long a cluster's root key is used before its Secret is read again.
const MAX_AGE: Duration = Duration::from_mins(10);
/// The same while masters refuse the password that is derived from the key.
const MIN_AGE: Duration = Duration::from_secs(5);
/// How long the first call waits for connections.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the connections are checked meanwhile.
const SETTLE_POLL: Duration = Duration::from_millis(5);

/// A client whose calls are counted.
pub(crate) type Client = redlock_engine::Client<MeasuredMaster>;

/// The engine client of one cluster.
#[derive(Debug)]
pub(crate) struct Engine {
    client: Client,
    root: RootKey,
    is_refused: AtomicBool,
}

/// Why there is no connection to a cluster that exists.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Unconnected {
    /// The cluster's Secret does not exist (yet).
    #[error(
        "the Secret {0} is not there: the operator creates it with the cluster, whose condition ConfigValid says so if it is lost"
    )]
    SecretNotFound(String),
    /// The cluster's Secret has no usable key.
    #[error("{0}: restore it from a backup, or create the cluster anew")]
    SecretInvalid(UnusableKey),
    /// The cluster's spec is none with which an engine can work. (Its CRD refuses that.)
    #[error("the spec of the cluster cannot work: {0}")]
    ClusterInvalid(ClientError),
}

/// What a connection is made from. When this changes, a new connection is made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ConnectionSettings {
    name: String,
    namespace: String,
    masters: usize,
    call_timeout: Duration,
    root: RootKey,
}

/// The connection to one cluster.
struct Connection {
    settings: ConnectionSettings,
    engine: Arc<Engine>,
    /// When the root key was last read.
    read_at: Instant,
}

/// The connections, by UID of their cluster.
pub(crate) struct Connections {
    api: ApiServer,
    metrics: Metrics,
    by_cluster: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Option<Connection>>>>>,
}

// === impl Unconnected ===

impl Unconnected {
    /// The reason as a bounded word.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::SecretNotFound(_) => "AuthSecretNotFound",
            Self::SecretInvalid(_) => "AuthSecretInvalid",
            Self::ClusterInvalid(_) => "ClusterInvalid",
        }
    }
}

// === impl Engine ===

impl Engine {
    /// An engine of these masters. The passwords of clients are derived from `root`.
    pub(crate) fn new(client: Client, root: RootKey) -> Self {
        Self { client, root, is_refused: AtomicBool::new(false) }
    }

    /// The client of the masters.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The password of the clients in the namespace with this name and uid that is in force on `cluster`.
    pub(crate) fn client_password(&self, cluster: &RedisLockCluster, namespace: &str, uid: &str) -> Password {
        let generation = cluster.client_generation();
        self.root.client_password(uid, generation, cluster.spec.namespace_generation(namespace))
    }

    /// Reports that masters refuse the operator's password, so that the root key is read again.
    pub(crate) fn report_refused_credentials(&self) {
        self.is_refused.store(true, Ordering::Relaxed);
    }

    /// Waits until each master is connected or known to be down, at most 1 s: otherwise the first call would fail, and
    /// status would show trouble where there is none.
    pub(crate) async fn settled(&self) {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        let is_connecting = || self.client.masters().iter().any(|master| master.health() == Health::Connecting);
        while Instant::now() < deadline && is_connecting() {
            sleep(SETTLE_POLL).await;
        }
    }
}

// === impl ConnectionSettings ===

impl ConnectionSettings {
    fn of(cluster: &RedisLockCluster, root: RootKey) -> Self {
        Self {
            name: cluster.name_any(),
            namespace: cluster.namespace().unwrap_or_default(),
            masters: usize::try_from(cluster.spec.masters).unwrap_or(0),
            call_timeout: cluster.spec.call_timeout(),
            root,
        }
    }

    fn connect(&self, metrics: &Metrics) -> Result<Engine, ClientError> {
        let password = self.root.own_client_password();
        let master = |index| {
            let name = names::master(&self.name, index);
            let calls = metrics.master_calls(&self.namespace, &self.name, &name);
            let master = RedisMaster::connect(Endpoint {
                address: Address::Tcp(host(&names::address(&name, &self.namespace)), REDIS_PORT),
                name,
                credentials: Credentials::Password {
                    username: names::client_user(EVERY_NAMESPACE),
                    password: password.expose().to_owned(),
                },
                marker: Marker::Required,
            });
            MeasuredMaster::new(master, calls)
        };
        let client = Client::new((0..self.masters).map(master), self.call_timeout)?;
        Ok(Engine::new(client, self.root.clone()))
    }
}

/// The host in `address`, which is `host:port`.
fn host(address: &str) -> String {
    address.rsplit_once(':').map_or(address, |(host, _)| host).to_owned()
}

// === impl Connection ===

impl Connection {
    /// Whether the root key must be read again.
    fn is_due(&self) -> bool {
        let max = if self.engine.is_refused.load(Ordering::Relaxed) { MIN_AGE } else { MAX_AGE };
        self.read_at.elapsed() >= max
    }
}

// === impl Connections ===

impl Connections {
    /// No connections yet. Secrets are read by `api`, and calls counted in `metrics`.
    pub(crate) fn new(api: ApiServer, metrics: Metrics) -> Self {
        Self { api, metrics, by_cluster: Mutex::default() }
    }

    /// The engine of `cluster`: the present one, unless the cluster's root key or its settings changed.
    ///
    /// The outer error is the API server's. It says nothing about the cluster, and the call should be retried.
    pub(crate) async fn engine(&self, cluster: &RedisLockCluster) -> Result<Result<Arc<Engine>, Unconnected>, Error> {
        let uid = cluster.uid().unwrap_or_default();
        let entry = Arc::clone(self.by_cluster.lock().unwrap_or_else(PoisonError::into_inner).entry(uid).or_default());
        // Locked while the Secret is read: a thousand locks of one cluster read it once.
        let mut entry = entry.lock().await;
        let root = match &*entry {
            Some(known) if !known.is_due() => known.settings.root.clone(),
            // The connections work: they are kept while the Secret cannot be read.
            Some(known) => match self.read_root_key(cluster).await {
                Ok(Ok(root)) => root,
                Ok(Err(_)) | Err(_) => known.settings.root.clone(),
            },
            None => match self.read_root_key(cluster).await? {
                Ok(root) => root,
                Err(missing) => return Ok(Err(missing)),
            },
        };
        let settings = ConnectionSettings::of(cluster, root);
        let engine = match &mut *entry {
            Some(known) if known.settings == settings => {
                if known.is_due() {
                    known.read_at = Instant::now();
                    known.engine.is_refused.store(false, Ordering::Relaxed);
                }
                Arc::clone(&known.engine)
            }
            other => {
                let engine = match settings.connect(&self.metrics) {
                    Ok(engine) => Arc::new(engine),
                    Err(why) => return Ok(Err(Unconnected::ClusterInvalid(why))),
                };
                *other = Some(Connection { settings, engine: Arc::clone(&engine), read_at: Instant::now() });
                engine
            }
        };
        Ok(Ok(engine))
    }

    /// Forgets every cluster that does not exist. A connection is closed when its last actor has dropped it.
    pub(crate) fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.by_cluster.lock().unwrap_or_else(PoisonError::into_inner).retain(|uid, _| exists(uid));
    }

    async fn read_root_key(&self, cluster: &RedisLockCluster) -> Result<Result<RootKey, Unconnected>, Error> {
        let name = names::auth_secret(&cluster.name_any());
        let secret = self.api.get::<Secret>(&cluster.namespace().unwrap_or_default(), &name).await?;
        let Some(secret) = secret else { return Ok(Err(Unconnected::SecretNotFound(name))) };
        Ok(RootKey::from_secret(&secret).map_err(Unconnected::SecretInvalid))
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}
