//! The controller: what triggers a reconcile, its five steps, and when the next one is due.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::core::DeserializeGuard;
use kube::runtime::controller::{self, Action as Next, Controller};
use kube::runtime::events::EventType;
use kube::runtime::reflector::store::WriterDropped;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::apply::{self, KnownClients};
use super::build;
use super::decide::{Action, Rules, decide, now};
use super::error::Error;
use super::monitor::{Finding, Monitors, Target};
use super::resolve::{Found, resolve};
use super::roll::replace_outdated;
use super::snapshot::{ServerFound, Slot};
use super::status::{self, notices, summarize};
use super::validate::{self, Problem};
use crate::api::cluster::{MasterState, MasterStatus};
use crate::api::{RedisLockCluster, WatchedCluster, WatchedLock};
use crate::contract::names::MASTER_SELECTOR;
use crate::operator::health::CLUSTER_CONTROLLER;
use crate::operator::{Context, controller_config, error_chain, watch_config};

/// Limit on one reconcile. Whatever it did not get to, the next one finds.
const RECONCILE_LIMIT: Duration = Duration::from_secs(60);
/// When an idle and healthy cluster is looked at again.
const IDLE: Duration = Duration::from_secs(600);
/// When a cluster with a master that does not vote is looked at again, if nothing happens before.
const UNHEALTHY: Duration = Duration::from_secs(30);
/// When something that did not work is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// What reconciles share.
struct Shared {
    operator: Context,
    locks: Store<WatchedLock>,
    clusters: Store<WatchedCluster>,
    /// Whether both stores hold a first list.
    listed: watch::Receiver<bool>,
    monitors: Monitors,
    image: String,
    memories: std::sync::Mutex<HashMap<String, Arc<Mutex<Memory>>>>,
}

/// What this process knows of a cluster besides its status.
#[derive(Debug, Default)]
struct Memory {
    /// When this process last saw a master gone, by its monotonic clock.
    gone: HashMap<String, Instant>,
    /// Which users this process has set on which server.
    clients: KnownClients,
}

/// Runs the controller until `shutdown`. `image`: what masters run whose cluster names no image.
pub async fn run(operator: Context, image: String, shutdown: CancellationToken) {
    let client = operator.client.clone();
    let controller = Controller::new(Api::<WatchedCluster>::all(client.clone()), watch_config());
    let clusters = controller.store();
    let (locks, lock_changes) = watch_locks(&operator, clusters.clone(), watch_config());
    let (monitors, findings) = Monitors::new(clusters.clone(), operator.metrics.clone());
    let (metrics, health) = (operator.metrics.clone(), operator.health.clone());
    // Waited for in this task alone: of several tasks that wait for a store only one is woken.
    let (filled, listed) = watch::channel(false);
    let lists = {
        let (clusters, locks) = (clusters.clone(), locks.clone());
        async move {
            clusters.wait_until_ready().await?;
            locks.wait_until_ready().await?;
            filled.send_replace(true);
            Ok::<_, WriterDropped>(())
        }
    };
    let gained = operator.leadership.changes().filter(|leads| std::future::ready(*leads)).map(|_| ());
    let memories = std::sync::Mutex::default();
    let shared = Arc::new(Shared { operator, locks, clusters, listed, monitors, image, memories });
    let reconciles = controller
        .with_config(controller_config())
        .owns(Api::<Pod>::all(client.clone()), watch_config().labels(MASTER_SELECTOR))
        .owns(Api::<Service>::all(client), watch_config().labels(MASTER_SELECTOR))
        .reconcile_on(lock_changes)
        .reconcile_on(findings)
        .reconcile_all_on(gained)
        .graceful_shutdown_on(shutdown.cancelled_owned())
        .run(reconcile, retry, shared)
        .for_each(|result| {
            if let Err(controller::Error::QueueError(error)) = result {
                metrics.watch_failed("cluster");
                tracing::warn!(error = error_chain(&error), "a watch for clusters failed");
            }
            std::future::ready(())
        });
    tokio::select! {
        () = reconciles => {}
        () = health.arrive_with(CLUSTER_CONTROLLER, lists) => {}
    }
}

