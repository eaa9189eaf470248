//! Simulated nodes and the network between them and their clients.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use redlock_operator::redlock::node::{
    Bid, Freed, Heard, Kept, News, Node, Place, QUEUE_LIFETIME, Queued, Reading, Vote,
};
use redlock_operator::redlock::{Environment, LockKey, NodeError, Owner, Token};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

/// What a node's key may lack of its time to live because the node counts in whole milliseconds.
const GRANULARITY: Duration = Duration::from_millis(1);

/// One server: what it has in memory, and whether it runs.
#[derive(Default)]
struct Server {
    /// Counts its starts; a connection is to one of them.
    process: u64,
    up: bool,
    armed: bool,
    keys: BTreeMap<String, (String, Instant)>,
    fences: BTreeMap<String, u64>,
    queues: BTreeMap<String, Queue>,
    waiters: Vec<(String, usize, mpsc::UnboundedSender<Heard>)>,
    /// How fast its clock runs, in thousandths of true time.
    clock: u32,
}

/// Those who wait for a lock: by priority, then by arrival.
#[derive(Default)]
struct Queue {
    places: BTreeMap<(Reverse<i16>, Instant, Arc<str>), ()>,
    ends: Option<Instant>,
}

/// The way from one client to one node.
#[derive(Clone, Default)]
struct Link {
    /// The process that the connection was made to.
    process: u64,
    last_arrival: Option<Instant>,
    last_reply: Option<Instant>,
    requests_lost: bool,
    replies_lost: bool,
    slow: Duration,
}

struct State {
    random: StdRng,
    servers: Vec<Server>,
    /// By client and node.
    links: Vec<Vec<Link>>,
    /// Whether calls may take long, and clients be paused after one.
    pauses: bool,
    /// Calls so far.
    calls: u64,
}

/// The whole simulated world. Cheap to clone.
#[derive(Clone)]
pub struct World(Arc<Mutex<State>>);

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

