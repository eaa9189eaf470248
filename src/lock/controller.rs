//! Wiring: what triggers a look at a lock, and what ends the whole.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use kube::runtime::controller::{self, Action, Controller};
use kube::runtime::reflector::store::WriterDropped;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::error::Error;
use super::keeper::{Keeper, Shared, Stop};
use super::notices::{self, Notices};
use super::publisher::Publisher;
use super::reconcile::Reconciler;
use super::{Subject, Watched};
use crate::api::WatchedCluster;
use crate::operator::health::LOCK_CONTROLLER;
use crate::operator::{Context, controller_config, error_chain, watch_config};

/// What metrics call this controller.
const CONTROLLER: &str = "lock";
/// How many refreshes of status a second there are for all locks.
const STATUS_WRITES_PER_SECOND: u32 = 20;
/// How often it is looked for actors and connections whose objects are gone.
const SWEEP_PERIOD: Duration = Duration::from_secs(5);

/// Runs the controller and the keeper until `shutdown`, then leaves what is held on the masters, for the next process to go
/// on with. Ends before only if a part of it ended that must not.
pub async fn run(ctx: Context, shutdown: CancellationToken) {
    let (notices, told) = Notices::channel();
    let (publisher, events) = Publisher::new(STATUS_WRITES_PER_SECOND);
    let publisher = Arc::new(publisher);
    let shared = Shared::new(ctx.leadership.clone(), ctx.metrics.clone(), notices.clone(), Arc::clone(&publisher));

    let (locks, locks_writer) = reflector::store::<Watched>();
    let (clusters, clusters_writer) = reflector::store::<WatchedCluster>();
    let lock_events = slim(watcher(Api::<Watched>::all(ctx.client.clone()), watch_config()))
        .reflect(locks_writer)
        .applied_objects()
        .inspect_err(failed(&ctx));
    // Reflected here, so that a lock that is looked at because its cluster changed finds the change.
    let cluster_events = slim(watcher(Api::<WatchedCluster>::all(ctx.client.clone()), watch_config()))
        .reflect(clusters_writer)
        .touched_objects()
        .inspect_err(failed(&ctx));

    let (filled, listed) = watch::channel(false);
    let keeper = Keeper::new(Arc::new(shared));
    let reconciler = Arc::new(Reconciler::new(
        &ctx,
        notices,
        Arc::clone(&publisher),
        keeper,
        locks.clone(),
        clusters.clone(),
        listed,
    ));
    let of_cluster = locks.clone();
    let running = Controller::for_stream(lock_events, locks.clone())
        .with_config(controller_config())
        .watches_stream(cluster_events, move |cluster| locks_of(&of_cluster, &cluster))
        .reconcile_on(events)
        .reconcile_all_on(ctx.leadership.changes().map(|_| ()))
        .graceful_shutdown_on(shutdown.cancelled_owned())
        .run(reconcile, error_policy, Arc::clone(&reconciler))
        .for_each(|result| async move {
            if let Err(error) = result {
                report(&error);
            }
        });
    // Waited for in this task alone: of several tasks that wait for a store only one is woken.
    let lists = async {
        locks.wait_until_ready().await?;
        clusters.wait_until_ready().await?;
        filled.send_replace(true);
        Ok::<_, WriterDropped>(())
    };
    tokio::select! {
        () = running => {}
        () = ctx.health.arrive_with(LOCK_CONTROLLER, lists) => {}
        () = publisher.run() => {}
        () = notices::publish(told, ctx.events.clone(), ctx.leadership.clone()) => {}
        () = sweep(&reconciler) => {}
    }
    reconciler.keeper.shut_down().await;
}

/// The stream without what nobody reads: who manages which field is half of an object.
fn slim<K: Resource>(
    events: impl futures::Stream<Item = watcher::Result<watcher::Event<K>>>,
) -> impl futures::Stream<Item = watcher::Result<watcher::Event<K>>> {
    events.default_backoff().modify(|object| object.managed_fields_mut().clear())
}

fn failed(ctx: &Context) -> impl Fn(&watcher::Error) + Send + 'static {
    let metrics = ctx.metrics.clone();
    move |_| metrics.watch_failed(CONTROLLER)
}

/// The locks on a cluster.
fn locks_of(locks: &Store<Watched>, cluster: &WatchedCluster) -> Vec<ObjectRef<Watched>> {
    let (name, namespace) = (cluster.name_any(), cluster.namespace().unwrap_or_default());
    let on_it = |lock: &&Arc<Watched>| {
        lock.0.as_ref().is_ok_and(|l| l.spec.cluster_ref.name == name && l.cluster_namespace() == namespace)
    };
    locks.state().iter().filter(on_it).map(|lock| ObjectRef::from_obj(&**lock)).collect()
}

async fn reconcile(lock: Arc<Watched>, reconciler: Arc<Reconciler>) -> Result<Action, Error> {
    let begun = Instant::now();
    let result = reconciler.reconcile(&lock).await;
    reconciler.metrics.reconciled(CONTROLLER, result.as_ref().err().map(Error::category), begun.elapsed());
    result
}

fn error_policy(_: Arc<Watched>, error: &Error, _: Arc<Reconciler>) -> Action {
    let after = error.retry_after();
    // Up to half of it again, so that many locks that failed together are not tried again together.
    Action::requeue(after + after.mul_f64(rand::random_range(0.0..0.5)))
}

fn report(error: &controller::Error<Error, watcher::Error>) {
    match error {
        controller::Error::ReconcilerFailed(error, lock) => {
            warn!(%lock, category = error.category(), error = error_chain(error), "a lock could not be reconciled");
        }
        // An actor's last word on a lock that is gone.
        controller::Error::ObjectNotFound(lock) => debug!(%lock, "gone"),
        other => warn!(error = error_chain(other), "a trigger of reconciles failed"),
    }
}

/// Stops, for ever and again, the actors of locks that are gone without having been finalized (their finalizer was taken
/// away by hand), and forgets clusters that are gone. Actors and connections exist only after the stores were filled.
async fn sweep(reconciler: &Reconciler) {
    loop {
        sleep(SWEEP_PERIOD).await;
        for subject in reconciler.keeper.subjects() {
            if !is_alive(reconciler, &subject) {
                let leads = reconciler.leadership.is_leader();
                let how = if leads { Stop::Release(None) } else { Stop::Abandon };
                reconciler.keeper.stop(&subject.uid, how).await;
                reconciler.forget(&subject);
            }
        }
        let locks: HashSet<_> = reconciler.locks.state().iter().filter_map(|lock| lock.uid()).collect();
        reconciler.publisher.retain(|uid| locks.contains(uid));
        let clusters: HashSet<_> = reconciler.clusters.state().iter().filter_map(|cluster| cluster.uid()).collect();
        reconciler.connections.retain(|uid| clusters.contains(uid));
    }
}

fn is_alive(reconciler: &Reconciler, subject: &Subject) -> bool {
    reconciler.locks.get(&subject.object()).is_some_and(|lock| lock.uid().as_deref() == Some(&subject.uid))
}
