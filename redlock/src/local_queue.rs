//! The local queue: of one client's contenders for a lock, only the first asks the masters.
//!
//! All at once they would split the votes among themselves. What the first has learned (a `Session`) is passed on to the
//! next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::key::LockKey;

/// Higher priority first, then in order of arrival.
type Rank = (Reverse<i16>, u64);

/// The local queues of a client, one for each lock that somebody contends for. `S` is passed along a queue.
#[derive(Debug)]
pub(crate) struct LocalQueues<S>(Mutex<HashMap<LockKey, LocalQueue<S>>>);

#[derive(Debug)]
struct LocalQueue<S> {
    waiting: BTreeMap<Rank, oneshot::Sender<S>>,
    arrivals: u64,
}

impl<S> Default for LocalQueues<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: Default> LocalQueues<S> {
    /// Waits for the turn to contend for `key`.
    pub(crate) async fn turn(self: &Arc<Self>, key: &LockKey, priority: i16) -> Turn<S> {
        let waiting = {
            let mut queues = self.lock();
            match queues.get_mut(key) {
                None => {
                    queues.insert(key.clone(), LocalQueue { waiting: BTreeMap::new(), arrivals: 0 });
                    None
                }
                Some(queue) => {
                    queue.arrivals += 1;
                    let rank = (Reverse(priority), queue.arrivals);
                    let (pass, passed) = oneshot::channel();
                    queue.waiting.insert(rank, pass);
                    Some(Waiting { queues: Arc::clone(self), key: key.clone(), rank, passed })
                }
            }
        };
        let turn = |session| Turn { queues: Arc::clone(self), key: key.clone(), session };
        match waiting {
            None => turn(S::default()),
            // The sender stays in the queue until it is used.
            Some(mut waiting) => turn((&mut waiting.passed).await.unwrap_or_default()),
        }
    }

    /// Passes the turn to the next contender. The queue ends with the last.
    fn pass(&self, key: &LockKey, mut session: S) {
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(key) else { return };
        while let Some((_, next)) = queue.waiting.pop_first() {
            match next.send(session) {
                Ok(()) => return,
                // That contender has gone.
                Err(back) => session = back,
            }
        }
        queues.remove(key);
    }

    // A panic in one of the short sections here cannot leave the map half changed.
    fn lock(&self) -> MutexGuard<'_, HashMap<LockKey, LocalQueue<S>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The turn to contend. Passed on when dropped.
#[derive(Debug)]
pub(crate) struct Turn<S: Default> {
    queues: Arc<LocalQueues<S>>,
    key: LockKey,
    /// What the contenders before have left.
    pub(crate) session: S,
}

impl<S: Default> Drop for Turn<S> {
    fn drop(&mut self) {
        self.queues.pass(&self.key, std::mem::take(&mut self.session));
    }
}

/// A waiting contender. It leaves the queue when dropped; a turn that had just come to it is passed on.
struct Waiting<S: Default> {
    queues: Arc<LocalQueues<S>>,
    key: LockKey,
    rank: Rank,
    passed: oneshot::Receiver<S>,
}

impl<S: Default> Drop for Waiting<S> {
    fn drop(&mut self) {
        if let Some(queue) = self.queues.lock().get_mut(&self.key) {
            queue.waiting.remove(&self.rank);
        }
        // Turns are passed under the lock: one that is not here now never comes. One that was received is the caller's.
        if let Ok(session) = self.passed.try_recv() {
            self.queues.pass(&self.key, session);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::future::BoxFuture;

    use super::*;

    fn key() -> LockKey {
        LockKey::new("a", "b").unwrap()
    }

    /// Enters the local queue.
    fn enter(queues: &Arc<LocalQueues<u32>>, priority: i16) -> BoxFuture<'static, Turn<u32>> {
        let queues = Arc::clone(queues);
        let mut turn = async move { queues.turn(&key(), priority).await }.boxed();
        assert!(turn.as_mut().now_or_never().is_none(), "another has the turn");
        turn
    }

    #[tokio::test]
    async fn the_turn_goes_by_priority_then_by_arrival_and_takes_along_what_was_learned() {
        let queues = Arc::<LocalQueues<u32>>::default();
        let mut first = queues.turn(&key(), 0).await;
        assert_eq!(first.session, 0);
        let (low, mut high) = (enter(&queues, 0), enter(&queues, 1));
        let (also_low, also_high) = (enter(&queues, 0), enter(&queues, 1));
        first.session = 7;
        drop(first);
        let second = high.as_mut().now_or_never().expect("the turn");
        assert_eq!(second.session, 7);
        drop(second);
        drop(also_high.now_or_never().expect("the next turn"));
        drop(low.now_or_never().expect("the next turn"));
        drop(also_low.now_or_never().expect("the next turn"));
        assert!(queues.lock().is_empty(), "nobody is left");
        assert_eq!(queues.turn(&key(), 0).await.session, 0);
    }

    #[tokio::test]
    async fn a_contender_that_leaves_the_local_queue_stops_nobody() {
        let queues = Arc::<LocalQueues<u32>>::default();
        let first = queues.turn(&key(), 0).await;
        let (gone, gone_with_the_turn, last) = (enter(&queues, 0), enter(&queues, 0), enter(&queues, 0));
        drop(gone);
        drop(first);
        // It has the turn, and was not polled since.
        drop(gone_with_the_turn);
        drop(last.now_or_never().expect("the turn"));
        assert!(queues.lock().is_empty());
    }
}
