//! Monitors the servers between reconciles. A task per cluster asks each server once a second whether it is still as the last
//! reconcile left it, does [what cannot wait](server), and triggers a reconcile if it is not.

mod server;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::channel::mpsc;
use futures::future::join_all;
use kube::{Resource, ResourceExt};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use super::observed::{ObservedServer, Snapshot};
use crate::api::cluster::{ClientScripts, MasterState, MasterStatus};
use crate::api::{RedisLockCluster, WatchedCluster};
use crate::contract::credentials::Password;
use crate::contract::names::REDIS_PORT;
use crate::operator::leadership::Leadership;
use crate::operator::metrics::Metrics;
use crate::operator::watch::Watch;
use crate::operator::watch::locks::{ClusterObjectRef, reference_to};
use server::MonitoredServer;

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
    /// It has answered nothing, or (`answers`) only that it is busy with one script, for 5 s.
    Stuck { answers: bool },
}

/// Pods, by uid, whose servers are stuck, and how.
type Stuck = HashMap<String, String>;

/// A server to monitor.
#[derive(Clone, Debug)]
pub(crate) struct MonitorTarget {
    master: String,
    /// Its pod's IP address.
    host: String,
    port: u16,
    pod_uid: String,
    password: Password,
    scripts: ClientScripts,
    /// How the last reconcile found it, or left it.
    expected: Finding,
}

/// The tasks of all clusters. A task ends when its cluster is gone, with the term in which it was started, or when this value is
/// dropped.
#[derive(Debug)]
pub(crate) struct Monitors {
    clusters: Watch<WatchedCluster>,
    metrics: Metrics,
    requests: mpsc::UnboundedSender<ClusterObjectRef>,
    leadership: Leadership,
    tasks: Mutex<HashMap<String, Task>>,
}

/// What is shared with the task of one cluster.
#[derive(Debug)]
struct Task {
    /// The term in which it was started, and with which it ends.
    term: u64,
    targets: watch::Sender<Vec<MonitorTarget>>,
    stuck: Arc<Mutex<Stuck>>,
}

/// The task of one cluster.
struct Monitor {
    clusters: Watch<WatchedCluster>,
    cluster: ClusterObjectRef,
    uid: Option<String>,
    requests: mpsc::UnboundedSender<ClusterObjectRef>,
    leadership: Leadership,
    stuck: Arc<Mutex<Stuck>>,
    servers: HashMap<String, MonitoredServer>,
}

// === impl MonitorTarget ===

