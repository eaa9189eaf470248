//! Looks after the servers between reconciles: a task per cluster asks each server once a second whether it is as it was
//! last found, and has the cluster reconciled if not. It changes nothing itself, but for trimming old fencing tokens.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::channel::mpsc;
use futures::future::join_all;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use super::arm::{Admin, AdminError};
use crate::api::{RedisLockCluster, WatchedCluster};
use crate::contract::credentials::Password;
use crate::contract::names::REDIS_PORT;
use crate::operator::metrics::Metrics;

/// How often each server is asked.
const PERIOD: Duration = Duration::from_secs(1);
/// So many times in a row a server must not answer to be taken for unreachable: one lost packet is no news.
const PATIENCE: u32 = 2;
/// When to ask for a reconcile again if nothing came of the last request.
const REPEAT: Duration = Duration::from_secs(15);
/// How often old fencing tokens are trimmed.
const TRIM_PERIOD: Duration = Duration::from_secs(3600);

/// How a server was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// No connection, or no answer.
    Unreachable,
    /// It refuses the operator.
    Refused,
    /// This process answers, and is not armed.
    NotArmed(String),
    /// This process answers, and is armed.
    Armed(String),
}

/// A server to look after.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name of the master.
    pub master: String,
    /// Its pod's address.
    pub host: String,
    /// The operator's password.
    pub password: Password,
    /// How the last reconcile found it, or left it.
    pub found: Finding,
}

/// The tasks of all clusters. They end when their cluster or this value is gone.
#[derive(Debug)]
pub struct Monitors {
    clusters: Store<WatchedCluster>,
    metrics: Metrics,
    requests: mpsc::UnboundedSender<ObjectRef<WatchedCluster>>,
    targets: Mutex<HashMap<String, watch::Sender<Vec<Target>>>>,
}

struct Monitor {
    clusters: Store<WatchedCluster>,
    cluster: ObjectRef<WatchedCluster>,
    uid: Option<String>,
    requests: mpsc::UnboundedSender<ObjectRef<WatchedCluster>>,
    watched: HashMap<String, Watched>,
}

/// What the task keeps of a server between two looks.
#[derive(Default)]
struct Watched {
    host: String,
    admin: Option<Admin>,
    failures: u32,
    trimmed: Option<Instant>,
}

// === impl Monitors ===

impl Monitors {
    /// No tasks yet, and the requests for reconciles that they will make. That stream lives as long as this value.
    #[must_use]
    pub fn new(
        clusters: Store<WatchedCluster>,
        metrics: Metrics,
    ) -> (Self, mpsc::UnboundedReceiver<ObjectRef<WatchedCluster>>) {
        let (requests, stream) = mpsc::unbounded();
        (Self { clusters, metrics, requests, targets: Mutex::default() }, stream)
    }

    /// Looks after `targets` of `cluster` from now on, instead of those before.
    pub fn look_after(&self, cluster: &RedisLockCluster, targets: Vec<Target>) {
        let uid = cluster.uid().unwrap_or_default();
        let mut all = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, sender| !sender.is_closed());
        if let Some(sender) = all.get(&uid) {
            sender.send_replace(targets);
            return;
        }
        let (sender, receiver) = watch::channel(targets);
        let reference = ObjectRef::new(&cluster.name_any()).within(&cluster.namespace().unwrap_or_default());
        let monitor = Monitor {
            clusters: self.clusters.clone(),
            cluster: reference.clone(),
            uid: Some(uid.clone()),
            requests: self.requests.clone(),
            watched: HashMap::new(),
        };
        all.insert(uid, sender);
        let (metrics, clusters) = (self.metrics.clone(), self.clusters.clone());
        tokio::spawn(async move {
            monitor.run(receiver).await;
            // A new cluster of the same name goes on counting.
            if clusters.get(&reference).is_none() {
                metrics.forget_cluster(reference.namespace.as_deref().unwrap_or_default(), &reference.name);
            }
        });
    }
}

// === impl Monitor ===

impl Monitor {
    async fn run(mut self, mut targets: watch::Receiver<Vec<Target>>) {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut requested: Option<Instant> = None;
        loop {
            tokio::select! {
                changed = targets.changed() => match changed {
                    Ok(()) => requested = None,
                    Err(_) => return,
                },
                _ = ticks.tick() => {}
            }
            if !self.cluster_exists() {
                return;
            }
            let now = targets.borrow_and_update().clone();
            let changed = self.look(&now).await;
            if changed && requested.is_none_or(|at| at.elapsed() >= REPEAT) {
                requested = Some(Instant::now());
                if self.requests.unbounded_send(self.cluster.clone()).is_err() {
                    return;
                }
            }
        }
    }

    fn cluster_exists(&self) -> bool {
        self.clusters.get(&self.cluster).is_some_and(|cluster| cluster.meta().uid == self.uid)
    }

    /// Whether a server is not as it was found.
    async fn look(&mut self, targets: &[Target]) -> bool {
        let mut looks = Vec::new();
        for target in targets {
            let mut watched = self.watched.remove(&target.master).unwrap_or_default();
            if watched.host != target.host {
                watched = Watched { host: target.host.clone(), ..Watched::default() };
            }
            looks.push(async move {
                let finding = watched.look(target).await;
                (target, watched, finding)
            });
        }
        let looks = join_all(looks).await;
        let changed = looks.iter().any(|(target, _, finding)| finding.as_ref().is_some_and(|now| *now != target.found));
        self.watched = looks.into_iter().map(|(target, watched, _)| (target.master.clone(), watched)).collect();
        changed
    }
}

// === impl Watched ===

impl Watched {
    /// How the server is; `None` while that is not sure.
    async fn look(&mut self, target: &Target) -> Option<Finding> {
        match self.ask(&target.password).await {
            Ok((run_id, armed)) => {
                self.failures = 0;
                Some(if armed { Finding::Armed(run_id) } else { Finding::NotArmed(run_id) })
            }
            Err(AdminError::Unreachable(_)) => {
                self.admin = None;
                self.failures = self.failures.saturating_add(1);
                (self.failures >= PATIENCE).then_some(Finding::Unreachable)
            }
            Err(AdminError::Login | AdminError::Refused(_)) => {
                self.admin = None;
                Some(Finding::Refused)
            }
        }
    }

    async fn ask(&mut self, password: &Password) -> Result<(String, bool), AdminError> {
        let admin = match &mut self.admin {
            Some(admin) => admin,
            none => none.insert(Admin::connect(&self.host, REDIS_PORT, password).await?),
        };
        let (run_id, armed) = admin.check().await?;
        if armed && self.trimmed.is_none_or(|at| at.elapsed() >= TRIM_PERIOD) {
            let now = u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or(0);
            admin.trim_fences(now).await?;
            self.trimmed = Some(Instant::now());
        }
        Ok((run_id, armed))
    }
}
