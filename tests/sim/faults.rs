//! What goes wrong in a schedule: nodes, links, clocks, processes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::link::Path;
use crate::plan::{FAULTS, Fault, LONGEST_PAUSE, LONGEST_TTL, NODE_TIMEOUT, RESTART_DELAY};
use crate::process::Process;
use crate::rules::Rule;
use crate::world::{State, World};

/// Goes on with faults for [`FAULTS`], then ends them.
pub async fn go_on(world: World, processes: Arc<[Process]>) {
    let end = Instant::now() + FAULTS;
    let pace = world.now().plan.pace;
    {
        let mut state = world.now();
        if state.plan.faults.contains(&Fault::CutMinority) {
            (0..processes.len()).for_each(|client| state.cut_minority(client));
        }
    }
    while Instant::now() < end {
        sleep(world.time(pace * 2)).await;
        let shuts_down = world.now().fault();
        if let Some(client) = shuts_down {
            processes[client].shut_down().await;
        }
    }
    world.now().heal();
}

impl State {
    /// One fault of those that the schedule has, or the end of some. Answers which process is to shut its client down.
    pub fn fault(&mut self) -> Option<usize> {
        let now = Instant::now();
        let (client, node) = (self.random.index(self.plan.clients), self.random.index(self.plan.nodes));
        let kinds = self.plan.faults.len();
        // As often as all faults of the network together come, one client's links are whole again.
        let kind = self.random.index(kinds + 2);
        match self.plan.faults.get(kind).copied() {
            Some(Fault::Crash) => self.crash(node, now),
            Some(Fault::Flush) => self.flush(node, now),
            Some(Fault::CutMinority) => self.cut_minority(client),
            Some(Fault::CutAny) => (0..self.plan.nodes).for_each(|node| {
                let paths = (self.draw_path(), self.draw_path());
                self.set_path(client, node, paths, now);
            }),
            Some(Fault::Slow) => self.links[client][node].slow = self.random.time(2 * NODE_TIMEOUT),
            Some(Fault::Reset) => self.reset(client, node, now),
            Some(Fault::SetClock) => {
                let (by, forward) = (self.random.time(LONGEST_TTL), !self.random.once_in(3));
                self.jump(node, by, forward, now);
            }
            Some(Fault::Stop) => {
                let pause = self.random.time(LONGEST_PAUSE);
                self.stop(client, pause);
            }
            Some(Fault::ShutDown) => return Some(client),
            None => self.mend(client, now),
        }
        None
    }

    /// A lock was granted just now: the worst moment for something to go wrong.
    pub fn after_grant(&mut self) {
        let rarely = self.plan.after_grant;
        if self.faulty && self.random.once_in(rarely) {
            let (node, now) = (self.random.index(self.plan.nodes), Instant::now());
            let kinds = self.plan.faults.len();
            match self.plan.faults.get(self.random.index(kinds.max(1))) {
                Some(Fault::Crash) => self.crash(node, now),
                Some(Fault::Flush) => self.flush(node, now),
                Some(Fault::SetClock) => {
                    let by = self.random.time(LONGEST_TTL);
                    self.jump(node, by, true, now);
                }
                _ => {}
            }
        }
    }

    fn draw_path(&mut self) -> Path {
        [Path::Open, Path::Open, Path::Lost, Path::Held][self.random.index(4)]
    }

    /// Cuts a client off from a random minority of nodes: what it is granted then rests on a bare majority.
    fn cut_minority(&mut self, client: usize) {
        let (nodes, now) = (self.plan.nodes, Instant::now());
        let (first, minority) = (self.random.index(nodes), (nodes - 1) / 2);
        let path = [Path::Lost, Path::Held][self.random.index(2)];
        for node in 0..nodes {
            let path = if (node + nodes - first) % nodes < minority { path } else { Path::Open };
            self.set_path(client, node, (path, path), now);
        }
    }

    fn mend(&mut self, client: usize, now: Instant) {
        for node in 0..self.plan.nodes {
            self.set_path(client, node, (Path::Open, Path::Open), now);
            self.links[client][node].slow = Duration::ZERO;
        }
    }

    /// Ends all faults. Nodes that are away come back in their time.
    pub fn heal(&mut self) {
        let now = Instant::now();
        self.note(now, || "faults end".to_owned());
        (self.faulty, self.healed) = (false, Some(now));
        self.stopped.fill(now);
        (0..self.plan.clients).for_each(|client| self.mend(client, now));
    }

    /// A node's process ends. It may come back at once, not armed, with its data or without; a process that votes comes
    /// after the restart delay.
    fn crash(&mut self, node: usize, now: Instant) {
        if !self.servers[node].up {
            return;
        }
        let keeps = self.random.once_in(4);
        self.note(now, || format!("n{node} crashes and {} its data", if keeps { "keeps" } else { "loses" }));
        self.tally.crashes += 1;
        if !keeps {
            self.servers[node].flush();
        }
        let away = self.random.time(2 * NODE_TIMEOUT);
        let at_once = self.random.once_in(2);
        if self.plan.rules.broken == Some(Rule::RestartDelay) {
            self.stop_node(node, now);
            self.start(node, now + away, true);
        } else {
            self.stop_node(node, now);
            if at_once {
                self.start(node, now + away, false);
            }
            self.start(node, now + RESTART_DELAY, true);
        }
    }

    /// A node forgets all, its marker too. That counts as a crash as soon as it is noticed.
    fn flush(&mut self, node: usize, now: Instant) {
        if !self.servers[node].armed {
            return;
        }
        self.note(now, || format!("n{node} is flushed"));
        self.tally.flushes += 1;
        self.servers[node].flush();
        let noticed = now + self.random.time(2 * NODE_TIMEOUT);
        let life = self.servers[node].life;
        let at_once = self.plan.rules.broken == Some(Rule::RestartDelay);
        self.at(noticed, move |state, at| {
            if state.servers[node].life != life {
                return;
            }
            if at_once {
                state.servers[node].armed = true;
            } else {
                state.stop_node(node, at);
                state.start(node, now + RESTART_DELAY, true);
            }
        });
    }

    fn stop_node(&mut self, node: usize, now: Instant) {
        self.servers[node].stop();
        self.servers[node].life += 1;
        self.break_all(node, now);
    }

    /// Starts a process then, unless the node crashes again before; the one before it has ended by then.
    fn start(&mut self, node: usize, then: Instant, votes: bool) {
        let life = self.servers[node].life;
        self.at(then, move |state, now| {
            if state.servers[node].life != life {
                return;
            }
            state.note(now, || format!("n{node} starts{}", if votes { " and will vote" } else { "" }));
            if state.servers[node].up {
                state.break_all(node, now);
            }
            state.servers[node].start();
            if votes {
                let armed = now + state.random.time(NODE_TIMEOUT);
                state.at(armed, move |state, _| {
                    let server = &mut state.servers[node];
                    server.armed |= server.life == life;
                });
            }
        });
    }
}
