//! The controller: what triggers a reconcile, the steps of one, and when the next one is due.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::runtime::controller::{self, Action, Controller};
use kube::runtime::events::EventType;
use kube::runtime::watcher;
use kube::{Resource, ResourceExt};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;

use super::act::{Acted, act};
use super::clock::now;
use super::decide::{ClusterPlan, Rules, decide};
use super::events;
use super::look_up::{Found, look_up};
use super::memory::{Memories, Memory};
use super::monitor::{MonitorTarget, Monitors};
use super::observed::Snapshot;
use super::retire::retire;
use super::status::write_status;
use super::tombstones;
use crate::api::cluster::{MasterState, MasterStatus};
use crate::api::{RedisLockCluster, RedisLockClusterStatus, WatchedCluster};
use crate::contract::names::{CLUSTER_FINALIZER, CLUSTER_LABEL, MASTER_SELECTOR};
use crate::operator::api_server::{Category, Error};
use crate::operator::contain::contain;
use crate::operator::health::CLUSTER_CONTROLLER;
use crate::operator::watch::locks::{ClusterObjectRef, cluster_of};
use crate::operator::watch::{Change, Watches};
use crate::operator::{Context, controller_config, error_chain, finalizer};

/// What metrics call this controller.
const CONTROLLER: &str = "cluster";
/// Timeout of one reconcile. The next one does what is left.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(60);
/// When a healthy cluster is reconciled again, if nothing happens before. Secrets are not watched: a deleted root key is restored
/// within this time.
const IDLE: Duration = Duration::from_secs(60);
/// When a cluster with a master that does not vote is reconciled again, if nothing happens before.
const UNHEALTHY: Duration = Duration::from_secs(30);
/// When the claim of another operator is read again, if it does not change before.
const STAND_BY: Duration = Duration::from_secs(30);
/// When something that failed is retried.
const RETRY: Duration = Duration::from_secs(5);
/// When a reconcile that was decided on an outdated object is retried.
const OUTDATED_RETRY: Duration = Duration::from_millis(500);

/// What all reconciles share.
struct Reconciler {
    ctx: Context,
    monitors: Monitors,
    /// Image of the masters of a cluster that names none.
    default_image: String,
    memories: Memories,
}

/// Runs the controller until `shutdown`. `default_image`: what masters run whose cluster names no image.
pub(crate) async fn run(ctx: Context, default_image: String, shutdown: CancellationToken) {
    let (client, metrics, health, watches) =
        (ctx.client.clone(), ctx.metrics.clone(), ctx.health.clone(), ctx.watches.clone());
    let scope = ctx.scope.clone();
    let (monitors, findings) = Monitors::new(watches.clusters.clone(), metrics.clone(), ctx.leadership.clone());
    let (sweeps, mut swept) = tokio::sync::mpsc::unbounded_channel();
    let gained = ctx.leadership.changes().filter(|leads| std::future::ready(*leads)).map(|_| ());
    let reconciler = Arc::new(Reconciler { ctx, monitors, default_image, memories: Memories::default() });
    let retiring = Arc::clone(&reconciler);
    // The clusters themselves come from the shared watch, so the controller gets a stream that never yields.
    let no_events = stream::pending::<watcher::Result<WatchedCluster>>();
    let mut controller =
        Controller::for_stream(no_events, watches.clusters.store().clone()).with_config(controller_config());
    // By label: a pod whose owner is gone is of its cluster all the same.
    for (pods, config) in scope.sources::<Pod>(&client) {
        controller = controller.watches(pods, config.labels(MASTER_SELECTOR), |pod| cluster_by_label(&pod));
    }
    for (services, config) in scope.sources::<Service>(&client) {
        controller = controller.watches(services, config.labels(MASTER_SELECTOR), |service| cluster_by_label(&service));
    }
    let running = controller
        .reconcile_on(watches.clusters.references())
        .reconcile_on(clusters_of_changed_locks(&watches))
        .reconcile_on(clusters_of_changed_namespaces(&watches))
        .reconcile_on(findings)
        .reconcile_all_on(gained)
        .graceful_shutdown_on(shutdown.cancelled_owned())
        .run(reconcile, error_policy, reconciler)
        .for_each(|result| {
            match result {
                Err(controller::Error::QueueError(error)) => {
                    metrics.watch_failed("Pod, Service");
                    tracing::warn!(error = error_chain(&error), "the watch of the masters' pods or Services failed");
                }
                // Something of a cluster that does not exist has changed. The receiver is right here.
                Err(controller::Error::ObjectNotFound(cluster)) => drop(sweeps.send((cluster.namespace, cluster.name))),
                _ => {}
            }
            std::future::ready(())
        });
    tokio::select! {
        () = running => {}
        () = sweep(&retiring, &mut swept) => {}
        () = health.arrive_with(CLUSTER_CONTROLLER, watches.listed()) => {}
    }
}

