//! What happens when a lock is looked at: look up (IO) → decide → act (IO) → status (IO).

use std::sync::Arc;
use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Resource as _};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::client_secret::{Binding, ClientSecrets};
use super::connections::{Connections, Engine, Unconnected};
use super::decide::{self, FINALIZER, Obstacle, Recorded, Situation};
use super::error::{Error, within};
use super::job::{Job, Task};
use super::keeper::{Keeper, Stop};
use super::notices::{Notice, Notices};
use super::publisher::Publisher;
use super::state::{Ending, State};
use super::status::{self, Now, Times, View};
use super::{Subject, Watched, finalize};
use crate::api::{DistributedLock, RedisLockCluster, WatchedCluster};
use crate::contract::names::STATUS_MANAGER;
use crate::operator::Context;
use redlock_engine::{LockKey, Reason};

/// How often a lock is looked at though nothing tells to: to heal what was changed behind the operator's back.
const HEAL_AFTER: Duration = Duration::from_mins(10);
/// How soon a cluster's missing Secret is looked for again. Secrets are not watched.
const SECRET_AFTER: Duration = Duration::from_secs(2);
/// How soon a cluster's Secret is looked at again when masters refuse the password made from it.
const CREDENTIALS_AFTER: Duration = Duration::from_secs(6);
/// How long the first list of clusters is waited for.
const FIRST_LIST: Duration = Duration::from_secs(10);
/// How long giving back a grant without an actor may take.
const RELEASE_LIMIT: Duration = Duration::from_secs(4);

/// What reconciles share.
pub struct Reconciler {
    pub(super) api: kube::Client,
    pub(super) leadership: crate::operator::leadership::Leadership,
    pub(super) metrics: crate::operator::metrics::Metrics,
    pub(super) notices: Notices,
    pub(super) locks: Store<Watched>,
    pub(super) clusters: Store<WatchedCluster>,
    /// Whether `clusters` has been filled. A channel, because of several tasks that wait for a store only one is woken.
    listed: watch::Receiver<bool>,
    pub(super) keeper: Keeper,
    pub(super) publisher: Arc<Publisher>,
    pub(super) connections: Connections,
    pub(super) secrets: ClientSecrets,
}

/// What a lock needs of its cluster.
struct Found {
    cluster: Option<RedisLockCluster>,
    connection: Option<Result<Arc<Engine>, Unconnected>>,
}

impl std::fmt::Debug for Reconciler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reconciler").finish_non_exhaustive()
    }
}

impl Reconciler {
    /// A reconciler that knows the objects in these stores; `listed` says when that of clusters is filled.
    #[must_use]
    pub fn new(
        ctx: &Context,
        notices: Notices,
        publisher: Arc<Publisher>,
        keeper: Keeper,
        locks: Store<Watched>,
        clusters: Store<WatchedCluster>,
        listed: watch::Receiver<bool>,
    ) -> Self {
        Self {
            api: ctx.client.clone(),
            leadership: ctx.leadership.clone(),
            metrics: ctx.metrics.clone(),
            notices,
            locks,
            clusters,
            listed,
            keeper,
            publisher,
            connections: Connections::new(ctx.client.clone()),
            secrets: ClientSecrets::new(ctx.client.clone()),
        }
    }

    /// Looks at a lock and does what is to be done.
    pub async fn reconcile(&self, object: &Watched) -> Result<Action, Error> {
        let subject = Subject::of(object);
        let lock = match &object.0 {
            Ok(lock) => lock,
            Err(invalid) => return self.unreadable(&subject, object, &invalid.error).await,
        };
        let found = self.look_up(lock).await?;
        let state = self.keeper.state(&subject.uid);
        let situation = Situation {
            lock,
            cluster: found.cluster.as_ref(),
            unconnected: found.connection.as_ref().and_then(|c| c.as_ref().err()),
            state: state.as_ref(),
            leader: self.leadership.is_leader(),
        };
        let action = decide::decide(&situation);
        debug!(namespace = subject.namespace, name = subject.name, ?action, "decided");
        let engine = found.connection.and_then(Result::ok);
        match action {
            decide::Action::Nothing => Ok(Action::await_change()),
            decide::Action::Abandon => {
                self.keeper.stop(&subject.uid, Stop::Abandon).await;
                Ok(Action::await_change())
            }
            decide::Action::Follow { key, options, owner } => {
                if let Some(engine) = engine {
                    self.keeper.assign(&subject, Job { engine, key, task: Task::Follow { options, owner } });
                }
                Ok(Action::requeue(HEAL_AFTER))
            }
            decide::Action::Finalize { recorded } => self.finalize(&subject, object, engine, recorded).await,
            decide::Action::Wait(obstacle) => {
                // What is held, or may be, is left to its actor: the masters may outlive what is missing here.
                if !matches!(state, None | Some(State::Held { .. } | State::Adopting { .. })) {
                    self.keeper.stop(&subject.uid, Stop::Release(None)).await;
                }
                self.show(&subject, lock, found.cluster.as_ref(), Some(&obstacle), None).await?;
                let missing = matches!(obstacle, Obstacle::Unconnected(_));
                Ok(Action::requeue(if missing { SECRET_AFTER } else { HEAL_AFTER }))
            }
            decide::Action::Refuse { obstacle, recorded } => {
                if let Some(notice) = finalize::notice(self.give_back(&subject, engine, recorded).await, false) {
                    self.notices.tell(&subject.reference, notice);
                }
                self.show(&subject, lock, found.cluster.as_ref(), Some(&obstacle), None).await?;
                Ok(Action::requeue(HEAL_AFTER))
            }
            decide::Action::Hold { key, options, adopt, obstacle } => {
                let task = Task::Hold { options, adopt };
                self.work(&subject, object, lock, found.cluster.as_ref(), engine, key, task, obstacle).await
            }
            decide::Action::Observe { key } => {
                self.work(&subject, object, lock, found.cluster.as_ref(), engine, key, Task::Observe, None).await
            }
        }
    }

