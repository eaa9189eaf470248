//! The simulated world: servers, links and processes, and events in the order of its time.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker, ready};
use std::time::Duration;

use futures::FutureExt as _;
use redlock_engine::quorum::Quorum;
use tokio::time::{Instant, sleep_until};

use crate::link::Link;
use crate::plan::{LONGEST_PAUSE, LONGEST_TTL, Plan};
use crate::random::Random;
use crate::rules::Rule;
use crate::server::Server;

/// What happens at an event.
pub type EventHandler = Box<dyn FnOnce(&mut State, Instant) + Send>;

struct Event {
    at: Instant,
    /// Of two events at the same time the first planned happens first.
    order: u64,
    handler: EventHandler,
}

impl Ord for Event {
    // The earliest is the largest: a heap returns that first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

/// Counts of events, by which two runs are also compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub events: u64,
    pub calls: u64,
    pub crashes: u64,
    pub flushes: u64,
    pub reconnects: u64,
    pub jumps: u64,
    pub pauses: u64,
    /// Sum over all events and their times.
    pub digest: u64,
}

/// Everything in the world.
pub struct State {
    pub began: Instant,
    pub random: Random,
    pub servers: Vec<Server>,
    /// By client and master.
    pub links: Vec<Vec<Link>>,
    /// Number of the last connection: none is used twice.
    pub connections: u64,
    pub tally: Tally,
    /// Until when processes are stopped, by client.
    pub stopped: Vec<Instant>,
    /// Whether there are faults still.
    pub faulty: bool,
    /// When faults ended.
    pub healed: Option<Instant>,
    pub plan: Plan,
    /// Votes of owners so far.
    pub votes: HashMap<String, usize>,
    /// In which order owners had a majority.
    pub elected: HashMap<String, u64>,
    /// Until when a holder may count on its grant at most, by owner.
    pub proven: HashMap<String, Instant>,
    trace: bool,
    events: BinaryHeap<Event>,
    orders: u64,
    /// When the next event is due, unless an earlier one is planned.
    alarm: Option<Instant>,
    waker: Option<Waker>,
}

/// A handle of the world. Cheap to clone.
#[derive(Clone)]
pub struct World {
    state: Arc<Mutex<State>>,
    pub began: Instant,
    pub trace: bool,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

impl State {
    /// Plans an event.
    pub fn at(&mut self, at: Instant, handler: impl FnOnce(&mut Self, Instant) + Send + 'static) {
        self.orders += 1;
        self.events.push(Event { at, order: self.orders, handler: Box::new(handler) });
        if self.alarm.is_none_or(|alarm| at < alarm)
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }

    /// Plans an event that waits until a process is not stopped.
    pub fn when_running(
        &mut self,
        client: usize,
        at: Instant,
        handler: impl FnOnce(&mut Self, Instant) + Send + 'static,
    ) {
        self.at(at, move |state, now| {
            if now < state.stopped[client] {
                state.when_running(client, state.stopped[client], handler);
            } else {
                handler(state, now);
            }
        });
    }

    /// Runs all events that are due.
    fn catch_up(&mut self, now: Instant) {
        while self.events.peek().is_some_and(|event| event.at <= now) {
            let Some(event) = self.events.pop() else { return };
            self.tally.events += 1;
            let when = u64::try_from((event.at - self.began).as_micros()).expect("a short time");
            self.tally.digest = (self.tally.digest ^ when).wrapping_mul(0x0100_0000_01b3).wrapping_add(event.order);
            (event.handler)(self, event.at);
        }
    }

    /// Prints a line of the trace, if a schedule is replayed.
    pub fn note(&self, at: Instant, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>12.3?} {}", at - self.began, what());
        }
    }

    /// Whether `master` may lose all its keys now: so many other masters have each of them, for as long as its holder may
    /// count on it, that nobody else gets a majority.
    fn may_forget(&self, master: usize, now: Instant) -> bool {
        // Without so many masters nobody else has a majority.
        let needed = self.plan.masters - Quorum::of(self.plan.masters).votes_needed() + 1;
        self.servers[master].held(now).iter().all(|(key, owner)| {
            let proven = self.proven.get(owner).copied();
            let lasting = |server: &&Server| server.expires(key, owner, now) >= proven;
            let others = self.servers.iter().enumerate().filter(|(other, _)| *other != master);
            others.map(|(_, server)| server).filter(lasting).count() >= needed
        })
    }

    /// Sets a master's clock, forward only where the rules permit it.
    pub fn jump(&mut self, master: usize, by: Duration, forward: bool, now: Instant) {
        let anywhere = self.plan.rules.broken == Some(Rule::ClockJumps);
        if forward && !anywhere && !self.may_forget(master, now) {
            return;
        }
        self.note(now, || format!("m{master}'s clock jumps {by:?} {}", if forward { "forward" } else { "back" }));
        self.tally.jumps += 1;
        self.servers[master].set_clock(now, by, forward);
    }
}

