//! What goes wrong in a schedule: nodes that crash, links that are cut or slow.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::history::History;
use crate::schedule::{CLIENTS, FAULTS, MAX_TTL, NODE_TIMEOUT, RESTART_DELAY, Rules};
use crate::world::World;

/// Breaks things, and lets nodes come back.
#[derive(Clone)]
pub struct Faults {
    world: World,
    history: Arc<History>,
    rules: Rules,
    nodes: usize,
    /// One in so many grants is followed at once by the crash of a node.
    crash_after: u64,
    /// Mean time between two faults.
    pace: Duration,
}

impl Faults {
    /// Faults of a schedule, as dense as its seed says.
    pub fn new(world: World, history: Arc<History>, rules: Rules, nodes: usize) -> Self {
        let (crash_after, pace) = (2 + world.below(8), Duration::from_millis(15 + world.below(85)));
        Self { world, history, rules, nodes, crash_after, pace }
    }

    /// Goes on for [`FAULTS`], then ends all faults and waits until every node is back.
    pub async fn go_on(self) {
        let end = Instant::now() + FAULTS;
        (0..CLIENTS).for_each(|client| self.world.cut_off_minority(client));
        while Instant::now() < end {
            sleep(self.world.time_below(self.pace * 2)).await;
            let client = self.one_of(CLIENTS);
            match self.world.below(10) {
                0 => self.crash(self.world.time_below(MAX_TTL)),
                1 | 2 => self.crash(self.world.time_below(NODE_TIMEOUT)),
                3..=5 => self.world.cut_off_minority(client),
                6 => self.cut(client),
                7 => self.world.slow(client, self.one_of(self.nodes), self.world.time_below(2 * NODE_TIMEOUT)),
                _ => (0..self.nodes).for_each(|node| {
                    self.world.cut(client, node, false, false);
                    self.world.slow(client, node, Duration::ZERO);
                }),
            }
        }
        self.world.heal();
        sleep(MAX_TTL + RESTART_DELAY).await;
    }

    /// A lock was granted just now: the worst moment for a node to forget it.
    pub fn after_grant(&self) {
        if self.world.below(self.crash_after) == 0 {
            self.crash(self.world.time_below(NODE_TIMEOUT));
        }
    }

    fn one_of(&self, count: usize) -> usize {
        usize::try_from(self.world.below(count as u64)).expect("below a usize")
    }

    /// Cuts random links of a client, one way or both.
    fn cut(&self, client: usize) {
        for node in 0..self.nodes {
            self.world.cut(client, node, self.world.below(2) == 0, self.world.below(2) == 0);
        }
    }

    /// A node crashes, comes back after `away`, and votes when the rules permit it.
    fn crash(&self, away: Duration) {
        let (node, keeps) = (self.one_of(self.nodes), self.world.below(4) == 0);
        if !self.world.is_up(node) {
            return;
        }
        self.history.note(|| format!("n{node} crashes, {} its data, {away:?}", if keeps { "keeps" } else { "loses" }));
        self.world.crash(node, keeps);
        let (world, quarantine, crashed) = (self.world.clone(), self.rules.quarantine, Instant::now());
        tokio::spawn(async move {
            sleep(away).await;
            let process = world.start(node);
            if quarantine {
                sleep_until(crashed + RESTART_DELAY).await;
            }
            world.arm(node, process);
        });
    }
}