    async fn look_up(&self, lock: &DistributedLock) -> Result<Found, Error> {
        // Before the first list a cluster that exists is not found either.
        let mut listed = self.listed.clone();
        if !matches!(timeout(FIRST_LIST, listed.wait_for(|listed| *listed)).await, Ok(Ok(_))) {
            return Err(Error::Timeout { action: "list the clusters" });
        }
        let reference = ObjectRef::new(&lock.spec.cluster_ref.name).within(&lock.cluster_namespace());
        let cluster = self.clusters.get(&reference).and_then(|cluster| cluster.0.clone().ok());
        let connection = match &cluster {
            Some(cluster) => match self.connections.engine(cluster).await {
                Ok(connection) => Some(connection),
                // A deleted lock does not wait for what it could do without.
                Err(error) if lock.metadata.deletion_timestamp.is_some() => {
                    warn!(%error, "a lock is finalized without its cluster's Secret");
                    None
                }
                Err(error) => return Err(error),
            },
            None => None,
        };
        Ok(Found { cluster, connection })
    }

    /// Has the lock worked on, with all that it needs.
    #[expect(clippy::too_many_arguments, reason = "the parts of one decision, each of its own type")]
    async fn work(
        &self,
        subject: &Subject,
        object: &Watched,
        lock: &DistributedLock,
        cluster: Option<&RedisLockCluster>,
        engine: Option<Arc<Engine>>,
        key: LockKey,
        task: Task,
        obstacle: Option<Obstacle>,
    ) -> Result<Action, Error> {
        let (Some(cluster), Some(engine)) = (cluster, engine) else {
            return Err(Error::Internal("a lock is worked on only with its cluster connected"));
        };
        let api = Api::namespaced(self.api.clone(), &subject.namespace);
        // Before anything is taken that would have to be given back.
        if !self.leadership.is_leader() {
            return Ok(Action::await_change());
        }
        finalize::add(&api, subject, object).await?;
        let password = engine.client_password(&subject.namespace);
        self.keeper.assign(subject, Job { engine, key, task });

        let binding = Binding::of(lock);
        let secret = self.secrets.ensure(&binding, binding.secret(cluster, &password)).await;
        let conflict = secret.as_ref().ok().and_then(Option::as_deref);
        self.show(subject, lock, Some(cluster), obstacle.as_ref(), conflict).await?;
        // After the status: pods' way to the masters must not hold up what is known of the lock.
        let conflict = secret?;

        let refused =
            self.keeper.state(&subject.uid).is_some_and(|s| s.trouble().is_some_and(|t| t.reason == Reason::Auth));
        Ok(Action::requeue(match (refused, conflict) {
            (true, _) => CREDENTIALS_AFTER,
            (false, Some(_)) => Duration::from_secs(30),
            (false, None) => HEAL_AFTER,
        }))
    }

    /// Gives back what the lock holds: by its actor, or without one the grant that status shows.
    async fn give_back(
        &self,
        subject: &Subject,
        engine: Option<Arc<Engine>>,
        recorded: Option<Recorded>,
    ) -> Option<Ending> {
        if !self.leadership.is_leader() {
            return None;
        }
        let owner = recorded.as_ref().map(|(_, owner)| owner.clone());
        let ending = self.keeper.stop(&subject.uid, Stop::Release(owner)).await;
        let (Some(engine), Some((key, owner)), None) = (engine, recorded, ending) else { return ending };
        let release = async {
            engine.settled().await;
            engine.client().release(&key, &owner).await
        };
        timeout(RELEASE_LIMIT, release).await.ok().map(Ending::Released)
    }

