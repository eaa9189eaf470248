//! A master and an environment as a client's engine sees them.

use std::fmt::Debug;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redlock_engine::claim::Claim;
use redlock_engine::master::{Extension, Heard, Master, Place, Queued, Reading, ReleaseAnswer, Vote};
use redlock_engine::voters::Voters;
use redlock_engine::{Environment, LockKey, MasterError, Owner, Token};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::link::{Connection, Delivery, Member, Waiter};
use crate::server::Server;
use crate::world::World;

/// A master as one client sees it.
#[derive(Debug)]
pub struct SimMaster {
    world: World,
    client: usize,
    master: usize,
    name: String,
}

impl SimMaster {
    pub fn new(world: World, client: usize, master: usize) -> Self {
        Self { world, client, master, name: format!("m{master}") }
    }

    /// Sends a request. It is executed even if nobody waits for its answer any more.
    async fn call<T: Debug + Send + 'static>(
        &self,
        deadline: Instant,
        what: impl FnOnce() -> String + Send + 'static,
        execute: impl FnOnce(&mut Server, Connection, Instant) -> Result<T, MasterError> + Send + 'static,
    ) -> Result<T, MasterError> {
        self.world.disturb(self.client);
        let pending = Arc::<PendingAnswer<T>>::default();
        let (answer, began, trace) = (Arc::clone(&pending), self.world.began, self.world.trace);
        let request = move |server: &mut Server, of: Connection, now: Instant| -> Delivery {
            let outcome = execute(server, of, now);
            if trace {
                let (at, Connection { client, master, .. }) = (now - began, of);
                println!("{at:>12.3?}     m{master} for process {client}: {} -> {outcome:?}", what());
            }
            Box::new(move |stands| answer.answer(if stands { outcome } else { Err(broken()) }))
        };
        let connection = {
            let mut state = self.world.now();
            let connection = state.send(self.client, self.master, Instant::now(), Box::new(request))?;
            let (client, pending) = (self.client, Arc::clone(&pending));
            state.when_running(client, deadline, move |_, _| pending.time_out());
            connection
        };
        let outcome = poll_fn(|context| pending.poll(context)).await;
        self.world.disturb(self.client);
        outcome.unwrap_or_else(|| {
            self.world.now().timed_out(connection, Instant::now());
            Err(MasterError::Timeout)
        })
    }
}

fn broken() -> MasterError {
    MasterError::Unreachable("connection reset".to_owned())
}

/// The answer to a call, once there is one. If it is there when the caller is polled it counts, even after the deadline.
struct PendingAnswer<T>(Mutex<Answer<T>>);

struct Answer<T> {
    outcome: Option<Result<T, MasterError>>,
    timed_out: bool,
    waiting: Option<Waker>,
}

impl<T> Default for PendingAnswer<T> {
    fn default() -> Self {
        Self(Mutex::new(Answer { outcome: None, timed_out: false, waiting: None }))
    }
}

