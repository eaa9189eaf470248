//! The local queue: of one client's contenders for a lock, only the first asks the masters.
//!
//! All at once they would split the votes among themselves. What the first has learned (a `Session`) is passed on to the
//! next. The first, the *head*, has its turn for as long as it is polled: a future that nobody polls, in a `select!` that
//! does something else, must not keep the lock from the others.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::key::LockKey;
use crate::protocol::waiting::LONGEST_PAUSE;

/// Higher priority first, then in order of arrival.
type Rank = (Reverse<i16>, u64);

/// The local queues of a client, one for each lock that somebody contends for. `S` is passed along a queue.
#[derive(Debug)]
pub(crate) struct LocalQueues<S>(Mutex<HashMap<LockKey, LocalQueue<S>>>);

#[derive(Debug)]
struct LocalQueue<S> {
    /// Who has the turn.
    head: Option<(Rank, Arc<Stint>)>,
    waiting: BTreeMap<Rank, Waiter<S>>,
    /// What was left where nobody could take the turn.
    left: Option<S>,
    arrivals: u64,
    /// Contenders that have a rank. The queue ends with the last.
    seats: usize,
}

#[derive(Debug)]
struct Waiter<S> {
    terms: Terms,
    pass: oneshot::Sender<(Arc<Stint>, S)>,
}

/// How long a contender may have the turn without being polled.
#[derive(Clone, Copy, Debug)]
struct Terms {
    deadline: Option<Instant>,
    call_timeout: Duration,
}

/// One turn of one contender.
pub(crate) struct Stint {
    terms: Terms,
    state: Mutex<StintState>,
    displaced: Notify,
}

struct StintState {
    polled_at: Instant,
    is_over: bool,
    /// What to do where the turn ends although its contender is not polled.
    clean_up: Option<CleanUp>,
}

type CleanUp = Box<dyn FnOnce() + Send>;

/// A contender's rank in a local queue, kept until dropped.
#[derive(Debug)]
pub(crate) struct Seat<S: Default> {
    queues: Arc<LocalQueues<S>>,
    key: LockKey,
    rank: Rank,
    call_timeout: Duration,
}

/// The turn to contend. Passed on when dropped, unless it was taken away.
#[derive(Debug)]
pub(crate) struct Turn<'a, S: Default> {
    seat: &'a Seat<S>,
    stint: Arc<Stint>,
    /// What the contenders before have left.
    pub(crate) session: S,
}

// === impl LocalQueues ===

impl<S> Default for LocalQueues<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: Default> LocalQueues<S> {
    /// Gives a rank in the queue for `key`, behind those of the same priority that came before.
    pub(crate) fn seat(self: &Arc<Self>, key: &LockKey, priority: i16, call_timeout: Duration) -> Seat<S> {
        let mut queues = self.lock();
        let queue = queues.entry(key.clone()).or_insert_with(|| LocalQueue {
            head: None,
            waiting: BTreeMap::new(),
            left: None,
            arrivals: 0,
            seats: 0,
        });
        queue.arrivals += 1;
        queue.seats += 1;
        let rank = (Reverse(priority), queue.arrivals);
        Seat { queues: Arc::clone(self), key: key.clone(), rank, call_timeout }
    }

    /// Takes the turn away from a head that was not polled for too long, and passes it on. Returns when to look again.
    fn replace_idle_head(&self, key: &LockKey) -> Instant {
        let now = Instant::now();
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(key) else { return now + LONGEST_PAUSE };
        let clean_up = match queue.head.as_ref().map(|(_, stint)| stint.end_if_idle(now)) {
            Some(Err(until)) => return until,
            Some(Ok(clean_up)) => clean_up,
            None => None,
        };
        queue.pass(S::default());
        drop(queues);
        if let Some(clean_up) = clean_up {
            clean_up();
        }
        now + LONGEST_PAUSE
    }

    /// Ends a turn that was not taken away before, and passes it on.
    fn end_turn(&self, key: &LockKey, stint: &Arc<Stint>, session: S) {
        let mut queues = self.lock();
        if let Some(queue) = queues.get_mut(key)
            && queue.head.as_ref().is_some_and(|(_, head)| Arc::ptr_eq(head, stint))
        {
            queue.pass(session);
        }
    }

    // A panic in one of the short sections here cannot leave the map half changed.
    fn lock(&self) -> MutexGuard<'_, HashMap<LockKey, LocalQueue<S>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> LocalQueue<S> {
    /// Passes the turn to the first contender whose time is not over: one that is over and still here is not polled.
    fn pass(&mut self, mut session: S) {
        let now = Instant::now();
        self.head = None;
        while let Some(rank) = self.first(now)
            && let Some(Waiter { terms, pass }) = self.waiting.remove(&rank)
        {
            let stint = Arc::new(Stint::new(terms));
            match pass.send((Arc::clone(&stint), session)) {
                Ok(()) => {
                    self.head = Some((rank, stint));
                    return;
                }
                // That contender has gone.
                Err((_, back)) => session = back,
            }
        }
        self.left = Some(session);
    }

    fn first(&self, now: Instant) -> Option<Rank> {
        let is_over = |waiter: &Waiter<S>| waiter.terms.deadline.is_some_and(|deadline| deadline <= now);
        self.waiting.iter().find(|(_, waiter)| !is_over(waiter)).map(|(rank, _)| *rank)
    }
}

// === impl Seat ===

