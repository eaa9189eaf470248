//! What status of each lock shows, when it may be refreshed, and which locks are to be looked at again.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::{Stream, stream};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

use super::budget::{Budget, Refreshes};
use super::{Subject, Watched};
use crate::api::DistributedLockStatus;

/// Keeps the budget and asks for reconciles.
#[derive(Debug)]
pub struct Publisher {
    pages: Mutex<Pages>,
    wake: Notify,
    reconcile: mpsc::UnboundedSender<ObjectRef<Watched>>,
}

#[derive(Debug)]
struct Pages {
    refreshes: Refreshes,
    objects: HashMap<String, ObjectRef<Watched>>,
    permits: HashSet<String>,
    written: HashMap<String, Written>,
}

/// What this process wrote, and on which version of the object: until the cache shows a newer one, this is what the API
/// server has.
#[derive(Debug)]
struct Written {
    over: Option<String>,
    status: DistributedLockStatus,
}

impl Publisher {
    /// A publisher of so many refreshes a second, and the locks that are to be reconciled. The stream does not end while
    /// the publisher lives.
    pub fn new(per_second: u32) -> (Self, impl Stream<Item = ObjectRef<Watched>> + Send + 'static) {
        let (reconcile, receiver) = mpsc::unbounded_channel();
        let pages = Pages {
            refreshes: Refreshes::new(Budget::new(per_second, Instant::now())),
            objects: HashMap::new(),
            permits: HashSet::new(),
            written: HashMap::new(),
        };
        let events = stream::unfold(receiver, |mut receiver| async { receiver.recv().await.map(|o| (o, receiver)) });
        (Self { pages: Mutex::new(pages), wake: Notify::new(), reconcile }, events)
    }

    /// The lock has news: it is reconciled at once.
    pub fn changed(&self, subject: &Subject) {
        // Fails only when the controller has ended, and the process with it.
        let _ = self.reconcile.send(subject.object());
    }

    /// The lock was renewed: its times are refreshed when its turn comes.
    pub fn renewed(&self, subject: &Subject) {
        let mut pages = self.pages();
        pages.objects.entry(subject.uid.clone()).or_insert_with(|| subject.object());
        pages.refreshes.ask(&subject.uid);
        drop(pages);
        self.wake.notify_one();
    }

    /// Whether it is the lock's turn to have its times refreshed. A turn is taken by asking.
    pub fn take_turn(&self, uid: &str) -> bool {
        self.pages().permits.remove(uid)
    }

    /// Whether a transition may show times: not while others wait for their turn.
    pub fn take_spare(&self) -> bool {
        self.pages().refreshes.take(Instant::now())
    }

    /// Until when the times that status shows may stand; `None` if this process wrote none.
    #[must_use]
    pub fn deadline(&self, uid: &str) -> Option<Instant> {
        self.pages().refreshes.deadline(uid)
    }

    /// The status that the API server has: `cached`, or what this process wrote since over the same `version`.
    #[must_use]
    pub fn current(
        &self,
        uid: &str,
        version: Option<&str>,
        cached: Option<&DistributedLockStatus>,
    ) -> DistributedLockStatus {
        match self.pages().written.get(uid) {
            Some(written) if written.over.as_deref() == version => written.status.clone(),
            _ => cached.cloned().unwrap_or_default(),
        }
    }

    /// `status` was written over `version`, and its times may stand until `deadline`.
    pub fn wrote(
        &self,
        subject: &Subject,
        version: Option<String>,
        status: DistributedLockStatus,
        deadline: Option<Instant>,
    ) {
        let mut pages = self.pages();
        pages.objects.entry(subject.uid.clone()).or_insert_with(|| subject.object());
        pages.refreshes.shows_until(&subject.uid, deadline);
        pages.written.insert(subject.uid.clone(), Written { over: version, status });
        drop(pages);
        self.wake.notify_one();
    }

    /// A write was made that could not wait for a turn.
    pub fn spend(&self) {
        self.pages().refreshes.spend(Instant::now());
    }

    /// The lock is gone.
    pub fn forget(&self, uid: &str) {
        let mut pages = self.pages();
        pages.refreshes.forget(uid);
        pages.objects.remove(uid);
        pages.permits.remove(uid);
        pages.written.remove(uid);
    }

    /// Forgets every lock that is not `alive`.
    pub fn retain(&self, alive: impl Fn(&str) -> bool) {
        let gone: Vec<_> = self.pages().objects.keys().filter(|uid| !alive(uid)).cloned().collect();
        for uid in &gone {
            self.forget(uid);
        }
    }

    /// Gives turns as the budget allows, for ever.
    pub async fn run(&self) {
        loop {
            let next = self.give_turns();
            let turn = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = turn => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// Gives the turns that are due, and says when the next ones are.
    fn give_turns(&self) -> Option<Instant> {
        let mut pages = self.pages();
        let due = pages.refreshes.due(Instant::now());
        pages.permits.extend(due.refresh.iter().cloned());
        for uid in due.refresh.iter().chain(&due.expire) {
            if let Some(object) = pages.objects.get(uid) {
                let _ = self.reconcile.send(object.clone());
            }
        }
        pages.refreshes.next_at()
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
