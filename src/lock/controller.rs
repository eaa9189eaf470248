//! The controller: what triggers a reconcile, the steps of a reconcile, and when the next one is due.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use kube::ResourceExt as _;
use kube::runtime::controller::{self, Action, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use redlock_engine::Reason;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::act::Outcome;
use super::cleanup;
use super::clock::now;
use super::decide::{Obstacle, decide};
use super::events::{self, EventSender, LockEvent};
use super::keeper::state::State;
use super::reach;
use super::reconciler::Reconciler;
use super::silence::Silence;
use super::status::StatusSchedule;
use super::subject::Subject;
use crate::api::{WatchedCluster, WatchedLock};
use crate::contract::names::OPERATOR_ANNOTATION;
use crate::duration::with_jitter;
use crate::operator::api_server::{Category, Error};
use crate::operator::contain::contain;
use crate::operator::health::LOCK_CONTROLLER;
use crate::operator::watch::{Change, Watches};
use crate::operator::{Context, controller_config, error_chain};

/// The name of this controller in metrics.
const CONTROLLER: &str = "lock";
/// How often a lock is reconciled without a trigger, to repair what somebody else changed.
const HEAL_AFTER: Duration = Duration::from_mins(10);
/// How soon a missing Secret of a cluster is read again. Secrets are not watched.
const SECRET_AFTER: Duration = Duration::from_secs(2);
/// How soon a cluster's Secret is read again while masters refuse the password that is derived from it.
const CREDENTIALS_AFTER: Duration = Duration::from_secs(6);
/// How soon a foreign Secret for clients is checked again.
const NAME_CONFLICT_AFTER: Duration = Duration::from_secs(30);

/// How the controller is ended: deciding first, renewing last. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    /// Decide nothing any more.
    pub(crate) deciding: CancellationToken,
    /// The last decision is carried out, or given up. (The controller says so.)
    pub(crate) decided: CancellationToken,
    /// Leave the leases on the masters, for another process to adopt, and end.
    pub(crate) renewing: CancellationToken,
}

/// Runs the controller and the keeper until they are stopped. Returns earlier only if a part ended that must not.
/// `status_refreshes`: how many statuses a second have their times refreshed, for all locks together; with 0 statuses show no times.
pub(crate) async fn run(ctx: Context, status_refreshes: u32, stop: Stop) {
    let (sender, sent_events) = EventSender::channel();
    let (schedule, scheduled) = StatusSchedule::new(status_refreshes);
    let schedule = Arc::new(schedule);
    let reconciler = Arc::new(Reconciler::new(&ctx, sender, Arc::clone(&schedule)));
    let (silence, heard_again) = Silence::new();
    // The shared watch feeds the store and triggers the reconciles, so the controller has no stream of its own.
    let no_events = stream::pending::<watcher::Result<WatchedLock>>();
    let running = Controller::for_stream(no_events, ctx.watches.locks.store().clone())
        .with_config(controller_config())
        .reconcile_on(ctx.watches.locks.references())
        .reconcile_on(locks_of_changed_clusters(&ctx.watches))
        .reconcile_on(locks_of_changed_namespaces(&ctx.watches))
        .reconcile_on(scheduled)
        .reconcile_all_on(ctx.leadership.changes().map(|_| ()))
        .reconcile_all_on(heard_again)
        .graceful_shutdown_on(stop.deciding.clone().cancelled_owned())
        .run(reconcile, error_policy, Arc::clone(&reconciler))
        .for_each(|result| async move {
            if let Err(error) = result {
                report(&error);
            }
        });
    tokio::select! {
        () = running => {}
        () = ctx.health.arrive_with(LOCK_CONTROLLER, ctx.watches.listed()) => {}
        () = schedule.run() => {}
        () = events::publish(sent_events, ctx.events.clone(), ctx.leadership.clone()) => {}
        () = cleanup::run(&reconciler) => {}
        () = silence.run(&reconciler) => {}
        () = reach::run(&reconciler) => {}
    }
    if stop.deciding.is_cancelled() {
        stop.decided.cancel();
        // Meanwhile another process begins to lead.
        stop.renewing.cancelled().await;
    }
    reconciler.keeper.abandon_all().await;
}

/// What locks depend on of a cluster. (The renewal of its claim is nothing to them.)
fn what_locks_need(cluster: &WatchedCluster) -> Option<impl PartialEq + use<>> {
    let cluster = cluster.0.as_ref().ok()?.clone();
    let (meta, claim) = (cluster.metadata, OPERATOR_ANNOTATION);
    let operator = meta.annotations.and_then(|annotations| annotations.get(claim).cloned());
    Some((meta.uid, meta.deletion_timestamp, operator, cluster.spec, cluster.status))
}

/// References to the locks whose cluster changed. After a list of clusters these are all locks.
fn locks_of_changed_clusters(watches: &Watches) -> impl Stream<Item = ObjectRef<WatchedLock>> + Send + 'static + use<> {
    let (locks, lock_index) = (watches.locks.clone(), Arc::clone(&watches.lock_index));
    let mut known = HashMap::new();
    watches.clusters.changes().flat_map(move |change| {
        stream::iter(match change {
            Change::Applied(cluster) => {
                let (reference, needed) = (ObjectRef::from_obj(&*cluster), what_locks_need(&cluster));
                let is_same = needed.is_some() && known.get(&reference) == Some(&needed);
                let changed = if is_same { Vec::new() } else { lock_index.locks_on(&reference) };
                known.insert(reference, needed);
                changed
            }
            Change::Deleted(cluster) => {
                let reference = ObjectRef::from_obj(&*cluster);
                known.remove(&reference);
                lock_index.locks_on(&reference)
            }
            Change::Listed => {
                known.clear();
                locks.all()
            }
        })
    })
}