impl World {
    /// All nodes up and armed, all links fast.
    pub fn new(seed: u64, nodes: usize, clients: usize, clocks: std::ops::RangeInclusive<u32>) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let servers = (0..nodes)
            .map(|_| Server {
                process: 1,
                up: true,
                armed: true,
                clock: random.random_range(clocks.clone()),
                ..Server::default()
            })
            .collect();
        let links = vec![vec![Link { process: 1, ..Link::default() }; nodes]; clients];
        Self(Arc::new(Mutex::new(State { random, servers, links, pauses: true, calls: 0 })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls that clients have made so far.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// A random number below `bound`.
    pub fn below(&self, bound: u64) -> u64 {
        self.state().random.random_range(0..bound)
    }

    /// A random time below `bound`, in whole milliseconds.
    pub fn time_below(&self, bound: Duration) -> Duration {
        Duration::from_millis(self.below(u64::try_from(bound.as_millis()).expect("a short time").max(1)))
    }

    /// The node dies, with what it had in memory unless it `keeps` its data.
    pub fn crash(&self, node: usize, keeps: bool) {
        let server = &mut self.state().servers[node];
        server.up = false;
        server.armed = false;
        server.waiters.clear();
        if !keeps {
            server.keys.clear();
            server.fences.clear();
            server.queues.clear();
        }
    }

    /// Whether the node runs.
    pub fn is_up(&self, node: usize) -> bool {
        self.state().servers[node].up
    }

    /// The node runs again, not armed, as another process: that one's number.
    pub fn start(&self, node: usize) -> u64 {
        let server = &mut self.state().servers[node];
        server.up = true;
        server.process += 1;
        server.process
    }

    /// That process may vote; one that has gone meanwhile stays out, as with the marker that names a `run_id`.
    pub fn arm(&self, node: usize, process: u64) {
        let server = &mut self.state().servers[node];
        server.armed |= server.up && server.process == process;
    }

    /// Cuts a client off from a random minority of nodes: what it is granted then rests on a bare majority.
    pub fn cut_off_minority(&self, client: usize) {
        let mut state = self.state();
        let State { random, links, .. } = &mut *state;
        let links = &mut links[client];
        let first = random.random_range(0..links.len());
        let (minority, nodes) = ((links.len() - 1) / 2, links.len());
        for (node, link) in links.iter_mut().enumerate() {
            link.requests_lost = (node + nodes - first) % nodes < minority;
            link.replies_lost = link.requests_lost;
        }
    }

    /// Cuts a client off from a node, one way or both.
    pub fn cut(&self, client: usize, node: usize, requests: bool, replies: bool) {
        let link = &mut self.state().links[client][node];
        (link.requests_lost, link.replies_lost) = (requests, replies);
    }

    /// Slows a link down.
    pub fn slow(&self, client: usize, node: usize, by: Duration) {
        self.state().links[client][node].slow = by;
    }

    /// Ends all faults of the network, and the pauses of clients.
    pub fn heal(&self) {
        let mut state = self.state();
        state.pauses = false;
        for link in state.links.iter_mut().flatten() {
            (link.requests_lost, link.replies_lost, link.slow) = (false, false, Duration::ZERO);
        }
    }
}

/// A wall clock that differs from client to client, and the world's randomness.
#[derive(Debug)]
pub struct Surroundings {
    pub world: World,
    pub began: Instant,
    pub offset: i64,
}

impl Environment for Surroundings {
    fn unix_micros(&self) -> u64 {
        let true_time = 1_796_000_000_000_000 + i64::try_from(self.began.elapsed().as_micros()).expect("a short time");
        u64::try_from(true_time + self.offset).expect("after 1970")
    }

    fn random_up_to(&self, bound: Duration) -> Duration {
        self.world.time_below(bound + Duration::from_millis(1))
    }
}

/// A node as one client sees it.
#[derive(Debug)]
pub struct SimNode {
    pub world: World,
    pub client: usize,
    pub node: usize,
    name: String,
}

impl SimNode {
    pub fn new(world: World, client: usize, node: usize) -> Self {
        Self { world, client, node, name: format!("n{node}") }
    }

    /// Sends a request, which is executed even if nobody waits for its answer any more.
    async fn call<T: Send + 'static>(
        &self,
        deadline: Instant,
        execute: impl FnOnce(&mut Server, Instant) -> Result<T, NodeError> + Send + 'static,
    ) -> Result<T, NodeError> {
        let (answer, mut answered) = oneshot::channel();
        let (arrival, pause, process) = {
            let mut state = self.world.state();
            let State { random, servers, links, pauses, calls } = &mut *state;
            *calls += 1;
            let (server, link) = (&servers[self.node], &mut links[self.client][self.node]);
            if !server.up {
                return Err(NodeError::Unreachable("connection refused".to_owned()));
            }
            if link.process != server.process {
                // The restart broke the connection: this call learns it, the next has a new one.
                link.process = server.process;
                return Err(NodeError::Unreachable("connection reset".to_owned()));
            }
            // Mostly fast, at times about as long as clients wait, and now and then as long as a lease.
            let delay = match random.random_range(0..200) {
                0 if *pauses => 250,
                1..10 => 15,
                _ => 2,
            };
            let arrival = Instant::now() + link.slow + Duration::from_millis(random.random_range(0..delay));
            // A connection keeps the order of its requests.
            let arrival = link.last_arrival.map_or(arrival, |last| last.max(arrival));
            link.last_arrival = Some(arrival);
            // The client may stop right after the answer, before it looks at it or at its clock.
            let pause = (*pauses && random.random_range(0..200) == 0).then(|| random.random_range(0..250));
            (arrival, pause.map(Duration::from_millis), link.process)
        };
        let (world, client, node) = (self.world.clone(), self.client, self.node);
        tokio::spawn(async move {
            sleep_until(arrival).await;
            let reply = {
                let mut state = world.state();
                let State { random, servers, links, .. } = &mut *state;
                let (server, link) = (&mut servers[node], &mut links[client][node]);
                if !server.up || server.process != process || link.requests_lost {
                    return;
                }
                let outcome = execute(server, Instant::now());
                let reply = Instant::now() + link.slow + Duration::from_millis(random.random_range(0..2));
                let reply = link.last_reply.map_or(reply, |last| last.max(reply));
                link.last_reply = Some(reply);
                (!link.replies_lost).then_some((reply, outcome))
            };
            if let Some((at, outcome)) = reply {
                sleep_until(at).await;
                // The client may have given up.
                let _ = answer.send(outcome);
            }
        });
        let in_time = timeout_at(deadline, &mut answered).await;
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
        match in_time {
            Ok(Ok(outcome)) => outcome,
            // The request or its answer was lost: the client waits in vain until its limit.
            Ok(Err(_)) => {
                sleep_until(deadline).await;
                Err(NodeError::Timeout)
            }
            Err(_) => Err(NodeError::Timeout),
        }
    }
}

impl Server {
    fn owner(&self, key: &str, now: Instant) -> Option<&str> {
        self.keys.get(key).filter(|(_, end)| now < *end).map(|(owner, _)| owner.as_str())
    }

    fn set(&mut self, key: &str, owner: &Owner, ttl: Duration, now: Instant) {
        // Counted in whole milliseconds from the last whole one: up to one is lost.
        let lasts = (ttl * 1000 / self.clock).saturating_sub(GRANULARITY);
        self.keys.insert(key.to_owned(), (owner.to_string(), now + lasts));
    }

    fn read(&self, key: &str, now: Instant) -> Reading {
        let held = self.keys.get(key).filter(|(_, end)| now < *end);
        let fence = self.fences.get(key).copied().and_then(Token::new);
        Reading { owner: held.map(|(o, _)| o.clone()), remaining: held.map(|(_, end)| *end - now), fence }
    }

    fn queue(&mut self, key: &str, now: Instant) -> &mut Queue {
        let queue = self.queues.entry(key.to_owned()).or_default();
        if queue.ends.is_some_and(|end| end <= now) {
            *queue = Queue::default();
        }
        queue
    }

