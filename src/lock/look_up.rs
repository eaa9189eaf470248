//! Looks up what is known of a lock: its cluster, the connection to it, and the state of its actor.

use std::sync::Arc;
use std::time::Duration;

use kube::Resource as _;
use kube::core::DeserializeGuard;
use tokio::time::timeout;
use tracing::warn;

use super::connections::{Engine, Unconnected};
use super::keeper::state::State;
use super::reconciler::Reconciler;
use super::silence;
use super::subject::Subject;
use crate::api::{DistributedLock, RedisLockCluster, WatchedLock};
use crate::operator::api_server::Error;
use crate::operator::claim::Served;
use crate::operator::error_chain;
use crate::operator::watch::WatchedNamespace;
use crate::operator::watch::locks::cluster_of;

/// How long a reconcile waits for the first lists.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// What is known of a lock when it is reconciled.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Which lock it is.
    pub(crate) subject: Subject,
    /// The object.
    pub(crate) object: Arc<WatchedLock>,
    /// Its cluster; `None` if that does not exist, or cannot be read.
    pub(crate) cluster: Option<RedisLockCluster>,
    /// Its namespace; `None` if the watch does not show it (yet).
    pub(crate) namespace: Option<Arc<WatchedNamespace>>,
    /// The connection to the cluster; `None` if it was not looked up.
    pub(crate) connection: Option<Result<Arc<Engine>, Unconnected>>,
    /// The state of its actor; `None` without an actor.
    pub(crate) state: Option<State>,
    /// Which operator serves the cluster; this one, where there is no cluster.
    pub(crate) served: Served,
    /// Whether this process leads.
    pub(crate) leads: bool,
    /// Whether what is known of the lock is too old to renew it.
    pub(crate) is_too_old: bool,
}

impl Snapshot {
    /// The lock, or why the object cannot be read as one.
    pub(crate) fn lock(&self) -> Result<&DistributedLock, &str> {
        self.object.0.as_ref().map_err(|invalid| invalid.error.as_str())
    }

    /// The engine, if the cluster is connected.
    pub(crate) fn engine(&self) -> Option<&Arc<Engine>> {
        self.connection.as_ref()?.as_ref().ok()
    }

    /// Why the cluster cannot be connected to, if it cannot.
    pub(crate) fn unconnected(&self) -> Option<&Unconnected> {
        self.connection.as_ref()?.as_ref().err()
    }
}

impl Reconciler {
    /// Looks up what is known of a lock.
    pub(crate) async fn look_up(&self, object: Arc<WatchedLock>) -> Result<Snapshot, Error> {
        let subject = Subject::of(&object);
        let object = self.with_own_status(object);
        let (cluster, connection) = match &object.0 {
            Ok(lock) => self.look_up_cluster(lock).await?,
            Err(_) => (None, None),
        };
        let state = self.keeper.state(&subject.uid);
        let served = cluster.as_ref().map_or(Served::Here, |cluster| self.ctx.claims.served(&cluster.metadata));
        let namespace = self.ctx.watches.namespace(&subject.namespace);
        let (leads, is_too_old) = (self.ctx.leadership.is_leader(), silence::is_too_long(&self.ctx));
        Ok(Snapshot { subject, object, cluster, namespace, connection, state, served, leads, is_too_old })
    }

    /// The object with the status that this process has written, if the watch does not show it yet. A grant that was written just before
    /// the API server went away is followed all the same.
    fn with_own_status(&self, object: Arc<WatchedLock>) -> Arc<WatchedLock> {
        let Ok(lock) = &object.0 else { return object };
        let (uid, version) = (lock.metadata.uid.as_deref().unwrap_or_default(), &lock.metadata.resource_version);
        let status = self.schedule.current(uid, version.as_deref(), lock.status.as_ref());
        if status == lock.status.clone().unwrap_or_default() {
            return object;
        }
        Arc::new(DeserializeGuard(Ok(DistributedLock { status: Some(status), ..lock.clone() })))
    }

    async fn look_up_cluster(
        &self,
        lock: &DistributedLock,
    ) -> Result<(Option<RedisLockCluster>, Option<Result<Arc<Engine>, Unconnected>>), Error> {
        // Before the first list the store shows no cluster, though it may exist.
        if timeout(LIST_TIMEOUT, self.ctx.watches.listed()).await.is_err() {
            return Err(Error::Timeout { action: "list the clusters".to_owned() });
        }
        let reference = cluster_of(lock);
        let cluster = self.ctx.watches.clusters.get(&reference).and_then(|cluster| cluster.0.clone().ok());
        let Some(cluster) = cluster else { return Ok((None, None)) };
        let connection = match self.connections.engine(&cluster).await {
            Ok(connection) => Some(connection),
            // A deleted lock does not wait for a Secret: without it, its lease expires.
            Err(error) if lock.meta().deletion_timestamp.is_some() => {
                warn!(error = error_chain(&error), "a lock is finalized without its cluster's Secret");
                None
            }
            Err(error) => return Err(error),
        };
        Ok((Some(cluster), connection))
    }
}