impl<T> PendingAnswer<T> {
    fn change(&self, change: impl FnOnce(&mut Answer<T>)) {
        let mut answer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut answer);
        if let Some(waiting) = answer.waiting.take() {
            waiting.wake();
        }
    }

    fn answer(&self, outcome: Result<T, MasterError>) {
        self.change(|answer| answer.outcome = Some(outcome));
    }

    fn time_out(&self) {
        self.change(|answer| answer.timed_out = true);
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Result<T, MasterError>>> {
        let mut answer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if answer.outcome.is_some() || answer.timed_out {
            return Poll::Ready(answer.outcome.take());
        }
        answer.waiting = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Master for SimMaster {
    fn name(&self) -> &str {
        &self.name
    }

    fn join(&self, index: usize, voters: &Arc<Voters>) {
        self.world.now().join(self.client, self.master, Member { index, voters: Arc::clone(voters) });
    }

    async fn reachable(&self) {
        poll_fn(|context| self.world.now().poll_reachable(self.client, self.master, context)).await;
    }

    async fn acquire(&self, claim: &Claim, deadline: Instant) -> Result<Vote, MasterError> {
        let (key, owner, ttl) = (claim.key().clone(), claim.owner().clone(), claim.ttl());
        let what = command_text("acquire", &key, &owner);
        self.call(deadline, what, move |server, _, now| server.acquire(&key, &owner, ttl, now)).await
    }

    async fn renew(&self, claim: &Claim, deadline: Instant) -> Result<Extension, MasterError> {
        let (key, owner, ttl) = (claim.key().clone(), claim.owner().clone(), claim.ttl());
        let what = command_text("renew", &key, &owner);
        self.call(deadline, what, move |server, _, now| server.renew(&key, &owner, ttl, now)).await
    }

    async fn seed(&self, claim: &Claim, deadline: Instant) -> Result<Extension, MasterError> {
        let (key, owner, ttl) = (claim.key().clone(), claim.owner().clone(), claim.ttl());
        let what = command_text("seed", &key, &owner);
        self.call(deadline, what, move |server, _, now| server.seed(&key, &owner, ttl, now)).await
    }

    async fn release(&self, claim: &Claim, wake: bool, deadline: Instant) -> Result<ReleaseAnswer, MasterError> {
        let (key, owner) = (claim.key().clone(), claim.owner().clone());
        let what = command_text("release", &key, &owner);
        self.call(deadline, what, move |server, _, now| Ok(server.release(&key, &owner, wake, now))).await
    }

    async fn read(&self, key: &LockKey, deadline: Instant) -> Result<Reading, MasterError> {
        let key = key.clone();
        let what = {
            let key = key.clone();
            move || format!("read {key}")
        };
        self.call(deadline, what, move |server, _, now| Ok(server.read(&key, now))).await
    }

    async fn enqueue(&self, key: &LockKey, place: &Place, deadline: Instant) -> Result<Queued, MasterError> {
        let (key, place, waited) = (key.clone(), place.clone(), place.waited());
        let what = queue_command_text("enqueue", &key, &place);
        self.call(deadline, what, move |server, _, now| Ok(server.enqueue(&key, &place, waited, now))).await
    }

    async fn dequeue(&self, key: &LockKey, place: &Place, deadline: Instant) -> Result<(), MasterError> {
        let (key, place) = (key.clone(), place.clone());
        let what = queue_command_text("dequeue", &key, &place);
        self.call(deadline, what, move |server, _, now| {
            server.dequeue(&key, &place, now);
            Ok(())
        })
        .await
    }

    async fn subscribe(
        &self,
        key: &LockKey,
        inbox: Token,
        index: usize,
        wake: mpsc::UnboundedSender<Heard>,
        deadline: Instant,
    ) -> Result<(), MasterError> {
        let channel = key.channel(inbox);
        // On the list before the request: a connection that is made meanwhile listens for the whole list.
        let waiter = Waiter { channel: channel.clone(), index, wake };
        self.world.now().links[self.client][self.master].waiters.push(waiter);
        let what = || "subscribe".to_owned();
        self.call(deadline, what, move |server, of, _| {
            server.listen(&channel, of);
            Ok(())
        })
        .await
    }
}

/// A command on an owner's key, for the trace.
fn command_text(command: &'static str, key: &LockKey, owner: &Owner) -> impl FnOnce() -> String + Send + 'static {
    let (key, owner) = (key.clone(), owner.clone());
    move || format!("{command} {key} for {owner}")
}

/// A command on the queue, for the trace.
fn queue_command_text(command: &'static str, key: &LockKey, place: &Place) -> impl FnOnce() -> String + Send + 'static {
    let (key, place) = (key.clone(), place.name().to_owned());
    move || format!("{command} {key} for {place}")
}

/// A wall clock that is wrong and jumps, and the world's randomness.
#[derive(Debug)]
pub struct SimEnvironment {
    pub world: World,
    pub client: usize,
}

impl Environment for SimEnvironment {
    fn unix_micros(&self) -> u64 {
        self.world.disturb(self.client);
        let mut state = self.world.now();
        let bound = state.plan.wall_clocks;
        let wrong_by = state.random.time(bound);
        let true_time = Duration::from_secs(1_796_000_000) + state.began.elapsed();
        u64::try_from((true_time + wrong_by).as_micros()).expect("this century")
    }

    fn random_up_to(&self, bound: Duration) -> Duration {
        self.world.disturb(self.client);
        self.world.time(bound + Duration::from_micros(1))
    }

    fn nonce(&self) -> u64 {
        self.world.draw(|random| random.below(u64::MAX))
    }
}