    async fn finalize(
        &self,
        subject: &Subject,
        object: &Watched,
        engine: Option<Arc<Engine>>,
        recorded: Option<Recorded>,
    ) -> Result<Action, Error> {
        let may_be_held = recorded.is_some();
        let ending = self.give_back(subject, engine, recorded).await;
        if let Some(notice) = finalize::notice(ending, may_be_held) {
            self.notices.tell(&subject.reference, notice);
        }
        if let Ok(lock) = &object.0 {
            self.let_go_of_secret(subject, &Binding::of(lock)).await?;
        }
        self.remove_finalizer(subject, object).await
    }

    /// Deletes the Secret for clients with the last lock that needs it.
    async fn let_go_of_secret(&self, subject: &Subject, binding: &Binding) -> Result<(), Error> {
        let in_use = || {
            self.locks.state().iter().any(|other| match &other.0 {
                Ok(lock) => {
                    lock.metadata.deletion_timestamp.is_none()
                        && lock.metadata.uid.as_deref() != Some(&subject.uid)
                        && Binding::of(lock) == *binding
                }
                // Which cluster it is on cannot be read.
                Err(_) => other.meta().namespace.as_deref() == Some(&binding.namespace),
            })
        };
        if !self.leadership.is_leader() {
            return Ok(());
        }
        match self.secrets.delete_unless(binding, in_use).await {
            // A permission that is missing is no reason to keep the object for ever.
            Err(error) if matches!(error.category(), "forbidden" | "conflict") => {
                warn!(namespace = subject.namespace, %error, "a Secret for clients is left behind");
                Ok(())
            }
            result => result,
        }
    }

    async fn remove_finalizer(&self, subject: &Subject, object: &Watched) -> Result<Action, Error> {
        if !self.leadership.is_leader() {
            return Ok(Action::await_change());
        }
        let api = Api::namespaced(self.api.clone(), &subject.namespace);
        finalize::remove(&api, subject, object).await?;
        self.forget(subject);
        Ok(Action::await_change())
    }

    /// An object that is no `DistributedLock`, though it is stored as one: it can be deleted, and hides nothing.
    async fn unreadable(&self, subject: &Subject, object: &Watched, why: &str) -> Result<Action, Error> {
        let finalizing = object.meta().finalizers.iter().flatten().any(|f| f == FINALIZER);
        if object.meta().deletion_timestamp.is_none() {
            self.notices.tell(&subject.reference, Notice::Unreadable(format!("cannot be read: {why}")));
            return Ok(Action::await_change());
        }
        if finalizing && self.leadership.is_leader() {
            let ending = self.give_back(subject, None, None).await;
            if let Some(notice) = finalize::notice(ending, ending.is_none()) {
                self.notices.tell(&subject.reference, notice);
            }
            return self.remove_finalizer(subject, object).await;
        }
        Ok(Action::await_change())
    }

    /// Forgets a lock that is gone.
    pub(super) fn forget(&self, subject: &Subject) {
        self.publisher.forget(&subject.uid);
        self.metrics.forget_lock(&subject.namespace, &subject.name);
    }

    /// Writes what is known of the lock to its status, if that is not what status shows.
    async fn show(
        &self,
        subject: &Subject,
        lock: &DistributedLock,
        cluster: Option<&RedisLockCluster>,
        obstacle: Option<&Obstacle>,
        name_conflict: Option<&str>,
    ) -> Result<(), Error> {
        let (uid, version) = (subject.uid.as_str(), lock.metadata.resource_version.clone());
        let base = self.publisher.current(uid, version.as_deref(), lock.status.as_ref());
        let state = self.keeper.state(uid);
        let view = View { lock, base: &base, obstacle, name_conflict, state: state.as_ref() };
        let masters = cluster.map_or(0, |c| usize::try_from(c.spec.masters).unwrap_or(0));
        let keep = status::compute(&view, masters, Times::KeepUntil(self.publisher.deadline(uid)), Now::read());
        let is_news = keep.status != base;
        let has_times = matches!(state, Some(State::Held { .. } | State::Observed(_)));
        let fresh = self.publisher.take_turn(uid) || (is_news && has_times && self.publisher.take_spare());
        if is_news && has_times && !fresh {
            // Shown without times now, and with them when its turn comes.
            self.publisher.renewed(subject);
        }
        let shown = if fresh { status::compute(&view, masters, Times::Fresh, Now::read()) } else { keep };
        if shown.status == base || !self.leadership.is_leader() {
            return Ok(());
        }
        if !fresh {
            self.publisher.spend();
        }
        let body = json!({
            "apiVersion": DistributedLock::api_version(&()),
            "kind": DistributedLock::kind(&()),
            // Another object of the same name is refused.
            "metadata": {"name": subject.name, "uid": uid},
            "status": shown.status,
        });
        let api = Api::<DistributedLock>::namespaced(self.api.clone(), &subject.namespace);
        let params = PatchParams::apply(STATUS_MANAGER).force();
        match within("write the status", api.patch_status(&subject.name, &params, &Patch::Apply(&body))).await {
            Ok(_) => {
                self.publisher.wrote(subject, version, shown.status, shown.deadline);
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
#[path = "reconcile_tests.rs"]
mod tests;
