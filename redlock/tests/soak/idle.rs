//! How long a free lock stays free while somebody waits for it and a majority of masters can vote.
//!
//! Idle time counts while all of this is so, without a break: nobody claims the lock; at least one contender waits for it
//! whose process runs; a majority of masters is armed, reachable and not stopped, for as long as clients need to connect again; and no lease that nobody could release
//! keeps the lock on so many of them that no majority is left. Such a lease is that of a process that was killed or
//! stopped, also in the middle of an attempt, until its TTL is over, and that of a holder that has abandoned it. What the
//! masters have is read from them. A lease whose release the
//! masters have confirmed, by its holder's own report, excuses nothing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use redlock_test_servers::stamp::Stamp;

use crate::exclusion::Claim;
use crate::history::{Contender, Entry, Event};
use crate::protocol::{Ending, Said};

/// Longest TTL of a contender.
pub const LONGEST_TTL: Duration = Duration::from_secs(4);
/// How much longer than from a death or a stop to the end of its TTL a lease may last: its request may have been under way.
const UNDER_WAY: Duration = Duration::from_millis(300);
/// How long the lock may be free, beside what the test's own timer was late in all: so long the machine did other things.
pub const LONGEST: Duration = Duration::from_secs(1);
/// Scheduling that does not show in the timer: several processes have to run one after the other for a grant.
const SCHEDULING: Duration = Duration::from_millis(150);
/// Clients of a master that was away have connected again after about as long as it was away, since their pauses double, and
/// after this at most: 4 s between two attempts, 1 s for one of them.
const LONGEST_RECONNECT: Duration = Duration::from_secs(5);
/// What a reconnect takes in any case.
const SHORTEST_RECONNECT: Duration = Duration::from_millis(300);

/// A stretch of idle time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idle {
    pub lock: usize,
    pub from: Stamp,
    pub to: Stamp,
    /// How late the test's own timer was meanwhile, in all.
    pub late: Duration,
    /// What kept it free for the largest part of that time.
    pub cause: Cause,
}

/// Why nobody took a lock that nobody claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Masters still have keys of leases that have ended: too few of them are left for a majority.
    KeysReleased,
    /// Masters have keys of attempts that were not granted, or not yet: too few of them are left for a majority.
    KeysOfAttempts,
    /// A majority is there and has no key of the lock, and the contenders do not try.
    NotTried,
}

impl Idle {
    pub fn length(&self) -> Duration {
        self.to - self.from
    }

    pub fn is_too_long(&self) -> bool {
        self.length() > LONGEST + SCHEDULING + self.late
    }
}

/// All idle times of a lock on so many masters.
pub fn idle_times(entries: &[Entry], claims: &[Claim], lock: usize, masters: usize) -> Vec<Idle> {
    let mut world = World::new(entries, lock, masters);
    let mut steps = BTreeMap::<Stamp, Vec<Step>>::new();
    for entry in entries {
        steps.entry(entry.at).or_default().push(Step::Event(&entry.event));
    }
    for claim in claims.iter().filter(|claim| claim.lock == lock) {
        steps.entry(claim.from).or_default().push(Step::Claimed);
        steps.entry(claim.to).or_default().push(Step::Free);
    }
    // Moments at which a lease is over by itself, or all clients are connected to a master again.
    for moment in world.ends().into_iter().chain(reconnects(entries)) {
        steps.entry(moment).or_default();
    }
    let (mut found, mut open, mut end) = (Vec::new(), None::<Open>, None);
    for (at, steps) in steps {
        if let Some(open) = &mut open {
            open.pass(at, world.cause(at));
        }
        for step in steps {
            match step {
                Step::Claimed => world.claims += 1,
                Step::Free => world.claims -= 1,
                Step::Event(Event::Busy(late)) => open.iter_mut().for_each(|open| open.late += *late),
                Step::Event(event) => world.apply(at, event),
            }
        }
        end = Some(at);
        if !world.idles(at) {
            found.extend(open.take().map(|open| open.ended(lock, at)));
        } else if open.is_none() {
            open = Some(Open { from: at, until: at, late: Duration::ZERO, causes: BTreeMap::new() });
        }
    }
    found.extend(open.zip(end).map(|(open, at)| open.ended(lock, at)));
    found.retain(|idle| !idle.length().is_zero());
    found
}

/// When all clients are connected again to a master that was away since `down`, if it was, and is back at `up`.
fn connected(down: Option<Stamp>, up: Stamp) -> Stamp {
    down.map_or(up, |down| up + (up - down).clamp(SHORTEST_RECONNECT, LONGEST_RECONNECT))
}

/// All such moments.
fn reconnects(entries: &[Entry]) -> Vec<Stamp> {
    let (mut down, mut found) = (HashMap::new(), Vec::new());
    for Entry { at, event } in entries {
        match event {
            Event::Down(master, _) => drop(down.insert(*master, *at)),
            Event::Up(master) => found.push(connected(down.get(master).copied(), *at)),
            _ => {}
        }
    }
    found
}

/// A stretch of idle time that goes on.
struct Open {
    from: Stamp,
    until: Stamp,
    late: Duration,
    causes: BTreeMap<Cause, Duration>,
}

enum Step<'a> {
    Claimed,
    Free,
    Event(&'a Event),
}

impl Open {
    /// It went on until `at`, for this cause.
    fn pass(&mut self, at: Stamp, cause: Cause) {
        *self.causes.entry(cause).or_default() += at - self.until;
        self.until = at;
    }

    fn ended(self, lock: usize, to: Stamp) -> Idle {
        let longest = self.causes.into_iter().max_by_key(|(_, length)| *length);
        Idle { lock, from: self.from, to, late: self.late, cause: longest.map_or(Cause::NotTried, |(cause, _)| cause) }
    }
}

