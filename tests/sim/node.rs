//! A node as a client's engine sees it, and what else the engine sees of the world.

use std::fmt::Debug;
use std::time::Duration;

use redlock_operator::redlock::node::{Kept, Node, Reading, Vote};
use redlock_operator::redlock::{Environment, LockKey, NodeError, Owner};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::link::{Connection, Waiter};
use crate::server::Server;
use crate::world::World;

/// A node as one client sees it.
#[derive(Debug)]
pub struct SimNode {
    world: World,
    client: usize,
    node: usize,
    name: String,
}

impl SimNode {
    pub fn new(world: World, client: usize, node: usize) -> Self {
        Self { world, client, node, name: format!("n{node}") }
    }

    /// Sends a request, which is executed even if nobody waits for its answer any more.
    async fn call<T: Debug + Send + 'static>(
        &self,
        deadline: Instant,
        what: impl FnOnce() -> String + Send + 'static,
        execute: impl FnOnce(&mut Server, Connection, Instant) -> Result<T, NodeError> + Send + 'static,
    ) -> Result<T, NodeError> {
        self.world.disturb(self.client);
        let (answer, mut answered) = oneshot::channel();
        let connection = {
            let mut state = self.world.now();
            let (began, trace) = (state.began, state.trace);
            state.send(
                self.client,
                self.node,
                Instant::now(),
                Box::new(move |server, of, now| {
                    let outcome = execute(server, of, now);
                    if trace {
                        let (at, client, node) = (now - began, of.client, of.node);
                        println!("{at:>12.3?}     n{node} for process {client}: {} -> {outcome:?}", what());
                    }
                    Box::new(move |stands| {
                        let outcome = if stands { outcome } else { Err(broken()) };
                        // The caller may have given up.
                        let _ = answer.send(outcome);
                    })
                }),
            )?
        };
        let mut outcome = match timeout_at(deadline, &mut answered).await {
            Ok(Ok(outcome)) => Some(outcome),
            // The request or its answer was lost: the client waits in vain until its limit.
            Ok(Err(_)) => {
                sleep_until(deadline).await;
                None
            }
            Err(_) => None,
        };
        self.world.disturb(self.client);
        // Whoever was stopped sees answers, and the time, only when it goes on: an answer that is there by then counts.
        while let Some(until) = self.world.stopped(self.client) {
            sleep_until(until).await;
            outcome = outcome.or_else(|| answered.try_recv().ok());
        }
        outcome.unwrap_or_else(|| {
            self.world.now().timed_out(connection, Instant::now());
            Err(NodeError::Timeout)
        })
    }
}

fn broken() -> NodeError {
    NodeError::Unreachable("connection reset".to_owned())
}

impl Node for SimNode {
    fn name(&self) -> &str {
        &self.name
    }

    async fn acquire(&self, key: &LockKey, owner: &Owner, ttl: Duration, deadline: Instant) -> Result<Vote, NodeError> {
        let (key, owner) = (key.clone(), owner.clone());
        let what = said("acquire", &key, &owner);
        self.call(deadline, what, move |server, _, now| server.acquire(&key, &owner, ttl, now)).await
    }

    async fn renew(&self, key: &LockKey, owner: &Owner, ttl: Duration, deadline: Instant) -> Result<Kept, NodeError> {
        let (key, owner) = (key.clone(), owner.clone());
        let what = said("renew", &key, &owner);
        self.call(deadline, what, move |server, _, now| server.renew(&key, &owner, ttl, now)).await
    }

    async fn seed(&self, key: &LockKey, owner: &Owner, ttl: Duration, deadline: Instant) -> Result<Kept, NodeError> {
        let (key, owner) = (key.clone(), owner.clone());
        let what = said("seed", &key, &owner);
        self.call(deadline, what, move |server, _, now| server.seed(&key, &owner, ttl, now)).await
    }

    async fn release(&self, key: &LockKey, owner: &Owner, wake: bool, deadline: Instant) -> Result<bool, NodeError> {
        let (key, owner) = (key.clone(), owner.clone());
        let what = said("release", &key, &owner);
        self.call(deadline, what, move |server, _, now| Ok(server.release(&key, &owner, wake, now))).await
    }

    async fn read(&self, key: &LockKey, deadline: Instant) -> Result<Reading, NodeError> {
        let key = key.clone();
        let what = {
            let key = key.clone();
            move || format!("read {key}")
        };
        self.call(deadline, what, move |server, _, now| Ok(server.read(&key, now))).await
    }

    async fn subscribe(
        &self,
        key: &LockKey,
        index: usize,
        wake: mpsc::UnboundedSender<usize>,
        deadline: Instant,
    ) -> Result<(), NodeError> {
        let channel = key.redis_key().to_owned();
        // On the list before the server is asked: a connection that is made meanwhile listens for the whole list.
        let waiter = Waiter { channel: channel.clone(), index, wake };
        self.world.now().links[self.client][self.node].waiters.push(waiter);
        let what = || "subscribe".to_owned();
        self.call(deadline, what, move |server, of, _| {
            server.listen(&channel, of);
            Ok(())
        })
        .await
    }
}

/// What a trace says of a command.
fn said(command: &'static str, key: &LockKey, owner: &Owner) -> impl FnOnce() -> String + Send + 'static {
    let (key, owner) = (key.clone(), owner.clone());
    move || format!("{command} {key} for {owner}")
}

/// A wall clock that is wrong and jumps, and the world's randomness.
#[derive(Debug)]
pub struct Surroundings {
    pub world: World,
    pub client: usize,
}

impl Environment for Surroundings {
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
}
