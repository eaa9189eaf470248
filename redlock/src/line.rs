//! The contenders of one client for the same lock, in line: only the first of them asks the masters.
//!
//! All at once they would split the votes among themselves. What the first has learned (a [`Session`]) goes on to the
//! next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::key::LockKey;

/// Higher priority first, then in order of arrival.
type Number = (Reverse<i16>, u64);

/// The lines of a client. A lock has one from when somebody contends for it until nobody does. `S` is passed along it.
#[derive(Debug)]
pub(super) struct Lines<S>(Mutex<HashMap<LockKey, Line<S>>>);

#[derive(Debug)]
struct Line<S> {
    waiting: BTreeMap<Number, oneshot::Sender<S>>,
    arrivals: u64,
}

impl<S> Default for Lines<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: Default> Lines<S> {
    /// Waits for the turn to contend for `key`.
    pub(super) async fn turn(self: &Arc<Self>, key: &LockKey, priority: i16) -> Turn<S> {
        let waiting = {
            let mut lines = self.lock();
            match lines.get_mut(key) {
                None => {
                    lines.insert(key.clone(), Line { waiting: BTreeMap::new(), arrivals: 0 });
                    None
                }
                Some(line) => {
                    line.arrivals += 1;
                    let number = (Reverse(priority), line.arrivals);
                    let (pass, passed) = oneshot::channel();
                    line.waiting.insert(number, pass);
                    Some(Waiting { lines: Arc::clone(self), key: key.clone(), number, passed })
                }
            }
        };
        let turn = |session| Turn { lines: Arc::clone(self), key: key.clone(), session };
        match waiting {
            None => turn(S::default()),
            // The sender is kept until it is sent to.
            Some(mut waiting) => turn((&mut waiting.passed).await.unwrap_or_default()),
        }
    }

    /// Passes the turn to the next in line; the line ends with the last.
    fn pass(&self, key: &LockKey, mut session: S) {
        let mut lines = self.lock();
        let Some(line) = lines.get_mut(key) else { return };
        while let Some((_, next)) = line.waiting.pop_first() {
            match next.send(session) {
                Ok(()) => return,
                // That one has gone.
                Err(back) => session = back,
            }
        }
        lines.remove(key);
    }

    // A panic in one of the short sections here cannot leave the map half changed.
    fn lock(&self) -> MutexGuard<'_, HashMap<LockKey, Line<S>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The turn to contend; passed on when dropped.
#[derive(Debug)]
pub(super) struct Turn<S: Default> {
    lines: Arc<Lines<S>>,
    key: LockKey,
    /// What those before have left.
    pub(super) session: S,
}

impl<S: Default> Drop for Turn<S> {
    fn drop(&mut self) {
        self.lines.pass(&self.key, std::mem::take(&mut self.session));
    }
}

/// One in line. When it is dropped it leaves; a turn that had just come to it goes on to the next.
struct Waiting<S: Default> {
    lines: Arc<Lines<S>>,
    key: LockKey,
    number: Number,
    passed: oneshot::Receiver<S>,
}

impl<S: Default> Drop for Waiting<S> {
    fn drop(&mut self) {
        if let Some(line) = self.lines.lock().get_mut(&self.key) {
            line.waiting.remove(&self.number);
        }
        // Turns are passed under the lock: one that is not here now never comes. One that was taken is the caller's.
        if let Ok(session) = self.passed.try_recv() {
            self.lines.pass(&self.key, session);
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

    /// Gets in line.
    fn enter(lines: &Arc<Lines<u32>>, priority: i16) -> BoxFuture<'static, Turn<u32>> {
        let lines = Arc::clone(lines);
        let mut turn = async move { lines.turn(&key(), priority).await }.boxed();
        assert!(turn.as_mut().now_or_never().is_none(), "another has the turn");
        turn
    }

    #[tokio::test]
    async fn the_turn_goes_by_priority_then_by_arrival_and_takes_along_what_was_learned() {
        let lines = Arc::<Lines<u32>>::default();
        let mut first = lines.turn(&key(), 0).await;
        assert_eq!(first.session, 0);
        let (low, mut high) = (enter(&lines, 0), enter(&lines, 1));
        let (also_low, also_high) = (enter(&lines, 0), enter(&lines, 1));
        first.session = 7;
        drop(first);
        let second = high.as_mut().now_or_never().expect("the turn");
        assert_eq!(second.session, 7);
        drop(second);
        drop(also_high.now_or_never().expect("the next turn"));
        drop(low.now_or_never().expect("the next turn"));
        drop(also_low.now_or_never().expect("the next turn"));
        assert!(lines.lock().is_empty(), "nobody is left");
        assert_eq!(lines.turn(&key(), 0).await.session, 0);
    }

    #[tokio::test]
    async fn one_that_leaves_the_line_stops_nobody() {
        let lines = Arc::<Lines<u32>>::default();
        let first = lines.turn(&key(), 0).await;
        let (gone, gone_with_the_turn, last) = (enter(&lines, 0), enter(&lines, 0), enter(&lines, 0));
        drop(gone);
        drop(first);
        // It has the turn, and has not looked.
        drop(gone_with_the_turn);
        drop(last.now_or_never().expect("the turn"));
        assert!(lines.lock().is_empty());
    }
}