/// All locks, and the clusters whose set of client namespaces may have changed. A cluster is named after the store has
/// taken up the change, so that its reconcile sees it; after a new list, which tells no deletions, all of them are.
fn watch_locks(
    operator: &Context,
    clusters: Store<WatchedCluster>,
    config: watcher::Config,
) -> (Store<WatchedLock>, impl Stream<Item = ObjectRef<WatchedCluster>> + Send + 'static) {
    let (locks, writer) = reflector::store::<WatchedLock>();
    let metrics = operator.metrics.clone();
    let events = watcher(Api::<WatchedLock>::all(operator.client.clone()), config).default_backoff().reflect(writer);
    let changes = events.flat_map(move |event| {
        stream::iter(match event {
            Ok(
                watcher::Event::Apply(DeserializeGuard(Ok(lock))) | watcher::Event::Delete(DeserializeGuard(Ok(lock))),
            ) => {
                let name = lock.spec.cluster_ref.name.clone();
                vec![ObjectRef::new(&name).within(&lock.cluster_namespace())]
            }
            // Of a lock that cannot be read nobody knows on which cluster it is.
            Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_) | watcher::Event::InitDone) => {
                clusters.state().iter().map(|cluster| ObjectRef::from_obj(cluster.as_ref())).collect()
            }
            Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => Vec::new(),
            Err(error) => {
                metrics.watch_failed("cluster");
                tracing::warn!(error = error_chain(&error), "the watch for locks failed");
                Vec::new()
            }
        })
    });
    (locks, changes)
}

#[tracing::instrument(skip_all, fields(namespace = cluster.namespace(), cluster = cluster.name_any()))]
async fn reconcile(cluster: Arc<WatchedCluster>, shared: Arc<Shared>) -> Result<Next, Error> {
    if !shared.operator.leadership.is_leader() {
        return Ok(Next::await_change());
    }
    let cluster = match &cluster.0 {
        Ok(cluster) => cluster,
        Err(invalid) => {
            let note = format!("cannot be read: {}", invalid.error);
            tracing::warn!(note, "a cluster is left as it is");
            let reference = cluster.object_ref(&());
            shared.operator.events.publish(&reference, EventType::Warning, "Unreadable", "Read", note).await;
            return Ok(Next::await_change());
        }
    };
    let began = Instant::now();
    let result = tokio::time::timeout(RECONCILE_LIMIT, pass(cluster, &shared)).await.unwrap_or(Err(Error::TimedOut));
    // Both are ordinary, and there is nothing to retry: the namespace goes and takes the cluster along, or another leads.
    let result = match result {
        Err(Error::NamespaceTerminating | Error::NotLeading) => Ok(Next::await_change()),
        other => other,
    };
    let category = result.as_ref().err().map(Error::category);
    shared.operator.metrics.reconciled("cluster", category, began.elapsed());
    result
}

#[expect(clippy::needless_pass_by_value, reason = "the form of an error policy")]
fn retry(cluster: Arc<WatchedCluster>, error: &Error, _: Arc<Shared>) -> Next {
    if matches!(error, Error::Conflict(_)) {
        return Next::requeue(Duration::from_millis(500));
    }
    tracing::warn!(
        namespace = cluster.namespace(),
        cluster = cluster.name_any(),
        error = error_chain(error),
        "failed to reconcile"
    );
    // Jitter keeps many clusters from coming back at once when the API server does.
    Next::requeue(RETRY + Duration::from_millis(rand::random_range(0..5_000)))
}

/// Resolve, validate, decide, apply, report.
async fn pass(cluster: &RedisLockCluster, shared: &Shared) -> Result<Next, Error> {
    let operator = &shared.operator;
    // Without the list of locks every client would look unneeded and be locked out.
    shared.listed.clone().wait_for(|listed| *listed).await.map_err(|_| Error::TimedOut)?;
    let memory = shared.memory_of(cluster);
    let mut memory = memory.lock().await;

    let Some(mut found) =
        resolve(&operator.client, &shared.locks, cluster, |master| memory.gone.get(master).map(Instant::elapsed))
            .await?
    else {
        return Ok(Next::await_change());
    };
    let before = found.cluster.status.clone();

    let problems = validate::problems(&found);

    let spec = &found.cluster.spec;
    let rules = Rules { now: now(), restart_delay: spec.restart_delay(), max_ttl: spec.max_ttl() };
    let mut decisions: Vec<_> = found.masters.iter().map(|master| decide(&rules, master)).collect();
    let blocked = problems.iter().any(|problem| problem.blocks_all);
    if !blocked {
        replace_outdated(&rules, &found.masters, &mut decisions, &build::spec_hash(&found.cluster, &shared.image));
    }
    for (decision, service) in decisions.iter_mut().zip(&found.services) {
        if decision.crashed {
            memory.gone.insert(decision.row.name.clone(), Instant::now());
            operator.metrics.master_crashed(&found.cluster.namespace().unwrap_or_default(), &found.cluster.name_any());
        }
        // The Service comes before the pod: it is what tells later that the master was started.
        let unaddressed = matches!(service, Slot::Foreign(_) | Slot::Orphan);
        if decision.action == Action::Create && (blocked || unaddressed) {
            decision.action = Action::Nothing;
            decision.row.message =
                service.foreign().map(|name| format!("{name} exists and does not belong to this cluster"));
        }
    }
    let wake = decisions.iter().filter_map(|decision| decision.wake).min();

    // What is about to be done must be on record before it is done.
    let rows = decisions.iter().map(|decision| decision.row.clone()).collect();
    write_status(operator, &mut found, rows, &problems).await?;
    let (rows, again) = if blocked {
        (decisions.into_iter().map(|decision| decision.row).collect(), false)
    } else {
        let applied = apply::apply(operator, &found, decisions, &shared.image, &mut memory.clients).await?;
        (applied.rows, applied.retry)
    };

    write_status(operator, &mut found, rows, &problems).await?;
    tell(operator, &found, before.as_ref()).await;
    let rows = found.cluster.status.as_ref().map(|status| status.masters.as_slice()).unwrap_or_default();
    memory.gone.retain(|master, _| rows.iter().any(|row| row.name == *master && row.state != MasterState::Armed));
    shared.monitors.look_after(&found.cluster, targets(&found, rows));
    Ok(Next::requeue(next_look(rows, wake, again)))
}