impl<S: Default> Seat<S> {
    /// Waits for the turn to contend. The caller sees to it that the wait ends by `deadline`.
    pub(crate) async fn turn(&self, deadline: Option<Instant>) -> Turn<'_, S> {
        let (stint, session) = match self.enter(deadline) {
            Ok(turn) => turn,
            Err(mut waiting) => {
                let mut look = Instant::now();
                loop {
                    tokio::select! {
                        biased;
                        // The sender stays in the queue until it is used.
                        passed = &mut waiting.passed => break passed.unwrap_or_else(|_| {
                            (Arc::new(Stint::new(self.terms(deadline))), S::default())
                        }),
                        () = sleep_until(look) => look = self.queues.replace_idle_head(&self.key),
                    }
                }
            }
        };
        Turn { seat: self, stint, session }
    }

    /// Takes the turn if nobody has it, or waits for it. A head of lower priority is asked to pass it on.
    fn enter(&self, deadline: Option<Instant>) -> Result<(Arc<Stint>, S), Waiting<'_, S>> {
        let mut queues = self.queues.lock();
        let terms = self.terms(deadline);
        let Some(queue) = queues.get_mut(&self.key) else {
            // Never: the queue stands as long as this seat does.
            return Ok((Arc::new(Stint::new(terms)), S::default()));
        };
        let Some(((priority, _), head)) = &queue.head else {
            let stint = Arc::new(Stint::new(terms));
            queue.head = Some((self.rank, Arc::clone(&stint)));
            return Ok((stint, queue.left.take().unwrap_or_default()));
        };
        if self.rank.0 < *priority {
            head.displaced.notify_one();
        }
        let (pass, passed) = oneshot::channel();
        queue.waiting.insert(self.rank, Waiter { terms, pass });
        Err(Waiting { seat: self, passed })
    }

    fn terms(&self, deadline: Option<Instant>) -> Terms {
        Terms { deadline, call_timeout: self.call_timeout }
    }
}

impl<S: Default> Drop for Seat<S> {
    fn drop(&mut self) {
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.get_mut(&self.key) {
            queue.seats -= 1;
            if queue.seats == 0 {
                queues.remove(&self.key);
            }
        }
    }
}

/// A waiting contender. It leaves the queue when dropped; a turn that had just come to it is passed on.
struct Waiting<'a, S: Default> {
    seat: &'a Seat<S>,
    passed: oneshot::Receiver<(Arc<Stint>, S)>,
}

impl<S: Default> Drop for Waiting<'_, S> {
    fn drop(&mut self) {
        if let Some(queue) = self.seat.queues.lock().get_mut(&self.seat.key) {
            queue.waiting.remove(&self.seat.rank);
        }
        // Turns are passed under the lock: one that is not here now never comes. One that was received is the caller's.
        if let Ok((stint, session)) = self.passed.try_recv() {
            self.seat.queues.end_turn(&self.seat.key, &stint, session);
        }
    }
}

// === impl Turn ===

impl<S: Default> Turn<'_, S> {
    /// Its stint.
    pub(crate) fn stint(&self) -> Arc<Stint> {
        Arc::clone(&self.stint)
    }
}

impl<S: Default> Seat<S> {
    /// Whether another contender could take the turn.
    pub(crate) fn others_wait(&self) -> bool {
        self.queues.lock().get(&self.key).is_some_and(|queue| queue.first(Instant::now()).is_some())
    }
}

impl<S: Default> Drop for Turn<'_, S> {
    fn drop(&mut self) {
        self.seat.queues.end_turn(&self.seat.key, &self.stint, std::mem::take(&mut self.session));
    }
}

// === impl Stint ===

impl Stint {
    fn new(terms: Terms) -> Self {
        let state = StintState { polled_at: Instant::now(), is_over: false, clean_up: None };
        Self { terms, state: Mutex::new(state), displaced: Notify::new() }
    }

    /// The future's output, or `None` once the turn was taken away. Notes that the contender is polled.
    pub(crate) async fn run<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|context| if self.note_poll() { future.as_mut().poll(context).map(Some) } else { Poll::Ready(None) })
            .await
    }

    /// Waits until a contender of higher priority waits for the turn.
    pub(crate) async fn displaced(&self) {
        self.displaced.notified().await;
    }

    /// What to do where the turn ends although its contender is not polled.
    pub(crate) fn clean_up_with(&self, clean_up: impl FnOnce() + Send + 'static) {
        self.lock().clean_up = Some(Box::new(clean_up));
    }

    /// Whether the turn goes on.
    fn note_poll(&self) -> bool {
        let mut state = self.lock();
        state.polled_at = Instant::now();
        !state.is_over
    }

    /// Ends the turn if its contender was not polled for about two of its pauses, or is not polled any more at its
    /// deadline. Else returns until when it is left alone.
    fn end_if_idle(&self, now: Instant) -> Result<Option<CleanUp>, Instant> {
        let mut state = self.lock();
        let Terms { deadline, call_timeout } = self.terms;
        let idle = state.polled_at + 2 * LONGEST_PAUSE.max(call_timeout);
        // A call that is under way at the deadline still ends.
        let until = deadline.map_or(idle, |at| idle.min(at.max(state.polled_at) + 2 * call_timeout));
        if now < until {
            return Err(until);
        }
        state.is_over = true;
        Ok(state.clean_up.take())
    }

    // A panic in one of the short sections here leaves valid values.
    fn lock(&self) -> MutexGuard<'_, StintState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Stint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stint").field("terms", &self.terms).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