/// The clusters whose set of client namespaces has changed: nothing else about a lock concerns its cluster, and least of all its status,
/// which is written often. All clusters after a new list, which does not tell what was deleted.
fn clusters_of_changed_locks(watches: &Watches) -> impl Stream<Item = ClusterObjectRef> + Send + 'static + use<> {
    let (clusters, lock_index) = (watches.clusters.clone(), Arc::clone(&watches.lock_index));
    let mut known = HashMap::<ClusterObjectRef, BTreeSet<String>>::new();
    let mut unreadable = BTreeSet::new();
    watches.locks.changes().flat_map(move |change| {
        let was_unreadable = std::mem::replace(&mut unreadable, lock_index.unreadable_namespaces());
        let mut changed = match &change {
            Change::Applied(lock) | Change::Deleted(lock) if was_unreadable == unreadable => {
                lock.0.as_ref().ok().map(cluster_of).into_iter().collect()
            }
            // Which cluster a lock is on that cannot be read is unknown.
            Change::Applied(_) | Change::Deleted(_) | Change::Listed => clusters.all(),
        };
        changed.retain(|cluster| {
            let namespaces = lock_index.namespaces_of(cluster);
            // A cluster without a lock has no entry: none is left of one that is gone.
            let before = known.remove(cluster).unwrap_or_default();
            let has_changed = before != namespaces || matches!(change, Change::Listed);
            if !namespaces.is_empty() {
                known.insert(cluster.clone(), namespaces);
            }
            has_changed
        });
        stream::iter(changed)
    })
}

/// The clusters that a changed namespace uses: its labels may admit it or not, and passwords follow from its uid.
fn clusters_of_changed_namespaces(watches: &Watches) -> impl Stream<Item = ClusterObjectRef> + Send + 'static + use<> {
    let (clusters, lock_index) = (watches.clusters.clone(), Arc::clone(&watches.lock_index));
    watches.namespaces.changes().flat_map(move |change| {
        let mut changed = clusters.all();
        if let Change::Applied(namespace) | Change::Deleted(namespace) = &change {
            changed.retain(|cluster| lock_index.namespaces_of(cluster).contains(&namespace.name_any()));
        }
        stream::iter(changed)
    })
}

/// The cluster that an object is labelled with.
fn cluster_by_label<K: ResourceExt>(object: &K) -> Option<ClusterObjectRef> {
    let cluster = object.labels().get(CLUSTER_LABEL)?;
    Some(ClusterObjectRef::new(cluster).within(&object.namespace()?))
}

