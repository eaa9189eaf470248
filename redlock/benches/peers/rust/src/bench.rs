//! The workloads, one task per client: the same for the rslock peer and for the project's own engine.

// Counts become rates and percentiles: what a double rounds off does not show.
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

const HOLD: Duration = Duration::from_millis(1);
const HANDOFF_HOLD: Duration = Duration::from_millis(5);
const ERROR_PAUSE: Duration = Duration::from_millis(10);
const SHUTDOWN: Duration = Duration::from_secs(2);

/// One client's end of a lock library, bound to one key.
pub trait Client: Send + Sync + 'static {
    type Held: Send;
    /// Waits the library's own way until the lock is held, or fails.
    fn lock(&self) -> impl Future<Output = Result<Self::Held, String>> + Send;
    fn unlock(&self, held: Self::Held) -> impl Future<Output = Result<(), String>> + Send;
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    Uncontended,
    Contended,
    Handoff,
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::Contended => "contended",
            Self::Handoff => "handoff",
        }
    }
}

/// What the common flags say.
pub struct Config {
    pub masters: Vec<String>,
    pub workload: Workload,
    pub clients: usize,
    pub seconds: f64,
    pub ttl: Duration,
    pub warmup: f64,
    pub instances: usize,
}

impl Config {
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut config = Self {
            masters: Vec::new(),
            workload: Workload::Uncontended,
            clients: 1,
            seconds: 5.0,
            ttl: Duration::from_secs(10),
            warmup: 1.0,
            instances: 0,
        };
        while let Some(flag) = args.next() {
            let value = args.next().ok_or(format!("{flag} needs a value"))?;
            let bad = |_| format!("{flag}: {value} is no number");
            match flag.as_str() {
                "--masters" => config.masters = value.split(',').map(str::to_owned).collect(),
                "--workload" => {
                    config.workload = match value.as_str() {
                        "uncontended" => Workload::Uncontended,
                        "contended" => Workload::Contended,
                        "handoff" => Workload::Handoff,
                        _ => return Err(format!("no such workload: {value}")),
                    }
                }
                "--clients" => config.clients = value.parse().map_err(bad)?,
                "--seconds" => config.seconds = value.parse().map_err(|_| "--seconds: no number")?,
                "--ttl-ms" => config.ttl = Duration::from_millis(value.parse().map_err(bad)?),
                "--warmup" => config.warmup = value.parse().map_err(|_| "--warmup: no number")?,
                "--instances" => config.instances = value.parse().map_err(bad)?,
                _ => return Err(format!("no such flag: {flag}")),
            }
        }
        if config.masters.is_empty() {
            return Err("--masters is missing".to_owned());
        }
        if config.workload == Workload::Handoff {
            config.clients = 2;
        }
        if config.instances == 0 {
            config.instances = match config.workload {
                Workload::Uncontended => 1,
                Workload::Contended => config.clients.min(4),
                Workload::Handoff => 2,
            };
        }
        Ok(config)
    }

    pub fn key(&self, client: usize) -> String {
        match self.workload {
            Workload::Uncontended => format!("bench:own:{client}"),
            _ => "bench:one".to_owned(),
        }
    }
}

#[derive(Default)]
struct Counts {
    latencies: Vec<i64>, // ns
    ops_total: u64,
    errors: u64,
    hold: Duration,
    holds: u32,
}

struct Worker {
    counts: Mutex<Counts>,
    asked_at: AtomicI64, // ns of the pending acquire, -1 when none
}

pub struct Bench {
    config: Config,
    start: Instant,
    from: Duration,
    to: Duration,
    over: AtomicBool,
    ended: watch::Sender<bool>,
    inside: AtomicI64,
    violations: AtomicU64,
    released: AtomicI64, // ns of the start of the last hand-over, -1 before the first
    asking: [Notify; 2],
    got: [Notify; 2],
}

/// Nanoseconds; a run of centuries is not measured.
fn nanos(d: Duration) -> i64 {
    i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)
}

/// Processor time of this process so far.
pub fn cpu_seconds() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("every process may ask for its own usage");
    let seconds = |t: TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

