//! The faults of a schedule: masters, links, clocks, processes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::link::Path;
use crate::plan::{CALL_TIMEOUT, Fault, LONGEST_PAUSE, LONGEST_TTL, RESTART_DELAY};
use crate::process::Process;
use crate::rules::Rule;
use crate::world::{State, World};

/// Makes faults for the plan's time, then ends them.
pub async fn run(world: World, processes: Arc<[Process]>) {
    let (pace, faulty_for) = {
        let state = world.now();
        (state.plan.pace, state.plan.faulty_for)
    };
    let end = Instant::now() + faulty_for;
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
    /// Makes one of the schedule's faults, or ends some. Returns the process that is to shut its client down.
    pub fn fault(&mut self) -> Option<usize> {
        let now = Instant::now();
        let (client, master) = (self.random.index(self.plan.clients), self.random.index(self.plan.masters));
        let kinds = self.plan.faults.len();
        // Two of these indexes are no fault: then one client's links are healed.
        let kind = self.random.index(kinds + 2);
        match self.plan.faults.get(kind).copied() {
            Some(Fault::Crash) => self.crash(master, now),
            Some(Fault::Flush) => self.flush(master, now),
            Some(Fault::CutMinority) => self.cut_minority(client),
            Some(Fault::CutAny) => (0..self.plan.masters).for_each(|master| {
                let paths = (self.draw_path(), self.draw_path());
                self.set_path(client, master, paths, now);
            }),
            Some(Fault::Slow) => self.links[client][master].slow = self.random.time(2 * CALL_TIMEOUT),
            Some(Fault::Reset) => self.reset(client, master, now),
            Some(Fault::SetClock) => {
                let (by, forward) = (self.random.time(LONGEST_TTL), !self.random.once_in(3));
                self.jump(master, by, forward, now);
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

    /// Perhaps makes a fault right after a grant, its worst moment.
    pub fn after_grant(&mut self) {
        let rarely = self.plan.after_grant;
        if self.faulty && self.random.once_in(rarely) {
            let (master, now) = (self.random.index(self.plan.masters), Instant::now());
            let kinds = self.plan.faults.len();
            match self.plan.faults.get(self.random.index(kinds.max(1))) {
                Some(Fault::Crash) => self.crash(master, now),
                Some(Fault::Flush) => self.flush(master, now),
                Some(Fault::SetClock) => {
                    let by = self.random.time(LONGEST_TTL);
                    self.jump(master, by, true, now);
                }
                _ => {}
            }
        }
    }

    fn draw_path(&mut self) -> Path {
        [Path::Open, Path::Open, Path::Lost, Path::Held][self.random.index(4)]
    }

    /// Cuts a client off from a random minority of masters: its next grants rest on a bare majority.
    fn cut_minority(&mut self, client: usize) {
        let (masters, now) = (self.plan.masters, Instant::now());
        let (first, minority) = (self.random.index(masters), (masters - 1) / 2);
        let path = [Path::Lost, Path::Held][self.random.index(2)];
        for master in 0..masters {
            let path = if (master + masters - first) % masters < minority { path } else { Path::Open };
            self.set_path(client, master, (path, path), now);
        }
    }

    fn mend(&mut self, client: usize, now: Instant) {
        for master in 0..self.plan.masters {
            self.set_path(client, master, (Path::Open, Path::Open), now);
            self.links[client][master].slow = Duration::ZERO;
        }
    }

    /// Ends all faults. Masters that are down come back in their time.
    pub fn heal(&mut self) {
        let now = Instant::now();
        self.note(now, || "faults end".to_owned());
        (self.faulty, self.healed) = (false, Some(now));
        self.stopped.fill(now);
        (0..self.plan.clients).for_each(|client| self.mend(client, now));
    }

    /// A master's process ends. It may come back at once, not armed, with its data or without. It is armed only after the
    /// restart delay.
    fn crash(&mut self, master: usize, now: Instant) {
        if !self.servers[master].up || !self.may_lose(master, now) {
            return;
        }
        let keeps = self.random.once_in(4);
        self.note(now, || format!("m{master} crashes and {} its data", if keeps { "keeps" } else { "loses" }));
        self.tally.crashes += 1;
        if !keeps {
            self.servers[master].flush();
        }
        let away = self.random.time(2 * CALL_TIMEOUT);
        let at_once = self.random.once_in(2);
        if self.plan.rules.broken == Some(Rule::RestartDelay) {
            self.stop_master(master, now);
            self.start(master, now + away, true);
        } else {
            self.stop_master(master, now);
            if at_once {
                self.start(master, now + away, false);
            }
            self.start(master, now + RESTART_DELAY, true);
        }
    }

    /// Whether a master may lose its data. Where masters restart one after the other under a holder: only if, for every
    /// lock of which any master knows a token, as many other armed masters as a majority has have the key of a grant.
    fn may_lose(&self, master: usize, now: Instant) -> bool {
        if !self.plan.rules.rolling {
            return true;
        }
        let others = || self.servers.iter().enumerate().filter(|(index, server)| *index != master && server.armed);
        let held: Vec<_> = others().flat_map(|(_, server)| server.held(now)).collect();
        self.servers.iter().flat_map(crate::server::Server::known).all(|lock| {
            held.iter().filter(|(key, _)| key == lock).any(|entry| {
                let masters = held.iter().filter(|other| *other == entry).count();
                masters > self.plan.masters / 2 && self.elected.contains_key(&entry.1)
            })
        })
    }

    /// A master loses all its keys and its marker. That counts as a crash as soon as it is noticed.
    fn flush(&mut self, master: usize, now: Instant) {
        if !self.servers[master].armed || !self.may_lose(master, now) {
            return;
        }
        self.note(now, || format!("m{master} is flushed"));
        self.tally.flushes += 1;
        self.servers[master].flush();
        let noticed = now + self.random.time(2 * CALL_TIMEOUT);
        let life = self.servers[master].life;
        let at_once = self.plan.rules.broken == Some(Rule::RestartDelay);
        self.at(noticed, move |state, at| {
            if state.servers[master].life != life {
                return;
            }
            if at_once {
                state.servers[master].armed = true;
            } else {
                state.stop_master(master, at);
                state.start(master, now + RESTART_DELAY, true);
            }
        });
    }

    fn stop_master(&mut self, master: usize, now: Instant) {
        self.servers[master].stop();
        self.servers[master].life += 1;
        self.break_all(master, now);
    }

    /// Starts a master's process at that moment, unless the master crashes again before. A former process ends then.
    fn start(&mut self, master: usize, then: Instant, votes: bool) {
        let life = self.servers[master].life;
        self.at(then, move |state, now| {
            if state.servers[master].life != life {
                return;
            }
            state.note(now, || format!("m{master} starts{}", if votes { " and will vote" } else { "" }));
            if state.servers[master].up {
                state.break_all(master, now);
            }
            state.servers[master].start();
            if votes {
                let armed = now + state.random.time(CALL_TIMEOUT);
                state.at(armed, move |state, _| {
                    let server = &mut state.servers[master];
                    server.armed |= server.life == life;
                });
            }
        });
    }
}