/// Lets go what clusters have left that do not exist any more, and makes the store of tombstones, whenever this process leads.
async fn sweep(reconciler: &Reconciler, named: &mut UnboundedReceiver<(Option<String>, String)>) {
    let ctx = &reconciler.ctx;
    let mut left = BTreeSet::new();
    let mut ticks = tokio::time::interval(RETRY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut has_store = false;
    loop {
        tokio::select! {
            Some((namespace, name)) = named.recv() => drop(left.insert((namespace.unwrap_or_default(), name))),
            _ = ticks.tick() => {}
        }
        if !ctx.leadership.is_leader() {
            continue;
        }
        if !has_store {
            let ensured = ctx.leadership.within_term(tombstones::ensure_store(ctx, now())).await;
            has_store = ensured.inspect_err(tell_sweep).is_ok();
        }
        ctx.watches.listed().await;
        for (namespace, name) in std::mem::take(&mut left) {
            // The watch may be behind.
            let swept = async {
                if ctx.api.get::<RedisLockCluster>(&namespace, &name).await?.is_some() {
                    return Ok(());
                }
                let key = reconciler.memories.root_key_of(&ClusterObjectRef::new(&name).within(&namespace)).await;
                retire(ctx, (&namespace, &name), None, key.as_ref()).await
            };
            if let Err(error) = ctx.leadership.within_term(swept).await {
                tell_sweep(&error);
                left.insert((namespace, name));
            }
        }
    }
}

fn tell_sweep(error: &Error) {
    tracing::warn!(error = error_chain(error), "what deleted clusters have left is not cleaned up yet");
}

#[tracing::instrument(skip_all, fields(namespace = cluster.namespace(), cluster = cluster.name_any()))]
async fn reconcile(cluster: Arc<WatchedCluster>, reconciler: Arc<Reconciler>) -> Result<Action, Error> {
    let leadership = reconciler.ctx.leadership.clone();
    leadership.within_term(reconcile_within_term(cluster, reconciler)).await
}

async fn reconcile_within_term(cluster: Arc<WatchedCluster>, reconciler: Arc<Reconciler>) -> Result<Action, Error> {
    let ctx = &reconciler.ctx;
    if !ctx.leadership.is_leader() {
        return Ok(Action::await_change());
    }
    let cluster = match &cluster.0 {
        Ok(cluster) => cluster,
        Err(invalid) => {
            let note = format!("cannot be read: {}", invalid.error);
            tracing::warn!(note, "a cluster is left as it is");
            let reference = cluster.object_ref(&());
            ctx.events.publish(&reference, EventType::Warning, "Unreadable", "Read", note).await;
            return Ok(Action::await_change());
        }
    };
    let began = Instant::now();
    // Boxed: what holds it would be as large otherwise.
    let reconciling = Box::pin(reconciler.reconcile(cluster));
    let result = timeout(RECONCILE_TIMEOUT, contain(reconciling)).await;
    let result = result.unwrap_or_else(|_| Err(Error::Timeout { action: "reconcile the cluster".to_owned() }));
    let result = match result.as_ref().map_err(Error::category) {
        // Ordinary, and a retry would not help: another process leads, or the cluster is deleted together with its namespace.
        Err(Category::NamespaceTerminating | Category::NotLeading) => Ok(Action::await_change()),
        _ => result,
    };
    if matches!(result, Err(Error::Panicked)) {
        let note = "the operator panicked over this cluster and tries again; please report it with the operator's log"
            .to_owned();
        let reference = cluster.object_ref(&());
        ctx.events.publish(&reference, EventType::Warning, "ReconcilePanicked", "Reconcile", note).await;
    }
    let category = result.as_ref().err().map(|error| error.category().as_str());
    ctx.metrics.reconciled(CONTROLLER, category, began.elapsed());
    result
}

#[expect(clippy::needless_pass_by_value, reason = "the form of an error policy")]
fn error_policy(cluster: Arc<WatchedCluster>, error: &Error, _: Arc<Reconciler>) -> Action {
    if error.is_outdated_write() {
        return Action::requeue(OUTDATED_RETRY);
    }
    tracing::warn!(
        namespace = cluster.namespace(),
        cluster = cluster.name_any(),
        error = error_chain(error),
        "failed to reconcile"
    );
    // Jitter spreads the retries of many clusters when the API server is back.
    Action::requeue(RETRY + Duration::from_millis(rand::random_range(0..5_000)))
}

// === impl Reconciler ===

impl Reconciler {
    async fn reconcile(&self, cached: &RedisLockCluster) -> Result<Action, Error> {
        let ctx = &self.ctx;
        // Without the list of locks no client would seem to need its user, and all would be locked out.
        ctx.watches.listed().await;
        let memory = self.memories.of(cached, &ctx.watches.clusters, ctx.leadership.term());
        let mut memory = memory.lock().await;
        memory.note_stuck(self.monitors.stuck(cached));
        memory.note_generation(cached.meta().generation);

        memory.note_waiting(recorded(cached));

        // Look up (IO): the objects, and what the servers say of themselves.
        let (mut snapshot, admins) = match look_up(ctx, cached, &memory).await? {
            Found::Nothing => return Ok(Action::await_change()),
            Found::Claimed => return Ok(Action::requeue(OUTDATED_RETRY)),
            Found::ServedBy(operator, cluster) => {
                self.monitors.monitor(&cluster, Vec::new());
                if memory.note_served_by(&operator) {
                    let note =
                        format!("the operator of {operator} serves this cluster: this one ({}) stands by", ctx.claims);
                    tracing::warn!(operator, "another operator serves this cluster: this one stands by");
                    let reference = cluster.object_ref(&());
                    ctx.events.publish(&reference, EventType::Warning, "ServedByAnother", "StandBy", note).await;
                }
                return Ok(Action::requeue(STAND_BY));
            }
            Found::Deleted(cluster) => {
                let name = (&*cluster.namespace().unwrap_or_default(), &*cluster.name_any());
                retire(ctx, name, Some(&cluster), memory.root_key()).await?;
                return Ok(Action::await_change());
            }
            Found::Cluster(snapshot, admins) => (*snapshot, admins),
        };
        if !finalizer::is_on(snapshot.cluster.meta(), CLUSTER_FINALIZER) {
            // Before anything is made that has to be retired. The change triggers the next reconcile.
            finalizer::add::<RedisLockCluster>(&ctx.api, snapshot.cluster.meta(), CLUSTER_FINALIZER).await?;
            return Ok(Action::requeue(OUTDATED_RETRY));
        }
        let is_new = snapshot.cluster.status.as_ref().is_none_or(|status| status.masters.is_empty());
        let before = snapshot.cluster.status.clone();

        // Decide (pure): what to do, given that and the time.
        let plan = decide(&snapshot, &Rules::of(&snapshot.cluster, now(), &self.default_image));
        let (problems, wake, credentials) = (plan.problems.clone(), plan.wake(), plan.clients.record.clone());
        self.note_crashes(&snapshot.cluster, &plan, &mut memory);
        if plan.clients.has_advanced {
            memory.note_rotation();
        }

        // Record (IO): what is about to be done must be on record before it is done.
        write_status(&ctx.api, &mut snapshot.cluster, plan.rows(), &problems, &credentials).await?;
        if is_new {
            // What it said is in the record now.
            let (namespace, name) = (snapshot.cluster.namespace().unwrap_or_default(), snapshot.cluster.name_any());
            tombstones::write(ctx, &namespace, &name, None, now()).await?;
        }

        // Act (IO): objects, then masters.
        let Acted { rows, retry } = act(&ctx.api, &snapshot, admins, plan, &self.default_image, &mut memory).await?;

        // Status (IO): what became of it.
        write_status(&ctx.api, &mut snapshot.cluster, rows, &problems, &credentials).await?;
        self.report(&snapshot, before.as_ref(), &mut memory).await;

        // When next: when the first delay is over, soon if something failed, and seldom if all is well.
        let rows = recorded(&snapshot.cluster);
        let wake = rows.iter().filter_map(|row| memory.backoff(&row.name)).chain(wake).min();
        Ok(Action::requeue(requeue_after(rows, wake, retry)))
    }

    /// Remembers, by the monotonic clock, and counts the masters that are gone, or without their data, as of now.
    fn note_crashes(&self, cluster: &RedisLockCluster, plan: &ClusterPlan, memory: &mut Memory) {
        for plan in plan.masters.iter().filter(|plan| plan.failed_start) {
            memory.note_failed_start(&plan.row.name, plan.row.pod_uid.as_deref());
        }
        for master in plan.crashed() {
            memory.note_gone(master);
            self.ctx.metrics.master_crashed(&cluster.namespace().unwrap_or_default(), &cluster.name_any());
        }
    }

    /// Publishes what has changed since the status was `before`, and has the servers monitored as they are now.
    async fn report(&self, snapshot: &Snapshot, before: Option<&RedisLockClusterStatus>, memory: &mut Memory) {
        let cluster = &snapshot.cluster;
        events::publish(&self.ctx.events, cluster, before).await;
        let rows = recorded(cluster);
        let armed = rows.iter().filter(|row| row.state == MasterState::Armed).count();
        let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
        self.ctx.metrics.set_masters(&namespace, &name, armed, rows.len());
        memory.note_states(rows);
        self.monitors.monitor(cluster, MonitorTarget::all(snapshot, rows));
    }
}

/// The records of the masters in the status of `cluster`.
fn recorded(cluster: &RedisLockCluster) -> &[MasterStatus] {
    cluster.status.as_ref().map(|status| status.masters.as_slice()).unwrap_or_default()
}

/// How long until the next reconcile, if nothing happens before.
fn requeue_after(rows: &[MasterStatus], wake: Option<Duration>, retry: bool) -> Duration {
    let healthy = rows.iter().all(|row| row.state == MasterState::Armed);
    let otherwise = if retry {
        RETRY
    } else if healthy {
        IDLE
    } else {
        UNHEALTHY
    };
    wake.map_or(otherwise, |wake| wake.min(otherwise))
}

#[cfg(test)]
mod tests;
