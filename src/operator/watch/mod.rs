//! One watch and one store a kind, for the whole process. Whoever reacts to a kind subscribes here.
//!
//! # Layout
//! - [`Watch`]: the objects of a kind, as the API server last showed them, and what changes
//! - [`merge`]: the watches of several namespaces as one
//! - [`pulse`]: whether each watch is alive, by what the transport sees of it
//! - [`locks`]: which locks are on a cluster, which namespaces use it: looked up, not searched for

pub(crate) mod locks;
mod merge;
pub(crate) mod pulse;

use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use futures::channel::mpsc;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Namespace;
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, Lookup, ObjectRef, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::error_chain;
use super::metrics::Metrics;
use crate::api::{DistributedLock, RedisLockCluster};
use locks::LockIndex;
use merge::Merge;

/// A kind that is watched. An object that cannot be read (its definition is another version's) does not hide the others.
pub(crate) type Guarded<K> = DeserializeGuard<K>;
/// A namespace as it is watched: nothing but its metadata.
pub(crate) type WatchedNamespace = PartialObjectMeta<Namespace>;

/// A watch of a kind in one namespace, or in all of them.
pub(crate) type Source<K> = (Api<K>, watcher::Config);

/// A change that the API server reported. The store shows it already.
#[derive(Clone, Debug)]
pub(crate) enum Change<K> {
    /// The object was created or changed.
    Applied(Arc<K>),
    /// The object is gone.
    Deleted(Arc<K>),
    /// All objects were listed anew: any may have changed, and those that are gone were not reported.
    Listed,
}

/// Those that are told of the changes of a kind.
type Subscribers<K> = Arc<Mutex<Vec<mpsc::UnboundedSender<Change<K>>>>>;

/// The objects of a kind, and what changes of them. Cheap to clone.
pub(crate) struct Watch<K>
where
    K: Lookup + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    store: Store<K>,
    listed: watch::Receiver<bool>,
    subscribers: Subscribers<K>,
}

/// Sees each event after the store.
type Index<K> = Box<dyn Fn(&watcher::Event<K>) + Send + Sync>;

/// The task that feeds a [`Watch`].
pub(crate) struct Feed<K>
where
    K: Lookup + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    writer: Writer<K>,
    listed: watch::Sender<bool>,
    subscribers: Subscribers<K>,
    index: Index<K>,
}

/// Both kinds of this project, and the namespaces.
#[derive(Clone, Debug)]
pub(crate) struct Watches {
    /// All `RedisLockCluster`s.
    pub(crate) clusters: Watch<Guarded<RedisLockCluster>>,
    /// All `DistributedLock`s.
    pub(crate) locks: Watch<Guarded<DistributedLock>>,
    /// Which locks are on which cluster.
    pub(crate) lock_index: Arc<LockIndex>,
    /// All namespaces. Their uids are part of passwords, and clusters select them by their labels.
    pub(crate) namespaces: Watch<WatchedNamespace>,
}

/// The tasks that feed [`Watches`].
pub(crate) struct Feeds {
    /// Of the clusters.
    pub(crate) clusters: Feed<Guarded<RedisLockCluster>>,
    /// Of the locks.
    pub(crate) locks: Feed<Guarded<DistributedLock>>,
    /// Of the namespaces.
    pub(crate) namespaces: Feed<WatchedNamespace>,
}

// === impl Watches ===

impl Watches {
    /// Nothing known yet, and the tasks that will change that.
    pub(crate) fn new() -> (Self, Feeds) {
        let lock_index = Arc::<LockIndex>::default();
        let index = Arc::clone(&lock_index);
        let (clusters, clusters_feed) = Watch::new(|_| ());
        let (locks, locks_feed) = Watch::new(move |event| index.update(event));
        let (namespaces, namespaces_feed) = Watch::new(|_| ());
        let feeds = Feeds { clusters: clusters_feed, locks: locks_feed, namespaces: namespaces_feed };
        (Self { clusters, locks, lock_index, namespaces }, feeds)
    }

    /// Waits until all kinds are listed. Never ends if a watch has ended before.
    pub(crate) async fn listed(&self) {
        self.clusters.listed().await;
        self.locks.listed().await;
        self.namespaces.listed().await;
    }

    /// The namespace of that name; `None` if the watch does not show it (yet).
    pub(crate) fn namespace(&self, name: &str) -> Option<Arc<WatchedNamespace>> {
        self.namespaces.get(&ObjectRef::new(name))
    }
}

// === impl Watch ===

