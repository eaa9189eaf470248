//! Faults of processes, servers and links, all drawn from a seed: what happens when, and for how long. What the processes
//! do meanwhile differs from run to run, and with it which of them holds the lock when it is hit.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{FutureExt as _, LocalBoxFuture};
use futures::stream::{FuturesUnordered, StreamExt as _};
use rand::rngs::StdRng;
use rand::seq::IteratorRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use redlock_test_servers::proxy::Flow;
use redlock_test_servers::stamp::Stamp;
use tokio::time::{Instant, sleep, sleep_until};

use crate::arena::{Arena, MASTERS, Process, end_all};
use crate::history::{Contender, ContenderFault, Entry, Event, MasterFault};
use crate::verdict::Verdict;

/// How many masters may be down at a time, unless a majority is.
const MINORITY: usize = MASTERS / 2;
/// How often the history is judged while the run goes on.
const JUDGED: Duration = Duration::from_secs(20);
/// Reports may be under way for so long.
const REPORTED: Duration = Duration::from_secs(5);
/// A wrong wall clock, in seconds.
const HOUR: i64 = 3600;

/// How hard a run is.
pub struct Plan {
    pub seed: u64,
    pub length: Duration,
    pub contenders: usize,
    /// Milliseconds between faults.
    pub pauses: RangeInclusive<u64>,
    /// Whether sometimes a majority of the masters is down.
    pub loses_majority: bool,
    /// Whether a lock that was free for too long ends the run.
    pub idle_fails: bool,
}

struct Chaos {
    arena: Arc<Arena>,
    seed: u64,
    random: StdRng,
    /// The contenders that no fault has at the moment.
    free: Vec<Option<Box<Process>>>,
    started: u32,
    is_down: [bool; MASTERS],
    /// They go on while `go_on` is polled.
    faults: FuturesUnordered<LocalBoxFuture<'static, Done>>,
}

/// A fault that is over.
enum Done {
    Master(usize),
    /// The contender in this slot runs on.
    Runs(usize, Box<Process>),
    /// The contender in this slot is dead.
    Died(usize),
}

/// Runs a plan to its end, or to the first violation. Returns what happened, and when the chaos was over.
pub async fn run(plan: &Plan) -> (Vec<Entry>, Stamp) {
    let arena = Arc::new(Arena::start(plan.seed).await);
    let mut chaos = Chaos {
        arena: Arc::clone(&arena),
        seed: plan.seed,
        random: drawn_from(plan.seed, 0),
        free: (0..plan.contenders).map(|_| None).collect(),
        started: 0,
        is_down: [false; MASTERS],
        faults: FuturesUnordered::new(),
    };
    for slot in 0..plan.contenders {
        let process = chaos.next_process();
        chaos.free[slot] = Some(process);
    }
    tokio::select! {
        () = chaos.go_on(plan) => {}
        () = until_violated(&arena, plan.idle_fails) => {}
    }
    while let Some(done) = chaos.faults.next().await {
        chaos.put_back(done);
    }
    let over = Stamp::now();
    end_all(chaos.free.into_iter().flatten().map(|process| *process).collect(), &arena.history).await;
    (arena.history.entries(), over)
}

/// Returns when the history so far has a violation, also with all reports that were under way.
async fn until_violated(arena: &Arena, idle_fails: bool) {
    loop {
        sleep(JUDGED).await;
        for pause in [REPORTED, Duration::ZERO] {
            let (history, now) = (arena.history.clone(), Stamp::now());
            let judged = tokio::task::spawn_blocking(move || Verdict::of(history.entries(), now));
            if !judged.await.expect("a verdict").is_violated(idle_fails) {
                break;
            }
            if pause.is_zero() {
                return;
            }
            sleep(pause).await;
        }
    }
}

impl Chaos {
    async fn go_on(&mut self, plan: &Plan) {
        let end = Instant::now() + plan.length;
        for step in 0.. {
            if Instant::now() >= end {
                return;
            }
            // What a step draws does not depend on what the steps before have found.
            self.random = drawn_from(self.seed, step);
            let next = Instant::now() + self.draw(plan.pauses.clone());
            loop {
                tokio::select! {
                    biased;
                    () = sleep_until(next) => break,
                    Some(done) = self.faults.next() => self.put_back(done),
                }
            }
            match self.random.random_range(0..20) {
                0 => self.cut_all(),
                1 if plan.loses_majority => self.hit_majority(),
                2..=9 => self.hit_master(),
                _ => self.hit_contender(),
            }
        }
    }

    fn put_back(&mut self, done: Done) {
        match done {
            Done::Master(index) => self.is_down[index] = false,
            Done::Runs(slot, process) => self.free[slot] = Some(process),
            Done::Died(slot) => self.free[slot] = Some(self.next_process()),
        }
    }

    /// A new contender, on the right clock or a wrong one.
    fn next_process(&mut self) -> Box<Process> {
        let contender = Contender(self.started);
        self.started += 1;
        let offset = [0, 0, HOUR, -HOUR][drawn_from(!self.seed, contender.0.into()).random_range(0..4)];
        Box::new(self.arena.spawn(contender, offset, None))
    }