    fn check_armed(&self) -> Result<(), NodeError> {
        if self.armed { Ok(()) } else { Err(NodeError::Quarantined) }
    }
}

impl Node for SimNode {
    fn name(&self) -> &str {
        &self.name
    }

    async fn acquire(&self, bid: &Bid, deadline: Instant) -> Result<Vote, NodeError> {
        let (key, owner, ttl) = (bid.key().redis_key().to_owned(), bid.owner().clone(), bid.ttl());
        self.call(deadline, move |server, now| {
            let free = server.owner(&key, now).is_none();
            if free {
                server.set(&key, &owner, ttl, now);
            }
            let (fence, token) = (server.fences.entry(key).or_default(), owner.token().get());
            let larger = token > *fence;
            *fence = token.max(*fence);
            match (free, larger) {
                (false, _) => Ok(Vote::Held),
                (true, _) if !server.armed => Err(NodeError::Quarantined),
                (true, true) => Ok(Vote::Yes),
                (true, false) => Ok(Vote::StaleToken),
            }
        })
        .await
    }

    async fn renew(&self, bid: &Bid, deadline: Instant) -> Result<Kept, NodeError> {
        let (key, owner, ttl) = (bid.key().redis_key().to_owned(), bid.owner().clone(), bid.ttl());
        self.call(deadline, move |server, now| {
            server.check_armed()?;
            match server.owner(&key, now) {
                None => Ok(Kept::Missing),
                Some(other) if other != owner.to_string() => Ok(Kept::Other),
                Some(_) => {
                    server.set(&key, &owner, ttl, now);
                    Ok(Kept::Yes)
                }
            }
        })
        .await
    }

    async fn seed(&self, bid: &Bid, deadline: Instant) -> Result<Kept, NodeError> {
        let (key, owner, ttl) = (bid.key().redis_key().to_owned(), bid.owner().clone(), bid.ttl());
        self.call(deadline, move |server, now| {
            server.check_armed()?;
            if server.owner(&key, now).is_some_and(|other| other != owner.to_string()) {
                return Ok(Kept::Other);
            }
            server.set(&key, &owner, ttl, now);
            Ok(Kept::Yes)
        })
        .await
    }

    async fn release(&self, bid: &Bid, wake: bool, deadline: Instant) -> Result<Freed, NodeError> {
        let (key, owner) = (bid.key().redis_key().to_owned(), bid.owner().clone());
        self.call(deadline, move |server, now| {
            if server.owner(&key, now) != Some(owner.to_string().as_str()) {
                return Ok(Freed::No);
            }
            server.keys.remove(&key);
            if !wake {
                return Ok(Freed::Yes);
            }
            let next = server.queue(&key, now).places.pop_first().map(|((_, _, waiter), ())| waiter);
            let news = News::Released { token: owner.token(), next: next.as_deref().map(Into::into) };
            server.waiters.retain(|(_, _, waiter)| !waiter.is_closed());
            for (_, index, waiter) in server.waiters.iter().filter(|(channel, _, _)| *channel == key) {
                let _ = waiter.send(Heard { node: *index, news: news.clone() });
            }
            Ok(if next.is_some() { Freed::Passed } else { Freed::Yes })
        })
        .await
    }

    async fn read(&self, key: &LockKey, deadline: Instant) -> Result<Reading, NodeError> {
        let key = key.redis_key().to_owned();
        self.call(deadline, move |server, now| Ok(server.read(&key, now))).await
    }

    async fn enqueue(&self, key: &LockKey, place: &Place, deadline: Instant) -> Result<Queued, NodeError> {
        let (key, place, waited) = (key.redis_key().to_owned(), place.clone(), place.since.elapsed());
        self.call(deadline, move |server, now| {
            let reading = server.read(&key, now);
            let places = &mut server.queue(&key, now).places;
            if !places.keys().any(|(_, _, waiter)| *waiter == place.waiter) {
                places.insert((Reverse(place.priority), now - waited, Arc::clone(&place.waiter)), ());
            }
            let ahead = places.keys().position(|(_, _, waiter)| *waiter == place.waiter).unwrap_or(0);
            server.queue(&key, now).ends = Some(now + QUEUE_LIFETIME);
            Ok(Queued { reading, ahead })
        })
        .await
    }

    async fn dequeue(&self, key: &LockKey, place: &Place, deadline: Instant) -> Result<(), NodeError> {
        let (key, place) = (key.redis_key().to_owned(), place.clone());
        self.call(deadline, move |server, now| {
            server.queue(&key, now).places.retain(|(_, _, waiter), ()| *waiter != place.waiter);
            Ok(())
        })
        .await
    }

    async fn subscribe(
        &self,
        key: &LockKey,
        index: usize,
        wake: mpsc::UnboundedSender<Heard>,
        deadline: Instant,
    ) -> Result<(), NodeError> {
        let key = key.redis_key().to_owned();
        self.call(deadline, move |server, _| {
            server.waiters.push((key, index, wake));
            Ok(())
        })
        .await
    }
}