impl<K> Watch<K>
where
    K: Resource + Clone + Send + Sync + 'static,
    K::DynamicType: Default + Eq + Hash + Clone + Send + Sync,
{
    /// An empty watch, and what feeds it. `index` sees each event after the store has taken it up, before anybody is told.
    pub(crate) fn new(index: impl Fn(&watcher::Event<K>) + Send + Sync + 'static) -> (Self, Feed<K>) {
        let (store, writer) = reflector::store();
        let (sender, listed) = watch::channel(false);
        let subscribers = Arc::<Mutex<Vec<_>>>::default();
        let feed = Feed { writer, listed: sender, subscribers: Arc::clone(&subscribers), index: Box::new(index) };
        (Self { store, listed, subscribers }, feed)
    }

    /// The objects.
    pub(crate) fn store(&self) -> &Store<K> {
        &self.store
    }

    /// The object of that name, if there is one.
    pub(crate) fn get(&self, reference: &ObjectRef<K>) -> Option<Arc<K>> {
        self.store.get(reference)
    }

    /// References to all objects.
    pub(crate) fn all(&self) -> Vec<ObjectRef<K>> {
        self.store.state().iter().map(|object| ObjectRef::from_obj(&**object)).collect()
    }

    /// Waits until the objects were listed. Never ends if the watch has ended before.
    pub(crate) async fn listed(&self) {
        if self.listed.clone().wait_for(|listed| *listed).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// What changes from now on. A subscriber that comes after the first list is told [`Change::Listed`] at once.
    pub(crate) fn changes(&self) -> impl Stream<Item = Change<K>> + Send + 'static + use<K> {
        let (sender, changes) = mpsc::unbounded();
        let mut subscribers = lock(&self.subscribers);
        // Under the lock: a first list is either seen here, or told to the subscriber.
        if *self.listed.borrow() {
            // The receiver is right here.
            let _ = sender.unbounded_send(Change::Listed);
        }
        subscribers.push(sender);
        changes
    }

    /// References to the objects that are created or changed, and after a list to all of them.
    pub(crate) fn references(&self) -> impl Stream<Item = ObjectRef<K>> + Send + 'static + use<K> {
        let watch = self.clone();
        self.changes().flat_map(move |change| {
            futures::stream::iter(match change {
                Change::Applied(object) => vec![ObjectRef::from_obj(&*object)],
                Change::Deleted(_) => Vec::new(),
                Change::Listed => watch.all(),
            })
        })
    }
}

impl<K> Clone for Watch<K>
where
    K: Lookup + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    fn clone(&self) -> Self {
        let (store, listed, subscribers) = (self.store.clone(), self.listed.clone(), Arc::clone(&self.subscribers));
        Self { store, listed, subscribers }
    }
}

impl<K> Debug for Watch<K>
where
    K: Lookup + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

// === impl Feed ===

impl<K> Feed<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Default + Eq + Hash + Clone + Send + Sync,
{
    /// Watches the kind in these `namespaces` (none: in all, by one source) for ever. Errors are counted and logged, and the watch goes
    /// on after a pause.
    pub(crate) async fn run(mut self, sources: Vec<Source<K>>, namespaces: &BTreeSet<String>, metrics: Metrics) {
        let kind = K::kind(&K::DynamicType::default()).into_owned();
        let mut merge = Merge::new(namespaces.iter().cloned());
        let watch = |(index, (api, config)): (usize, Source<K>)| {
            // Which manager owns which field is half of an object, and nobody here reads it.
            let events = watcher(api, config).default_backoff().modify(|object| object.managed_fields_mut().clear());
            events.map(move |event| (index, event)).boxed()
        };
        let mut events = futures::stream::select_all(sources.into_iter().enumerate().map(watch));
        while let Some((index, event)) = events.next().await {
            match event {
                Ok(event) if namespaces.is_empty() => self.take(event),
                Ok(event) => {
                    let store = self.writer.as_reader();
                    for event in merge.take(index, event, || store.state()) {
                        self.take(event);
                    }
                }
                Err(error) => {
                    metrics.watch_failed(&kind);
                    tracing::warn!(kind, error = error_chain(&error), "a watch failed");
                }
            }
        }
    }