impl World {
    /// All masters up and armed, all links fast.
    pub fn new(plan: &Plan, mut random: Random, trace: bool) -> Self {
        let (began, rules, masters) = (Instant::now(), plan.rules, plan.masters);
        let copies = usize::from(rules.broken == Some(Rule::OneCopy));
        let (slowest, rates) = if rules.broken == Some(Rule::ClockRates) { (1040, 20) } else { (991, 19) };
        let longest = if plan.long_leases { plan.longest_ttl } else { LONGEST_TTL };
        let mut server = || {
            let rate = slowest + u32::try_from(random.below(rates)).expect("small");
            let longest = if rules.broken == Some(Rule::LongestTtl) { Duration::MAX } else { longest };
            Server::new(rate, longest, rules.broken)
        };
        let servers = (0..masters + copies).map(|_| server()).collect();
        let mut connections = 0;
        let mut link = |client: usize, master: usize| {
            connections += 1;
            let server = match (client % 2, master) {
                (1, 0) if copies > 0 => masters,
                (1, 0) if plan.wrong_address => masters - 1,
                _ => master,
            };
            Link::new(server, connections, began)
        };
        let mut links = |client| (0..masters).map(|master| link(client, master)).collect();
        let links = (0..plan.clients).map(&mut links).collect();
        let (tally, votes, elected, proven, events) = Default::default();
        let state = State {
            began,
            random,
            servers,
            links,
            connections,
            tally,
            stopped: vec![began; plan.clients],
            faulty: true,
            healed: None,
            plan: plan.clone(),
            votes,
            elected,
            proven,
            trace,
            events,
            orders: 0,
            alarm: None,
            waker: None,
        };
        Self { state: Arc::new(Mutex::new(state)), began, trace }
    }

    /// The present world: all events that were due have happened.
    pub fn now(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.catch_up(Instant::now());
        state
    }

    /// Runs all events at their time.
    pub async fn run(self) {
        let alarm = sleep_until(Instant::now());
        tokio::pin!(alarm);
        poll_fn(|context| {
            loop {
                let next = {
                    let mut state = self.now();
                    state.waker = Some(context.waker().clone());
                    state.alarm = state.events.peek().map(|event| event.at);
                    state.alarm
                };
                let Some(next) = next else { return Poll::<()>::Pending };
                if alarm.deadline() != next {
                    alarm.as_mut().reset(next);
                }
                ready!(alarm.as_mut().poll(context));
            }
        })
        .await;
    }

    /// Prints a line of the trace, if a schedule is replayed.
    pub fn note(&self, what: impl FnOnce() -> String) {
        if self.trace {
            self.now().note(Instant::now(), what);
        }
    }

    /// Draws from the world's randomness.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        draw(&mut self.now().random)
    }

    /// A random time below `bound`.
    pub fn time(&self, bound: Duration) -> Duration {
        self.draw(|random| random.time(bound))
    }

    /// A point in the code of a process: sometimes it is stopped there, and sometimes all processes are at once, together
    /// with their timers.
    pub fn disturb(&self, client: usize) {
        let mut state = self.now();
        if let Some(pause) = state.disturb(client) {
            drop(state);
            // The clock jumps at the first poll, while the present code runs.
            let _ = tokio::time::advance(pause).now_or_never();
        }
    }
}

impl State {
    /// Stops a process.
    pub fn stop(&mut self, client: usize, pause: Duration) {
        let now = Instant::now();
        self.tally.pauses += 1;
        self.note(now, || format!("process {client} stops for {pause:?}"));
        self.stopped[client] = self.stopped[client].max(now + pause);
    }

    /// Sometimes stops a process here. Returns a pause if all processes are to stop.
    fn disturb(&mut self, client: usize) -> Option<Duration> {
        let rarely = self.plan.pauses;
        if !self.faulty || rarely == 0 || !self.random.once_in(rarely) {
            return None;
        }
        let pause = self.random.time(LONGEST_PAUSE);
        if !self.random.once_in(4) {
            self.stop(client, pause);
            return None;
        }
        self.tally.pauses += 1;
        self.note(Instant::now(), || format!("all processes stop for {pause:?}"));
        Some(pause)
    }
}