    fn hit_contender(&mut self) {
        let (fault, length) = match self.random.random_range(0..20) {
            0..=7 => (ContenderFault::ShortStop, self.draw(50..=1200)),
            8..=12 => (ContenderFault::LongStop, self.draw(1500..=6000)),
            _ => (ContenderFault::Kill, self.draw(0..=1500)),
        };
        let holder = self.random.random_bool(0.5).then(|| self.arena.history.holder(0)).flatten();
        let slots: Vec<_> = (0..self.free.len()).filter(|&slot| self.free[slot].is_some()).collect();
        // Two are left, to wait and to hold.
        if slots.len() <= 2 {
            return;
        }
        let holds = |&&slot: &&usize| self.free[slot].as_ref().map(|process| process.contender) == holder;
        let Some(slot) = slots.iter().find(holds).or_else(|| slots.iter().choose(&mut self.random)) else { return };
        let (slot, history) = (*slot, self.arena.history.clone());
        let Some(process) = self.free[slot].take() else { return };
        let fault = async move {
            if fault == ContenderFault::Kill {
                process.kill(&history).await;
                sleep(length).await;
                return Done::Died(slot);
            }
            process.stop(&history, fault);
            sleep(length).await;
            process.go_on(&history);
            Done::Runs(slot, process)
        };
        self.faults.push(fault.boxed_local());
    }

    fn hit_master(&mut self) {
        let up: Vec<_> = (0..MASTERS).filter(|&index| !self.is_down[index]).collect();
        let fault = *MasterFault::ALL.iter().choose(&mut self.random).expect("a fault");
        if MASTERS - up.len() < MINORITY {
            let index = *up.iter().choose(&mut self.random).expect("more than a minority");
            self.hit(index, fault);
        }
    }

    /// A majority at once, of all masters that are up: by faults of which it comes back soon, or by a loss of data.
    fn hit_majority(&mut self) {
        let up: Vec<_> = (0..MASTERS).filter(|&index| !self.is_down[index]).collect();
        let forgets = self.random.random_bool(0.25);
        let faults: Vec<_> = MasterFault::ALL.into_iter().filter(|fault| fault.forgets() == forgets).collect();
        for index in up.into_iter().sample(&mut self.random, MASTERS / 2 + 1) {
            let fault = *faults.iter().choose(&mut self.random).expect("a fault");
            self.hit(index, fault);
        }
    }

    fn hit(&mut self, index: usize, fault: MasterFault) {
        let length = match fault {
            MasterFault::Stop => self.draw(100..=4000),
            MasterFault::Crash => self.draw(0..=1000),
            // About half of the cuts end at once.
            MasterFault::Cut => self.draw(0..=1500).saturating_sub(self.draw(0..=1500)),
            _ => self.draw(100..=2000),
        };
        let late = self.draw(10..=150);
        self.is_down[index] = true;
        let arena = Arc::clone(&self.arena);
        let fault = async move {
            befall(&arena, index, fault, length, late).await;
            Done::Master(index)
        };
        self.faults.push(fault.boxed_local());
    }

    /// Resets all connections at one moment, and accepts new ones at once.
    fn cut_all(&mut self) {
        for index in (0..MASTERS).filter(|&index| !self.is_down[index]) {
            self.arena.history.push(Event::Down(index, MasterFault::Cut));
            self.arena.masters[index].link.cut();
            self.arena.masters[index].link.heal();
            self.arena.history.push(Event::Up(index));
        }
    }

    /// A time in milliseconds.
    fn draw(&mut self, millis: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.random.random_range(millis))
    }
}

/// Randomness for one step of a run.
fn drawn_from(seed: u64, step: u64) -> StdRng {
    StdRng::seed_from_u64(seed.wrapping_shl(20).wrapping_add(step))
}

/// A fault of a master, from its beginning to when it can vote again. `late` is how long bytes take if they are late.
async fn befall(arena: &Arena, index: usize, fault: MasterFault, length: Duration, late: Duration) {
    let master = &arena.masters[index];
    arena.history.push(Event::Down(index, fault));
    match fault {
        MasterFault::Crash => {
            let mut server = master.server.lock().await;
            server.crash().await;
            let lost = Instant::now();
            sleep(length).await;
            server.restart().await;
            drop(server);
            return arena.rearm(index, lost).await;
        }
        MasterFault::Flush => {
            let _: String = master.server.lock().await.run("FLUSHALL").await;
            return arena.rearm(index, Instant::now()).await;
        }
        MasterFault::Stop => {
            let server = master.server.lock().await;
            server.freeze();
            sleep(length).await;
            server.thaw();
        }
        MasterFault::Cut => {
            master.link.cut();
            sleep(length).await;
        }
        MasterFault::HoldRequests => {
            master.link.requests(Flow::Hold);
            sleep(length).await;
        }
        MasterFault::HoldAnswers => {
            master.link.answers(Flow::Hold);
            sleep(length).await;
        }
        MasterFault::Late => {
            master.link.requests(Flow::Late(late));
            master.link.answers(Flow::Late(late));
            sleep(length).await;
        }
    }
    master.link.heal();
    arena.history.push(Event::Up(index));
}