    /// Takes up an event: the store first, then the index, then the subscribers.
    pub(crate) fn take(&mut self, event: watcher::Event<K>) {
        self.writer.apply_watcher_event(&event);
        (self.index)(&event);
        let change = match event {
            watcher::Event::Apply(object) => Change::Applied(Arc::new(object)),
            watcher::Event::Delete(object) => Change::Deleted(Arc::new(object)),
            watcher::Event::InitDone => Change::Listed,
            // The store shows none of them before the list is complete.
            watcher::Event::Init | watcher::Event::InitApply(_) => return,
        };
        let mut subscribers = lock(&self.subscribers);
        if matches!(change, Change::Listed) {
            self.listed.send_replace(true);
        }
        subscribers.retain(|subscriber| subscriber.unbounded_send(change.clone()).is_ok());
    }

    /// Takes up a list of objects.
    #[cfg(test)]
    pub(crate) fn list(&mut self, objects: impl IntoIterator<Item = K>) {
        self.take(watcher::Event::Init);
        objects.into_iter().for_each(|object| self.take(watcher::Event::InitApply(object)));
        self.take(watcher::Event::InitDone);
    }
}

impl<K> Debug for Feed<K>
where
    K: Lookup + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").finish_non_exhaustive()
    }
}

fn lock<T>(subscribers: &Mutex<Vec<T>>) -> std::sync::MutexGuard<'_, Vec<T>> {
    // A panic in one of the short sections here leaves a list as good as before.
    subscribers.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn object(name: &str, version: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_owned());
        object.metadata.namespace = Some("shop".to_owned());
        object.metadata.resource_version = Some(version.to_owned());
        object
    }

    fn names(watch: &Watch<ConfigMap>) -> Vec<String> {
        let mut names: Vec<_> = watch.store().state().iter().filter_map(|o| o.metadata.name.clone()).collect();
        names.sort_unstable();
        names
    }

    fn told(changes: &mut (impl Stream<Item = Change<ConfigMap>> + Unpin)) -> Vec<String> {
        let name = |object: &ConfigMap| object.metadata.name.clone().unwrap_or_default();
        std::iter::from_fn(|| changes.next().now_or_never().flatten())
            .map(|change| match change {
                Change::Applied(object) => format!("applied {}", name(&object)),
                Change::Deleted(object) => format!("deleted {}", name(&object)),
                Change::Listed => "listed".to_owned(),
            })
            .collect()
    }

    #[tokio::test]
    async fn each_subscriber_is_told_each_change_after_the_store_shows_it() {
        let (watch, mut feed) = Watch::<ConfigMap>::new(|_| ());
        let (mut early, listed) = (Box::pin(watch.changes()), watch.listed());
        let mut listed = Box::pin(listed);
        assert!(listed.as_mut().now_or_never().is_none(), "nothing is listed yet");
        feed.list([object("a", "1"), object("b", "1")]);
        listed.await;
        let mut late = Box::pin(watch.changes());
        feed.take(watcher::Event::Apply(object("c", "2")));
        assert_eq!(names(&watch), ["a", "b", "c"]);
        feed.take(watcher::Event::Delete(object("a", "3")));
        assert_eq!(names(&watch), ["b", "c"]);
        for subscriber in [&mut early as &mut (dyn Stream<Item = Change<ConfigMap>> + Unpin + Send), &mut late] {
            assert_eq!(told(&mut Box::pin(subscriber)), ["listed", "applied c", "deleted a"]);
        }
    }

    #[tokio::test]
    async fn a_new_list_names_all_objects_and_hides_those_that_are_gone() {
        let (watch, mut feed) = Watch::<ConfigMap>::new(|_| ());
        feed.list([object("a", "1"), object("b", "1")]);
        let mut references = Box::pin(watch.references());
        let mut named = || {
            let mut names: Vec<_> =
                std::iter::from_fn(|| references.next().now_or_never().flatten()).map(|r| r.name).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(named(), ["a", "b"]);
        feed.list([object("b", "2"), object("c", "2")]);
        assert_eq!(named(), ["b", "c"]);
        assert_eq!(names(&watch), ["b", "c"]);
    }

    #[tokio::test]
    async fn the_index_sees_an_event_before_anybody_is_told() {
        let seen = Arc::new(Mutex::new(0));
        let count = Arc::clone(&seen);
        let (watch, mut feed) = Watch::<ConfigMap>::new(move |_| *lock_count(&count) += 1);
        let mut changes = Box::pin(watch.changes());
        feed.list([object("a", "1")]);
        assert_eq!(told(&mut changes), ["listed"]);
        assert_eq!(*lock_count(&seen), 3, "Init, InitApply, InitDone");
    }

    fn lock_count(count: &Mutex<u32>) -> std::sync::MutexGuard<'_, u32> {
        count.lock().unwrap()
    }
}