/// Sleeps as exactly as a thread does: tokio's own timer rounds 1 ms up to 2.
async fn hold(time: Duration) {
    let _ = tokio::task::spawn_blocking(move || std::thread::sleep(time)).await;
}

impl Bench {
    pub fn new(config: Config) -> Self {
        let from = Duration::from_secs_f64(config.warmup);
        Self {
            start: Instant::now(),
            to: from + Duration::from_secs_f64(config.seconds),
            from,
            config,
            over: AtomicBool::new(false),
            ended: watch::Sender::new(false),
            inside: AtomicI64::new(0),
            violations: AtomicU64::new(0),
            released: AtomicI64::new(-1),
            asking: [Notify::new(), Notify::new()],
            got: [Notify::new(), Notify::new()],
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn in_window(&self, at: Duration) -> bool {
        at >= self.from && at < self.to
    }

    fn add_op(&self, worker: &Worker, at: Duration, latency: Duration) {
        let mut counts = worker.counts.lock().expect("no holder panics");
        counts.ops_total += 1;
        if self.in_window(at) {
            counts.latencies.push(nanos(latency));
        }
    }

    async fn add_error(&self, worker: &Worker) {
        if !self.over() && self.in_window(self.now()) {
            worker.counts.lock().expect("no holder panics").errors += 1;
        }
        tokio::time::sleep(ERROR_PAUSE).await;
    }

    /// Asks until the lock is held, counting the library's failures; none when the run ended first.
    async fn acquire<C: Client>(&self, worker: &Worker, client: &C) -> Option<C::Held> {
        while !self.over() {
            match client.lock().await {
                Ok(held) => return Some(held),
                Err(_) => self.add_error(worker).await,
            }
        }
        None
    }

    async fn release<C: Client>(&self, worker: &Worker, client: &C, held: C::Held) -> bool {
        let released = client.unlock(held).await.is_ok();
        if !released {
            self.add_error(worker).await;
        }
        released
    }

    fn ask(&self, worker: &Worker) -> Duration {
        let asked = self.now();
        worker.asked_at.store(nanos(asked), Ordering::Release);
        asked
    }

    fn enter(&self) {
        if self.inside.fetch_add(1, Ordering::SeqCst) != 0 {
            self.violations.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    async fn uncontended<C: Client>(&self, worker: &Worker, client: &C) {
        while !self.over() {
            let asked = self.ask(worker);
            let Some(held) = self.acquire(worker, client).await else {
                return;
            };
            if !self.release(worker, client, held).await {
                continue;
            }
            let done = self.now();
            worker.asked_at.store(-1, Ordering::Release);
            self.add_op(worker, done, done.saturating_sub(asked));
        }
    }

    async fn contended<C: Client>(&self, worker: &Worker, client: &C) {
        while !self.over() {
            let asked = self.ask(worker);
            let Some(lock) = self.acquire(worker, client).await else {
                return;
            };
            let held = self.now();
            worker.asked_at.store(-1, Ordering::Release);
            self.enter();
            hold(HOLD).await;
            self.leave();
            {
                let mut counts = worker.counts.lock().expect("no holder panics");
                counts.hold += self.now().saturating_sub(held);
                counts.holds += 1;
            }
            self.add_op(worker, held, held.saturating_sub(asked));
            self.release(worker, client, lock).await;
        }
    }

    async fn wait(&self, signal: &Notify) -> bool {
        let mut ended = self.ended.subscribe();
        tokio::select! {
            () = signal.notified() => true,
            _ = ended.wait_for(|ended| *ended) => false,
        }
    }

    async fn handoff<C: Client>(&self, worker: &Worker, client: &C, me: usize) {
        let other = 1 - me;
        if me == 1 && !self.wait(&self.got[other]).await {
            return;
        }
        while !self.over() {
            self.asking[me].notify_one();
            self.ask(worker);
            let Some(lock) = self.acquire(worker, client).await else {
                return;
            };
            let held = self.now();
            worker.asked_at.store(-1, Ordering::Release);
            self.enter();
            if let Ok(released) = u64::try_from(self.released.load(Ordering::Acquire)) {
                self.add_op(worker, held, held.saturating_sub(Duration::from_nanos(released)));
            }
            self.got[me].notify_one();
            if !self.wait(&self.asking[other]).await {
                return;
            }
            hold(HANDOFF_HOLD).await;
            self.leave();
            self.released.store(nanos(self.now()), Ordering::Release);
            self.release(worker, client, lock).await;
            if !self.wait(&self.got[other]).await {
                return;
            }
        }
    }

    pub async fn run<C: Client>(self, name: &str, masters: usize, note: &str, clients: Vec<C>) -> Value {
        let bench = Arc::new(self);
        let mut workers = Vec::new();
        let mut tasks = Vec::new();
        for (me, client) in clients.into_iter().enumerate() {
            let worker = Arc::new(Worker { counts: Mutex::default(), asked_at: AtomicI64::new(-1) });
            workers.push(worker.clone());
            let bench = bench.clone();
            tasks.push(tokio::spawn(async move {
                match bench.config.workload {
                    Workload::Uncontended => bench.uncontended(&worker, &client).await,
                    Workload::Contended => bench.contended(&worker, &client).await,
                    Workload::Handoff => bench.handoff(&worker, &client, me).await,
                }
            }));
        }
        tokio::time::sleep_until((bench.start + bench.from).into()).await;
        let cpu = cpu_seconds();
        tokio::time::sleep_until((bench.start + bench.to).into()).await;
        let cpu = cpu_seconds() - cpu;
        let end = nanos(bench.now());
        let pending = workers
            .iter()
            .map(|w| w.asked_at.load(Ordering::Acquire))
            .filter(|at| *at >= 0)
            .map(|at| end - at)
            .max()
            .unwrap_or(0);
        bench.over.store(true, Ordering::Release);
        bench.ended.send_replace(true);
        let _ = tokio::time::timeout(SHUTDOWN, async {
            for task in tasks {
                let _ = task.await;
            }
        })
        .await;
        bench.result(name, masters, note, &workers, cpu, pending)
    }

    fn result(&self, name: &str, masters: usize, note: &str, workers: &[Arc<Worker>], cpu: f64, pending: i64) -> Value {
        let config = &self.config;
        let mut all = Vec::new();
        let (mut total, mut errors, mut starved, mut squares) = (0, 0, 0, 0.0);
        let (mut hold, mut holds) = (Duration::ZERO, 0);
        for worker in workers {
            let counts = worker.counts.lock().expect("no holder panics");
            all.extend_from_slice(&counts.latencies);
            total += counts.ops_total;
            errors += counts.errors;
            starved += usize::from(counts.latencies.is_empty());
            squares += (counts.latencies.len() as f64).powi(2);
            hold += counts.hold;
            holds += counts.holds;
        }
        all.sort_unstable();
        let us = |ns: f64| (ns / 100.0).round() / 10.0;
        let percentile = |p: f64| {
            let rank = (p * all.len() as f64).ceil() as usize;
            all.get(rank.saturating_sub(1)).map(|ns| us(*ns as f64))
        };
        let ops = all.len() as f64;
        let fairness =
            if squares > 0.0 { (ops * ops / (config.clients as f64 * squares) * 1000.0).round() / 1000.0 } else { 0.0 };
        json!({
            "peer": name,
            "workload": config.workload.name(),
            "masters": masters,
            "clients": config.clients,
            "ops_per_s": ops / config.seconds,
            "p50_us": percentile(0.5),
            "p99_us": percentile(0.99),
            "p999_us": percentile(0.999),
            "max_us": percentile(1.0),
            "errors": errors,
            "violations": self.violations.load(Ordering::Relaxed),
            "instances": config.instances,
            "seconds": config.seconds,
            "ttl_ms": config.ttl.as_millis() as u64,
            "ops": all.len(),
            "ops_total": total,
            "starved": starved,
            "fairness": fairness,
            "hold_us": if holds > 0 { us(nanos(hold) as f64 / f64::from(holds)) } else { 0.0 },
            "pending_us": us(pending as f64),
            "window_cpu_s": cpu,
            "note": note,
        })
    }
}