impl MonitorTarget {
    /// The servers to monitor until the next reconcile, each as this one leaves it: found as in `snapshot`, recorded as in `rows`.
    pub(crate) fn all(snapshot: &Snapshot, rows: &[MasterStatus]) -> Vec<Self> {
        let Some(key) = &snapshot.key else { return Vec::new() };
        let mut targets = Vec::new();
        for (master, row) in snapshot.masters.iter().zip(rows) {
            let Some((host, pod)) = master.pod.ours().and_then(|pod| Some((pod.ip.clone()?, pod))) else { continue };
            let expected = match &master.server {
                // A stuck one's pod is being deleted.
                ObservedServer::NotAsked | ObservedServer::KeyLost | ObservedServer::Stuck(_) => continue,
                ObservedServer::Unreachable(_) => Finding::Unreachable,
                ObservedServer::Refused(_) => Finding::Refused,
                ObservedServer::Up(facts) if facts.is_armed() || row.state == MasterState::Armed => {
                    Finding::Armed(facts.run_id.clone())
                }
                ObservedServer::Up(facts) => Finding::NotArmed(facts.run_id.clone()),
            };
            targets.push(Self {
                master: master.name.clone(),
                host,
                port: REDIS_PORT,
                pod_uid: pod.uid.clone(),
                password: key.operator_password(),
                scripts: snapshot.cluster.spec.scripts(),
                expected,
            });
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
        leadership: Leadership,
    ) -> (Self, mpsc::UnboundedReceiver<ClusterObjectRef>) {
        let (requests, stream) = mpsc::unbounded();
        (Self { clusters, metrics, requests, leadership, tasks: Mutex::default() }, stream)
    }

    /// Monitors `targets` of `cluster` from now on, instead of the former ones.
    pub(crate) fn monitor(&self, cluster: &RedisLockCluster, targets: Vec<MonitorTarget>) {
        let uid = cluster.uid().unwrap_or_default();
        let mut all = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, task| !task.targets.is_closed());
        let term = self.leadership.term();
        if let Some(task) = all.get(&uid).filter(|task| task.term == term) {
            task.targets.send_replace(targets);
            return;
        }
        let ((sender, receiver), stuck) = (watch::channel(targets), Arc::default());
        let reference = reference_to(cluster);
        let monitor = Monitor {
            clusters: self.clusters.clone(),
            cluster: reference.clone(),
            uid: Some(uid.clone()),
            requests: self.requests.clone(),
            leadership: self.leadership.clone(),
            stuck: Arc::clone(&stuck),
            servers: HashMap::new(),
        };
        all.insert(uid, Task { term, targets: sender, stuck });
        let (metrics, clusters, leadership) = (self.metrics.clone(), self.clusters.clone(), self.leadership.clone());
        let monitoring = self.leadership.within_term(monitor.run(receiver));
        tokio::spawn(async move {
            monitoring.await;
            // The counters go on if there is a new cluster of the same name. The leader alone shows a cluster.
            if clusters.get(&reference).is_none() || !leadership.is_leader() {
                metrics.forget_cluster(reference.namespace.as_deref().unwrap_or_default(), &reference.name);
            }
        });
    }

    /// The pods of `cluster` whose servers are stuck, as of the last poll.
    pub(crate) fn stuck(&self, cluster: &RedisLockCluster) -> Stuck {
        let all = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let term = self.leadership.term();
        let is_current = |task: &&Task| task.term == term && !task.targets.is_closed();
        let task = all.get(&cluster.uid().unwrap_or_default()).filter(is_current);
        task.map(|task| task.stuck.lock().unwrap_or_else(PoisonError::into_inner).clone()).unwrap_or_default()
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
            if !self.cluster_exists() || !self.leadership.is_leader() {
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
            if server.pod_uid != target.pod_uid {
                server = MonitoredServer::of(&target.pod_uid);
            }
            let leadership = &self.leadership;
            checks.push(async move {
                let finding = server.check(target, leadership).await;
                (target, server, finding)
            });
        }
        let checks = join_all(checks).await;
        let findings: Vec<_> =
            checks.iter().map(|(target, _, finding)| (target.pod_uid.as_str(), finding.as_ref())).collect();
        *self.stuck.lock().unwrap_or_else(PoisonError::into_inner) = stuck(&findings);
        let changed =
            checks.iter().any(|(target, _, finding)| finding.as_ref().is_some_and(|found| *found != target.expected));
        self.servers = checks.into_iter().map(|(target, server, _)| (target.master.clone(), server)).collect();
        changed
    }
}

/// The pods whose servers are stuck, and how. Where none of several servers answers, the network of the operator is more likely to
/// be at fault than all of them.
fn stuck(findings: &[(&str, Option<&Finding>)]) -> Stuck {
    let is_answer = |finding: &Finding| !matches!(finding, Finding::Unreachable | Finding::Stuck { answers: false });
    let anybody_answers = findings.len() == 1 || findings.iter().any(|(_, finding)| finding.is_some_and(is_answer));
    let why = |finding: &Finding| match finding {
        Finding::Stuck { answers: true } => Some("it ran one script for 5s, which cannot be ended"),
        Finding::Stuck { answers: false } if anybody_answers => {
            Some("it accepted connections and answered nothing for 5s")
        }
        _ => None,
    };
    let stuck =
        findings.iter().filter_map(|(pod_uid, finding)| Some(((*pod_uid).to_owned(), why((*finding)?)?.to_owned())));
    stuck.collect()
}