async fn write_status(
    operator: &Context,
    found: &mut Found,
    rows: Vec<MasterStatus>,
    problems: &[Problem],
) -> Result<(), Error> {
    if !operator.leadership.is_leader() {
        return Err(Error::NotLeading);
    }
    let status = summarize(&found.cluster, rows, problems, now());
    status::write(&operator.client, &mut found.cluster, status).await
}

/// Events and metrics of what has changed since `before`.
async fn tell(operator: &Context, found: &Found, before: Option<&crate::api::RedisLockClusterStatus>) {
    let Some(after) = &found.cluster.status else { return };
    let mut reference = found.cluster.object_ref(&());
    for notice in notices(before, after) {
        tracing::info!(reason = notice.reason, note = notice.note, "cluster changed");
        // Events of one object and reason are counted as one: this keeps those of two masters apart.
        reference.field_path = notice.master.as_ref().map(|master| format!("status.masters{{{master}}}"));
        operator.events.publish(&reference, notice.kind, notice.reason, "Reconcile", notice.note).await;
    }
    let armed = after.masters.iter().filter(|row| row.state == MasterState::Armed).count();
    let namespace = found.cluster.namespace().unwrap_or_default();
    operator.metrics.set_masters(&namespace, &found.cluster.name_any(), armed, after.masters.len());
}

/// The servers to look after until the next reconcile, each as this one leaves it.
fn targets(found: &Found, rows: &[MasterStatus]) -> Vec<Target> {
    let Some(key) = &found.key else { return Vec::new() };
    let mut targets = Vec::new();
    for (master, row) in found.masters.iter().zip(rows) {
        let Some(host) = master.pod.ours().and_then(|pod| pod.ip.clone()) else { continue };
        let finding = match &master.server {
            ServerFound::NotAsked => continue,
            ServerFound::Unreachable(_) => Finding::Unreachable,
            ServerFound::Refused(_) => Finding::Refused,
            ServerFound::Up(facts) if facts.is_armed() || row.state == MasterState::Armed => {
                Finding::Armed(facts.run_id.clone())
            }
            ServerFound::Up(facts) => Finding::NotArmed(facts.run_id.clone()),
        };
        targets.push(Target { master: master.name.clone(), host, password: key.operator_password(), found: finding });
    }
    targets
}

/// When to look again: when the first delay is over, soon if something did not work, and seldom if all is well.
fn next_look(rows: &[MasterStatus], wake: Option<Duration>, again: bool) -> Duration {
    let healthy = rows.iter().all(|row| row.state == MasterState::Armed);
    let otherwise = if again {
        RETRY
    } else if healthy {
        IDLE
    } else {
        UNHEALTHY
    };
    wake.map_or(otherwise, |wake| wake.min(otherwise))
}

// === impl Shared ===

impl Shared {
    /// The memory of a cluster. Those of clusters that are gone are forgotten.
    fn memory_of(&self, cluster: &RedisLockCluster) -> Arc<Mutex<Memory>> {
        let uid = cluster.meta().uid.clone().unwrap_or_default();
        let mut all = self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains_key(&uid) {
            let existing: HashSet<_> = self.clusters.state().iter().filter_map(|cluster| cluster.uid()).collect();
            all.retain(|uid, _| existing.contains(uid));
        }
        Arc::clone(all.entry(uid).or_default())
    }
}