/// References to the locks of each changed namespace: its labels may admit it to a cluster or not. After a list of namespaces these are
/// all locks.
fn locks_of_changed_namespaces(
    watches: &Watches,
) -> impl Stream<Item = ObjectRef<WatchedLock>> + Send + 'static + use<> {
    let locks = watches.locks.clone();
    watches.namespaces.changes().flat_map(move |change| {
        let mut changed = locks.all();
        match change {
            Change::Applied(namespace) => changed.retain(|lock| lock.namespace.as_ref() == Some(&namespace.name_any())),
            // Its locks are gone as well.
            Change::Deleted(_) => changed.clear(),
            Change::Listed => {}
        }
        stream::iter(changed)
    })
}

impl Reconciler {
    /// Reconciles a lock. Returns when it is reconciled next without a trigger.
    async fn reconcile(&self, object: Arc<WatchedLock>) -> Result<Action, Error> {
        #[cfg(test)]
        assert!(!self.broken.lock().is_ok_and(|names| names.contains(&object.name_any())), "broken on purpose");
        // Look up (IO): cluster, connection, state of the actor.
        let snapshot = self.look_up(object).await?;
        // Decide (pure).
        let plan = decide(&snapshot);
        debug!(namespace = snapshot.subject.namespace, name = snapshot.subject.name, ?plan, "decided");
        // Act (IO): finalizer, actor, masters, Secret for clients.
        let outcome = self.act(&snapshot, plan).await?;
        // Status (IO): the outcome, and the state that the actor has now.
        let state = self.keeper.state(&snapshot.subject.uid);
        self.write_status(&snapshot, &outcome, state.as_ref(), now()).await?;
        // When next, or the error that waited for the status.
        when_next(outcome, state.as_ref())
    }
}

/// When a lock is reconciled next without a trigger; or the error that was kept until the status was written.
fn when_next(outcome: Outcome, state: Option<&State>) -> Result<Action, Error> {
    let is_refused = state.and_then(State::trouble).is_some_and(|trouble| trouble.reason == Reason::Auth);
    Ok(match outcome {
        Outcome::Settled => Action::await_change(),
        Outcome::Obstructed(Obstacle::Unconnected(_)) => Action::requeue(SECRET_AFTER),
        Outcome::Followed | Outcome::Obstructed(_) => Action::requeue(HEAL_AFTER),
        Outcome::Assigned { client_secret, .. } => match client_secret? {
            _ if is_refused => Action::requeue(CREDENTIALS_AFTER),
            Some(_) => Action::requeue(NAME_CONFLICT_AFTER),
            None => Action::requeue(HEAL_AFTER),
        },
    })
}

async fn reconcile(lock: Arc<WatchedLock>, reconciler: Arc<Reconciler>) -> Result<Action, Error> {
    let begun = Instant::now();
    let subject = Subject::of(&lock);
    let reconciling = reconciler.ctx.leadership.within_term(reconciler.reconcile(lock));
    let result = match contain(reconciling).await {
        Err(error @ Error::Panicked) => {
            reconciler.events.send(&subject.reference, LockEvent::Panicked);
            Err(error)
        }
        // Ordinary: the leader reconciles the lock, and a change of leadership triggers a reconcile here.
        Err(Error::NotLeading) => Ok(Action::await_change()),
        result => result,
    };
    let category = result.as_ref().err().map(|error| error.category().as_str());
    reconciler.ctx.metrics.reconciled(CONTROLLER, category, begun.elapsed());
    result
}

fn error_policy(_: Arc<WatchedLock>, error: &Error, _: Arc<Reconciler>) -> Action {
    // With jitter: locks that failed together are not retried together.
    Action::requeue(with_jitter(retry_after(error.category())))
}

/// When a failed reconcile is retried. Another writer is done at once; what a person has to repair is not worth many
/// requests.
fn retry_after(category: Category) -> Duration {
    match category {
        Category::Conflict | Category::NotFound => Duration::from_secs(1),
        Category::Api | Category::Connection | Category::Timeout | Category::NotLeading => Duration::from_secs(5),
        Category::Forbidden
        | Category::NamespaceTerminating
        | Category::Invalid
        | Category::Internal
        | Category::Panic => Duration::from_secs(30),
    }
}

fn report(error: &controller::Error<Error, watcher::Error>) {
    match error {
        // Ordinary where several write to an object, and retried at once.
        controller::Error::ReconcilerFailed(error, lock) if error.is_outdated_write() => {
            debug!(%lock, error = error_chain(error), "decided on an outdated object");
        }
        controller::Error::ReconcilerFailed(error, lock) => {
            let category = error.category().as_str();
            warn!(%lock, category, error = error_chain(error), "failed to reconcile a lock");
        }
        // The last state of an actor whose lock is gone.
        controller::Error::ObjectNotFound(lock) => debug!(%lock, "gone"),
        other => warn!(error = error_chain(other), "a trigger of reconciles failed"),
    }
}

#[cfg(test)]
mod tests;