/// The state of one lock at a moment.
struct World {
    lock: usize,
    quorum: usize,
    claims: usize,
    waiting: HashSet<Contender>,
    halted: HashSet<Contender>,
    /// For each master: from when on all clients are connected to it; `None` if it cannot vote.
    up: Vec<Option<Stamp>>,
    /// When each master went away.
    down: Vec<Option<Stamp>>,
    seen: Vec<Option<String>>,
    granted: HashSet<String>,
    released: HashSet<String>,
    /// Leases that nobody could release, each from a moment on and up to one: of a contender, or of an owner.
    by_contender: HashMap<Contender, Vec<(Stamp, Stamp)>>,
    by_owner: HashMap<String, Stamp>,
}

impl World {
    fn new(entries: &[Entry], lock: usize, masters: usize) -> Self {
        let mut by_contender = HashMap::<_, Vec<(Stamp, Stamp)>>::new();
        let (mut by_owner, mut owners) = (HashMap::new(), HashMap::new());
        for Entry { at, event } in entries {
            match event {
                Event::Halted(by, _) | Event::Dead(by) => {
                    by_contender.entry(*by).or_default().push((*at, *at + LONGEST_TTL + UNDER_WAY));
                }
                Event::Continued(by) => {
                    // It releases what it has, or holds it.
                    if let Some((_, to)) = by_contender.get_mut(by).and_then(|times| times.last_mut()) {
                        *to = (*to).min(*at + UNDER_WAY);
                    }
                }
                Event::Reported(by, report) if report.lock == lock => match &report.what {
                    Said::Start { owner, ttl, .. } => drop(owners.insert(*by, (owner.clone(), *ttl))),
                    Said::End(Ending::Abandon) => {
                        let Some((owner, ttl)) = owners.get(by) else { continue };
                        by_owner.insert(owner.clone(), *at + *ttl + UNDER_WAY);
                    }
                    _ => {}
                },
                _ => {}
            }
        }
        Self {
            lock,
            quorum: masters / 2 + 1,
            claims: 0,
            waiting: HashSet::new(),
            halted: HashSet::new(),
            up: vec![None; masters],
            down: vec![None; masters],
            seen: vec![None; masters],
            granted: HashSet::new(),
            released: HashSet::new(),
            by_contender,
            by_owner,
        }
    }

    fn ends(&self) -> Vec<Stamp> {
        let contenders = self.by_contender.values().flatten().map(|(_, to)| *to);
        contenders.chain(self.by_owner.values().copied()).collect()
    }

    fn apply(&mut self, at: Stamp, event: &Event) {
        match event {
            Event::Halted(by, _) => drop(self.halted.insert(*by)),
            Event::Continued(by) => drop(self.halted.remove(by)),
            Event::Dead(by) => drop(self.waiting.remove(by)),
            Event::Down(master, _) => (self.up[*master], self.down[*master]) = (None, Some(at)),
            Event::Up(master) => self.up[*master] = Some(connected(self.down[*master], at)),
            Event::Seen { master, lock, owner } if *lock == self.lock => self.seen[*master].clone_from(owner),
            Event::Reported(by, report) if report.lock == self.lock => match &report.what {
                Said::Waits => drop(self.waiting.insert(*by)),
                Said::GaveUp => drop(self.waiting.remove(by)),
                Said::Start { owner, .. } => {
                    self.waiting.remove(by);
                    self.granted.insert(owner.clone());
                }
                Said::Released { owner } => drop(self.released.insert(owner.clone())),
                Said::Extended { .. } | Said::End(_) => {}
            },
            _ => {}
        }
    }

    fn idles(&self, now: Stamp) -> bool {
        let someone_waits = self.waiting.iter().any(|by| !self.halted.contains(by));
        let up: Vec<_> = self.up(now);
        let is_kept = |master: &&usize| self.seen[**master].as_ref().is_some_and(|owner| self.is_kept(owner, now));
        let kept = up.iter().filter(is_kept).count();
        self.claims == 0 && someone_waits && up.len() - kept >= self.quorum
    }

    /// The masters that all clients are connected to.
    fn up(&self, now: Stamp) -> Vec<usize> {
        (0..self.up.len()).filter(|&master| self.up[master].is_some_and(|since| since <= now)).collect()
    }

    /// Whether this owner's lease is one that nobody could release.
    fn is_kept(&self, owner: &str, now: Stamp) -> bool {
        if self.released.contains(owner) {
            return false;
        }
        let by_contender = Contender::of(owner).and_then(|by| self.by_contender.get(&by));
        self.by_owner.get(owner).is_some_and(|to| now < *to)
            || by_contender.is_some_and(|times| times.iter().any(|(from, to)| *from <= now && now < *to))
    }

    fn cause(&self, now: Stamp) -> Cause {
        let up: Vec<_> = self.up(now);
        let free = up.iter().filter(|&&master| self.seen[master].is_none()).count();
        let mut owners = up.iter().filter_map(|&master| self.seen[master].as_ref());
        if free < self.quorum {
            if owners.any(|owner| self.granted.contains(owner)) { Cause::KeysReleased } else { Cause::KeysOfAttempts }
        } else {
            Cause::NotTried
        }
    }
}

/// The p50, p99 and the longest of some times.
pub fn percentiles(mut times: Vec<Duration>) -> [Duration; 3] {
    times.sort_unstable();
    let at = |percent: usize| times.get((times.len().saturating_sub(1)) * percent / 100).copied().unwrap_or_default();
    [at(50), at(99), at(100)]
}
