//! Monitors the servers between reconciles. A task per cluster asks each server once a second whether it is still as the last
//! reconcile left it, and triggers a reconcile if it is not. The task changes nothing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::channel::mpsc;
use futures::future::join_all;
use kube::{Resource, ResourceExt};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use super::observed::{ObservedServer, Snapshot};
use super::server::{Admin, AdminError};
use crate::api::cluster::{MasterState, MasterStatus};
use crate::api::{RedisLockCluster, WatchedCluster};
use crate::contract::credentials::Password;
use crate::contract::names::REDIS_PORT;
use crate::operator::metrics::Metrics;
use crate::operator::watch::Watch;
use crate::operator::watch::locks::{ClusterObjectRef, reference_to};

/// How often each server is asked.
const PERIOD: Duration = Duration::from_secs(1);
/// Consecutive failed checks before a server counts as unreachable. One lost packet is ignored.
const MAX_FAILURES: u32 = 2;
/// When a reconcile is requested again, if the last request changed nothing.
const REPEAT_AFTER: Duration = Duration::from_secs(15);

/// What a check of a server found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// No connection, or no reply.
    Unreachable,
    /// It refuses the operator.
    Refused,
    /// This server process (by its `run_id`) replies, and is not armed.
    NotArmed(String),
    /// This server process replies, and is armed.
    Armed(String),
}

/// A server to monitor.
#[derive(Clone, Debug)]
pub(crate) struct MonitorTarget {
    master: String,
    /// Its pod's IP address.
    host: String,
    password: Password,
    /// How the last reconcile found it, or left it.
    expected: Finding,
}

/// The tasks of all clusters. A task ends when its cluster is gone, or when this value is dropped.
#[derive(Debug)]
pub(crate) struct Monitors {
    clusters: Watch<WatchedCluster>,
    metrics: Metrics,
    requests: mpsc::UnboundedSender<ClusterObjectRef>,
    targets: Mutex<HashMap<String, watch::Sender<Vec<MonitorTarget>>>>,
}

/// The task of one cluster.
struct Monitor {
    clusters: Watch<WatchedCluster>,
    cluster: ClusterObjectRef,
    uid: Option<String>,
    requests: mpsc::UnboundedSender<ClusterObjectRef>,
    servers: HashMap<String, MonitoredServer>,
}

/// What is kept of a server between two checks.
#[derive(Default)]
struct MonitoredServer {
    host: String,
    admin: Option<Admin>,
    failures: u32,
}

// === impl MonitorTarget ===

impl MonitorTarget {
    /// The servers to monitor until the next reconcile, each as this one leaves it: found as in `snapshot`, recorded as in `rows`.
    pub(crate) fn all(snapshot: &Snapshot, rows: &[MasterStatus]) -> Vec<Self> {
        let Some(key) = &snapshot.key else { return Vec::new() };
        let mut targets = Vec::new();
        for (master, row) in snapshot.masters.iter().zip(rows) {
            let Some(host) = master.pod.ours().and_then(|pod| pod.ip.clone()) else { continue };
            let expected = match &master.server {
                ObservedServer::NotAsked | ObservedServer::KeyLost => continue,
                ObservedServer::Unreachable(_) => Finding::Unreachable,
                ObservedServer::Refused(_) => Finding::Refused,
                ObservedServer::Up(facts) if facts.is_armed() || row.state == MasterState::Armed => {
                    Finding::Armed(facts.run_id.clone())
                }
                ObservedServer::Up(facts) => Finding::NotArmed(facts.run_id.clone()),
            };
            targets.push(Self { master: master.name.clone(), host, password: key.operator_password(), expected });
        }
        targets
    }
}

// === impl Monitors ===

impl Monitors {
    /// No tasks yet, and the reconciles that they will request. The stream ends with this value.
    pub(crate) fn new(
        clusters: Watch<WatchedCluster>,
        metrics: Metrics,
    ) -> (Self, mpsc::UnboundedReceiver<ClusterObjectRef>) {
        let (requests, stream) = mpsc::unbounded();
        (Self { clusters, metrics, requests, targets: Mutex::default() }, stream)
    }

    /// Monitors `targets` of `cluster` from now on, instead of the former ones.
    pub(crate) fn monitor(&self, cluster: &RedisLockCluster, targets: Vec<MonitorTarget>) {
        let uid = cluster.uid().unwrap_or_default();
        let mut all = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, sender| !sender.is_closed());
        if let Some(sender) = all.get(&uid) {
            sender.send_replace(targets);
            return;
        }
        let (sender, receiver) = watch::channel(targets);
        let reference = reference_to(cluster);
        let monitor = Monitor {
            clusters: self.clusters.clone(),
            cluster: reference.clone(),
            uid: Some(uid.clone()),
            requests: self.requests.clone(),
            servers: HashMap::new(),
        };
        all.insert(uid, sender);
        let (metrics, clusters) = (self.metrics.clone(), self.clusters.clone());
        tokio::spawn(async move {
            monitor.run(receiver).await;
            // The counters go on if there is a new cluster of the same name.
            if clusters.get(&reference).is_none() {
                metrics.forget_cluster(reference.namespace.as_deref().unwrap_or_default(), &reference.name);
            }
        });
    }
}

// === impl Monitor ===

impl Monitor {
    async fn run(mut self, mut targets: watch::Receiver<Vec<MonitorTarget>>) {
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
            let current = targets.borrow_and_update().clone();
            let changed = self.check(&current).await;
            if changed && requested.is_none_or(|at| at.elapsed() >= REPEAT_AFTER) {
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

    /// Whether a server is not as expected.
    async fn check(&mut self, targets: &[MonitorTarget]) -> bool {
        let mut checks = Vec::new();
        for target in targets {
            let mut server = self.servers.remove(&target.master).unwrap_or_default();
            if server.host != target.host {
                server = MonitoredServer { host: target.host.clone(), ..MonitoredServer::default() };
            }
            checks.push(async move {
                let finding = server.check(&target.password).await;
                (target, server, finding)
            });
        }
        let checks = join_all(checks).await;
        let changed =
            checks.iter().any(|(target, _, finding)| finding.as_ref().is_some_and(|found| *found != target.expected));
        self.servers = checks.into_iter().map(|(target, server, _)| (target.master.clone(), server)).collect();
        changed
    }
}

// === impl MonitoredServer ===

impl MonitoredServer {
    /// How the server is; `None` while that is uncertain.
    async fn check(&mut self, password: &Password) -> Option<Finding> {
        match self.ask(password).await {
            Ok((run_id, armed)) => {
                self.failures = 0;
                Some(if armed { Finding::Armed(run_id) } else { Finding::NotArmed(run_id) })
            }
            Err(AdminError::Unreachable(_)) => {
                self.admin = None;
                self.failures = self.failures.saturating_add(1);
                (self.failures >= MAX_FAILURES).then_some(Finding::Unreachable)
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
        admin.check().await
    }
}
