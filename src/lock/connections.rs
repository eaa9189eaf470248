//! One engine client per `RedisLockCluster`, shared by all of its locks.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};
use tokio::time::{Instant, sleep};

use super::error::{self, Error};
use crate::api::RedisLockCluster;
use crate::contract::credentials::{Password, RootKey, UnusableKey};
use crate::contract::names::{self, EVERY_NAMESPACE, REDIS_PORT};
use redlock_engine::redis_master::Health;
use redlock_engine::{Address, Client, Credentials, Endpoint, Marker, RedisMaster};

/// How old the knowledge of a cluster's root secret may become.
const MAX_AGE: Duration = Duration::from_mins(10);
/// How soon it is read again when masters refuse the password that was made from it.
const MIN_AGE: Duration = Duration::from_secs(5);
/// How long the first connections may take before the first call goes out regardless.
const SETTLING: Duration = Duration::from_secs(1);
/// How often it is looked whether they are made.
const GLANCE: Duration = Duration::from_millis(5);

/// A connected cluster.
#[derive(Debug)]
pub struct Engine {
    client: Client,
    root: RootKey,
    refused: AtomicBool,
}

/// Why a cluster cannot be connected to, although it exists.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Unconnected {
    /// Its Secret is not there (yet).
    #[error("the Secret {0} is not there yet: the operator creates it with the cluster")]
    SecretNotFound(String),
    /// Its Secret has not what is needed.
    #[error("{0}: restore it from a backup, or create the cluster anew")]
    SecretInvalid(UnusableKey),
}

impl Unconnected {
    /// The bounded word for it.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::SecretNotFound(_) => "AuthSecretNotFound",
            Self::SecretInvalid(_) => "AuthSecretInvalid",
        }
    }
}

/// What an engine is made from: another engine is needed when this changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    name: String,
    namespace: String,
    masters: usize,
    call_timeout: Duration,
    root: RootKey,
}

struct Slot {
    plan: Plan,
    engine: Arc<Engine>,
    read_at: Instant,
}

/// The engines, by UID of their cluster.
pub struct Connections {
    client: kube::Client,
    slots: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Option<Slot>>>>>,
}

// === impl Engine ===

impl Engine {
    /// An engine of these masters, for clients' passwords made from `root`.
    #[must_use]
    pub fn new(client: Client, root: RootKey) -> Self {
        Self { client, root, refused: AtomicBool::new(false) }
    }

    /// The client of its masters.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The password of the clients in `namespace`.
    #[must_use]
    pub fn client_password(&self, namespace: &str) -> Password {
        self.root.client_password(namespace)
    }

    /// Masters refuse the operator's password: the root secret is to be read again.
    pub fn credentials_were_refused(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// Ends when each master is either connected or known to be down, or after a second: a first call would otherwise find
    /// nobody, and a status would show trouble that there is not.
    pub async fn settled(&self) {
        let over = Instant::now() + SETTLING;
        while Instant::now() < over && self.client.masters().iter().any(|master| master.health() == Health::Connecting)
        {
            sleep(GLANCE).await;
        }
    }
}

// === impl Plan ===

impl Plan {
    fn of(cluster: &RedisLockCluster, root: RootKey) -> Self {
        Self {
            name: cluster.name_any(),
            namespace: cluster.namespace().unwrap_or_default(),
            masters: usize::try_from(cluster.spec.masters).unwrap_or(0),
            call_timeout: cluster.spec.call_timeout(),
            root,
        }
    }

    fn connect(&self) -> Engine {
        let password = self.root.client_password(EVERY_NAMESPACE);
        let master = |index| {
            let name = names::master(&self.name, index);
            RedisMaster::connect(Endpoint {
                address: Address::Tcp(host(&names::address(&name, &self.namespace)), REDIS_PORT),
                name,
                credentials: Credentials::Password {
                    username: names::client_user(EVERY_NAMESPACE),
                    password: password.expose().to_owned(),
                },
                marker: Marker::Required,
            })
        };
        Engine::new(Client::new((0..self.masters).map(master), self.call_timeout), self.root.clone())
    }
}

/// The host of `address`, which ends in the port of every master.
fn host(address: &str) -> String {
    address.rsplit_once(':').map_or(address, |(host, _)| host).to_owned()
}

// === impl Connections ===

impl Connections {
    /// No connections yet; Secrets will be read by `client`.
    #[must_use]
    pub fn new(client: kube::Client) -> Self {
        Self { client, slots: Mutex::default() }
    }

    /// The engine of `cluster`: the one that there is, unless the cluster's root secret or its timing changed.
    ///
    /// The outer error is the API server's; it says nothing of the cluster, and the call is to be repeated.
    pub async fn engine(&self, cluster: &RedisLockCluster) -> Result<Result<Arc<Engine>, Unconnected>, Error> {
        let uid = cluster.uid().unwrap_or_default();
        let slot = Arc::clone(self.slots.lock().unwrap_or_else(PoisonError::into_inner).entry(uid).or_default());
        // Held while the Secret is read, so that a thousand locks of one cluster read it once.
        let mut slot = slot.lock().await;
        let root = match &*slot {
            Some(known) if !known.is_due() => known.plan.root.clone(),
            known => match self.read(cluster).await {
                Ok(Ok(root)) => root,
                Ok(Err(missing)) if known.is_none() => return Ok(Err(missing)),
                Err(error) if known.is_none() => return Err(error),
                // The connections stand: a Secret that cannot be read for the moment is no reason to give them up.
                Ok(Err(_)) | Err(_) => match known {
                    Some(known) => known.plan.root.clone(),
                    None => return Err(Error::Internal("a connection vanished")),
                },
            },
        };
        let plan = Plan::of(cluster, root);
        let engine = match &mut *slot {
            Some(known) if known.plan == plan => {
                if known.is_due() {
                    known.read_at = Instant::now();
                    known.engine.refused.store(false, Ordering::Relaxed);
                }
                Arc::clone(&known.engine)
            }
            other => {
                let engine = Arc::new(plan.connect());
                *other = Some(Slot { plan, engine: Arc::clone(&engine), read_at: Instant::now() });
                engine
            }
        };
        Ok(Ok(engine))
    }

    /// Forgets every cluster that is not `alive`. A connection ends when its last lock has let go of it.
    pub fn retain(&self, alive: impl Fn(&str) -> bool) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).retain(|uid, _| alive(uid));
    }

    async fn read(&self, cluster: &RedisLockCluster) -> Result<Result<RootKey, Unconnected>, Error> {
        let name = names::auth_secret(&cluster.name_any());
        let api = Api::<Secret>::namespaced(self.client.clone(), &cluster.namespace().unwrap_or_default());
        let secret = error::within("read the cluster's Secret", api.get_opt(&name)).await?;
        let Some(secret) = secret else { return Ok(Err(Unconnected::SecretNotFound(name))) };
        Ok(RootKey::from_secret(&secret).map_err(Unconnected::SecretInvalid))
    }
}

impl Slot {
    fn is_due(&self) -> bool {
        let max = if self.engine.refused.load(Ordering::Relaxed) { MIN_AGE } else { MAX_AGE };
        self.read_at.elapsed() >= max
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}
