//! One schedule: clients that contend while things go wrong, all drawn from a seed.

use std::sync::Arc;
use std::time::Duration;

use redlock_operator::redlock::{Client, Lease, LeaseOptions, LockKey, Renewal, Wait};
use tokio::time::{Instant, sleep, timeout};

use crate::faults::Faults;
use crate::history::{Counts, History};
use crate::world::{SimNode, Surroundings, World};

/// Longest lease; the restart delay is longer.
pub const MAX_TTL: Duration = Duration::from_millis(200);
pub const RESTART_DELAY: Duration = Duration::from_millis(210);
pub const NODE_TIMEOUT: Duration = Duration::from_millis(10);
/// How long faults go on.
pub const FAULTS: Duration = Duration::from_secs(2);
/// Clients that contend while faults go on.
pub const CLIENTS: usize = 4;
const LOCKS: [&str; 2] = ["a", "b"];
/// Wall clocks differ by less than what the restart delay, less a vote, covers.
const WALL_CLOCKS_MICROS: u64 = 150_000;

/// Rules of the world that can be taken away, to see that they are needed.
#[derive(Clone, Copy)]
pub struct Rules {
    /// A node that went away is armed only after the restart delay.
    pub quarantine: bool,
    /// Nodes' clocks run faster than drift allows for.
    pub fast_clocks: bool,
    /// Wall clocks of clients differ by more than the restart delay.
    pub wrong_wall_clocks: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { quarantine: true, fast_clocks: false, wrong_wall_clocks: false }
    }
}

/// What a schedule came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub counts: Counts,
    /// Calls to nodes.
    pub calls: u64,
}

/// Runs the schedule of that seed; the error says which promise was broken.
pub fn run(seed: u64, rules: Rules, trace: bool) -> Result<Report, String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(simulate(seed, rules, trace)).map_err(|violation| format!("seed {seed}: {violation}"))
}

async fn simulate(seed: u64, rules: Rules, trace: bool) -> Result<Report, String> {
    let nodes = [1, 3, 3, 5, 5][usize::try_from(seed % 5).expect("small")];
    // Clocks may differ from true time by less than the drift of one in a hundred.
    let clocks = if rules.fast_clocks { 1040..=1060 } else { 991..=1009 };
    let world = World::new(seed, nodes, CLIENTS, clocks);
    let history = Arc::new(History::new(trace));
    let began = Instant::now();
    let apart = WALL_CLOCKS_MICROS * if rules.wrong_wall_clocks { 100 } else { 1 };
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let of = (0..nodes).map(|node| SimNode::new(world.clone(), client, node));
            let offset = i64::try_from(world.below(apart)).expect("small");
            let environment = Surroundings { world: world.clone(), began, offset };
            Client::with_environment(of.collect::<Vec<_>>(), NODE_TIMEOUT, Arc::new(environment))
        })
        .collect();
    let faults = Faults::new(world.clone(), Arc::clone(&history), rules, nodes);
    let mut tasks: Vec<_> = (0..)
        .zip(&clients)
        .map(|(number, client)| {
            let contender = Contender {
                world: world.clone(),
                client: client.clone(),
                identity: format!("c{number}"),
                history: Arc::clone(&history),
                faults: faults.clone(),
            };
            tokio::spawn(contender.contend())
        })
        .collect();
    tasks.push(tokio::spawn(faults.go_on()));
    for task in tasks {
        task.await.map_err(|e| e.to_string())?;
    }
    history.note(|| "faults have ended".to_owned());
    // So has every lease of before: all who ask now get it in turn.
    for name in LOCKS {
        let turns = clients.iter().map(|client| take_in_turn(client, name, &history));
        for turn in futures::future::join_all(turns).await {
            turn?;
        }
    }
    history.judge().map(|counts| Report { counts, calls: world.calls() })
}

async fn take_in_turn(client: &Client<SimNode>, name: &str, history: &History) -> Result<(), String> {
    let options = LeaseOptions::new("last", MAX_TTL);
    let asked = client.acquire(&key(name), &options, Wait::For(10 * MAX_TTL)).await;
    let lease = asked.map_err(|error| format!("{name} is not granted after all faults: {error}"))?;
    history.granted(&lease);
    lease.release().await;
    Ok(())
}

fn key(name: &str) -> LockKey {
    LockKey::new("sim", name).expect("a valid name")
}

/// A client that takes locks again and again.
struct Contender {
    world: World,
    client: Client<SimNode>,
    identity: String,
    history: Arc<History>,
    faults: Faults,
}

impl Contender {
    async fn contend(self) {
        let end = Instant::now() + FAULTS;
        while Instant::now() < end {
            let key = key(LOCKS[usize::from(self.world.below(3) == 0)]);
            let ttl = MAX_TTL / 5 + self.world.time_below(MAX_TTL * 4 / 5 + Duration::from_millis(1));
            let renewal = if self.world.below(3) == 0 { Renewal::None } else { Renewal::Every(ttl / 3) };
            let options = LeaseOptions { renewal, ..LeaseOptions::new(self.identity.clone(), ttl) };
            let Some(lease) = self.ask(&key, &options).await else {
                sleep(self.world.time_below(NODE_TIMEOUT) + Duration::from_millis(1)).await;
                continue;
            };
            self.history.granted(&lease);
            self.faults.after_grant();
            self.work(&lease).await;
            match self.world.below(4) {
                0 => drop(lease),
                1 => {
                    // Another process of the same holder goes on with it.
                    let owner = lease.owner().clone();
                    lease.abandon();
                    sleep(self.world.time_below(NODE_TIMEOUT)).await;
                    if let Ok(adopted) = self.client.adopt(&key, &owner, &options).await {
                        self.history.adopted(&adopted);
                        self.work(&adopted).await;
                        adopted.release().await;
                    }
                }
                _ => drop(lease.release().await),
            }
        }
    }

    async fn ask(&self, key: &LockKey, options: &LeaseOptions) -> Option<Lease> {
        let patience = self.world.time_below(2 * MAX_TTL);
        let asked = async {
            if self.world.below(4) == 0 {
                self.client.try_acquire(key, options).await
            } else {
                self.client.acquire(key, options, Wait::For(patience)).await
            }
        };
        // Now and then the caller goes away, at any await.
        if self.world.below(4) == 0 {
            timeout(self.world.time_below(NODE_TIMEOUT * 2), asked).await.ok()?.ok()
        } else {
            asked.await.ok()
        }
    }

    /// Holds the lock for a while, looking at random moments whether it still does.
    async fn work(&self, lease: &Lease) {
        let end = Instant::now() + self.world.time_below(3 * MAX_TTL / 2);
        while Instant::now() < end {
            let look = (Instant::now() + self.world.time_below(MAX_TTL / 4)).min(end);
            if tokio::time::timeout_at(look, lease.ended()).await.is_ok() {
                return self.history.lost(lease);
            }
            self.history.look(lease);
        }
    }
}
