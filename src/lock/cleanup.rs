//! Cleans up after objects that are gone: actors, connections, and what is remembered of their statuses and Secrets.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use kube::ResourceExt as _;
use tokio::time::sleep;
use tracing::debug;

use super::reconciler::Reconciler;
use super::subject::Subject;
use crate::operator::error_chain;

/// How often actors and connections of deleted objects are cleaned up.
const PERIOD: Duration = Duration::from_secs(5);

/// Cleans up, for ever.
pub(crate) async fn run(reconciler: &Reconciler) {
    loop {
        sleep(PERIOD).await;
        clean_up(reconciler).await;
    }
}

/// Ends the actors of locks that are gone without having been finalized (somebody removed the finalizer), and forgets
/// what is gone. Actors, connections and the rest exist only after the first lists, so that the stores are complete.
pub(crate) async fn clean_up(reconciler: &Reconciler) {
    let watches = &reconciler.ctx.watches;
    for subject in reconciler.keeper.subjects() {
        if !exists(reconciler, &subject) {
            if reconciler.ctx.leadership.is_leader() {
                reconciler.keeper.release(&subject.uid, None).await;
            } else {
                reconciler.keeper.abandon(&subject.uid).await;
            }
            reconciler.forget(&subject);
        }
    }
    let locks: HashSet<_> = watches.locks.store().state().iter().filter_map(|lock| lock.uid()).collect();
    reconciler.schedule.retain(|uid| locks.contains(uid));
    let clusters: HashSet<_> = watches.clusters.store().state().iter().filter_map(|cluster| cluster.uid()).collect();
    reconciler.connections.retain(|uid| clusters.contains(uid));
    reconciler.ctx.claims.retain(|uid| clusters.contains(uid));
    let mut users: HashMap<_, BTreeSet<String>> = HashMap::new();
    reconciler.client_secrets.retain(|binding| {
        let cluster = binding.cluster_ref();
        let namespaces = users.entry(cluster).or_insert_with_key(|cluster| watches.lock_index.namespaces_of(cluster));
        namespaces.contains(&binding.namespace)
    });
    if reconciler.ctx.leadership.is_leader() {
        for binding in reconciler.client_secrets.left_behind() {
            let is_needed = || watches.lock_index.is_needed(&binding.namespace, &binding.cluster_ref(), "");
            if let Err(error) = reconciler.client_secrets.delete_unless(&binding, is_needed).await {
                debug!(
                    namespace = binding.namespace,
                    error = error_chain(&error),
                    "a Secret for clients is left behind"
                );
            }
        }
    }
}

fn exists(reconciler: &Reconciler, subject: &Subject) -> bool {
    let lock = reconciler.ctx.watches.locks.get(&subject.object_ref());
    lock.is_some_and(|lock| lock.uid().as_deref() == Some(&subject.uid))
}
