//! Contenders: each acquires and releases locks again and again, in all ways that the engine offers.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redlock_engine::{Error, Lease, LeaseOptions, LockKey, Owner, Released, Renewal, Wait};
use tokio::time::{Instant, sleep, timeout_at};

use crate::history::History;
use crate::pause::Dropped;
use crate::plan::{CALL_TIMEOUT, CALM, LONGEST_TTL, RESTART_DELAY};
use crate::process::Process;
use crate::random::Random;
use crate::server::whole;
use crate::world::World;

/// The shortest lease that contenders ask for.
const SHORTEST_TTL: Duration = LONGEST_TTL.checked_div(5).expect("not zero");

/// One of the contenders of a process.
pub struct Contender {
    pub world: World,
    pub history: Arc<History>,
    pub processes: Arc<[Process]>,
    pub process: usize,
    pub identity: String,
    pub locks: usize,
}

pub fn key(lock: usize) -> LockKey {
    LockKey::new("sim", &format!("lock-{lock}")).expect("a valid name")
}

impl Contender {
    /// Contends while there are faults, for a while after them, and then once more for each lock.
    pub async fn contend(self) {
        while self.calm_for() < CALM {
            let key = key(self.draw(|random| random.index(self.locks)));
            let options = self.options();
            let Some(lease) = self.ask(&key, &options).await else {
                sleep(self.world.time(CALL_TIMEOUT)).await;
                continue;
            };
            self.history.granted(&lease);
            self.world.now().after_grant();
            if self.work(&lease).await {
                self.release(lease, &options).await;
            } else {
                drop(lease);
            }
            self.history.given_back(&key);
        }
        for lock in 0..self.locks {
            self.take_once_more(&key(lock)).await;
        }
    }

    /// How long ago faults ended.
    fn calm_for(&self) -> Duration {
        self.world.now().healed.map_or(Duration::ZERO, |healed| healed.elapsed())
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        self.world.draw(draw)
    }

    fn once_in(&self, times: u64) -> bool {
        self.draw(|random| random.once_in(times))
    }

    fn options(&self) -> LeaseOptions {
        let (longest, long) = self.world.now().longest_ttl();
        let shortest = if long { longest / 2 } else { SHORTEST_TTL };
        // Whole milliseconds, as masters have it.
        let ttl = whole(shortest + self.world.time(longest.saturating_sub(shortest)));
        let renewal = match self.draw(|random| random.below(6)) {
            0 | 1 => Renewal::None,
            2 => Renewal::Every(Duration::from_millis(1) + self.world.time(ttl * 3 / 4)),
            _ => Renewal::Every(ttl / 3),
        };
        let min_validity = if self.once_in(3) { self.world.time(ttl / 2) } else { Duration::ZERO };
        let max_renewals = self.once_in(4).then(|| self.draw(|random| random.below(3)));
        let priority = self.draw(|random| [0, 0, 0, 1][random.index(4)]);
        let default = LeaseOptions::new(self.identity.clone(), ttl);
        default
            .renewal(renewal)
            .max_renewals(max_renewals)
            .min_validity(min_validity)
            .priority(priority)
            .shared(!long && self.once_in(3))
    }

    /// Asks for a lock in a random way.
    async fn ask(&self, key: &LockKey, options: &LeaseOptions) -> Option<Lease> {
        let (client, asked) = (self.processes[self.process].client(), Instant::now());
        let pauses = self.world.now().tally.pauses;
        let (way, patience) = (self.draw(|random| random.below(8)), self.world.time(3 * LONGEST_TTL));
        let asking = async {
            match way {
                0 | 1 => client.try_acquire(key, options).await,
                2 => client.acquire(key, options, Wait::Forever).await,
                _ => client.acquire(key, options, Wait::For(patience)).await,
            }
        };
        let answer = self.perhaps_dropped(asking).await?;
        match answer {
            Ok(lease) => {
                // If no process was stopped meanwhile, the lease has the validity that the caller needs.
                let left = lease.validity();
                if left < options.min_validity && self.world.now().tally.pauses == pauses {
                    let needed = options.min_validity;
                    self.history.broken(format!("{} got {left:?}, and needs {needed:?}", lease.owner()));
                }
                if way >= 2 {
                    self.note_taken(asked, key);
                }
                self.note_wait(asked, key);
                Some(lease)
            }
            Err(error) => {
                self.world.note(|| format!("{} does not get {key}: {error}", self.identity));
                None
            }
        }
    }

    /// Awaits a future, or sometimes drops it at one of its awaits.
    async fn perhaps_dropped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        if !self.once_in(4) {
            return Some(work.await);
        }
        let polls = self.draw(|random| random.below(12));
        let output = Dropped::after(polls, work).await;
        if output.is_none() {
            self.world.note(|| format!("{} drops a future after {polls} polls", self.identity));
            self.history.dropped();
        }
        output
    }

    /// Notes how long the wait for a lock was without any fault.
    fn note_wait(&self, asked: Instant, key: &LockKey) {
        // By then masters are back, and earlier leases have ended.
        let calm = self.calm_for().saturating_sub(RESTART_DELAY + 2 * LONGEST_TTL);
        let waited = asked.elapsed().min(calm);
        self.history.waited(&format!("{} for {key}", self.identity), waited);
    }

    /// For how long a lock was free while somebody waited for it. Short leases may end by themselves.
    fn note_taken(&self, asked: Instant, key: &LockKey) {
        if self.world.now().longest_ttl().1 {
            self.history.taken(&self.identity, key, asked);
        }
    }

    /// Holds a lock for a while, checks at random moments whether it still does, and writes to the guarded resource. Returns
    /// whether the lease is still to be released.
    async fn work(&self, lease: &Lease) -> bool {
        let longest = self.world.now().plan.longest_work;
        let end = Instant::now() + self.world.time(longest);
        while Instant::now() < end {
            let next = (Instant::now() + self.world.time(LONGEST_TTL / 4)).min(end);
            if let Ok(over) = timeout_at(next, lease.ended()).await {
                self.history.ended(lease, &over);
                return self.once_in(2);
            }
            if self.history.check(lease) {
                if self.once_in(4) {
                    // The write arrives later.
                    sleep(self.world.time(LONGEST_TTL / 4)).await;
                }
                self.history.write(lease);
            }
        }
        true
    }

    async fn release(&self, lease: Lease, options: &LeaseOptions) {
        let long = self.world.now().longest_ttl().1;
        match self.draw(|random| random.below(6)) {
            0 => drop(lease),
            // A long lease is not left to its end.
            1..=3 if long => drop(self.perhaps_dropped(lease.release()).await),
            // Nobody adopts it: it expires.
            1 => lease.abandon(),
            // Another process of the same holder adopts it. A lease that has ended cannot be adopted unless it is shared: its
            // watchdog releases it.
            2 if lease.is_held() || options.is_shared => {
                let (key, owner) = (lease.key().clone(), lease.owner().clone());
                lease.abandon();
                sleep(self.world.time(CALL_TIMEOUT)).await;
                if let Some(adopted) = self.adopt(&key, &owner, options).await {
                    self.work(&adopted).await;
                    adopted.release().await;
                }
            }
            // Another process of the same holder adopts it too, and leaves the release to this one.
            3 if options.is_shared => {
                if let Some(adopted) = self.adopt(lease.key(), lease.owner(), options).await {
                    self.work(&adopted).await;
                    drop(adopted);
                }
                self.work(&lease).await;
                lease.release().await;
            }
            _ => drop(self.perhaps_dropped(lease.release()).await),
        }
    }

    /// Adopts a grant in a random process.
    async fn adopt(&self, key: &LockKey, owner: &Owner, options: &LeaseOptions) -> Option<Lease> {
        let other = self.draw(|random| random.index(self.processes.len()));
        let client = self.processes[other].client();
        let adopted = self.perhaps_dropped(client.adopt(key, owner, options)).await?.ok()?;
        self.history.adopted(&adopted);
        Some(adopted)
    }

    /// Acquires a lock for the last time, when all contend for it: each gets it, and leaves no key on the masters.
    async fn take_once_more(&self, key: &LockKey) {
        let options = LeaseOptions::new(self.identity.clone(), LONGEST_TTL);
        let asked = Instant::now();
        let lease = loop {
            match self.processes[self.process].client().acquire(key, &options, Wait::Forever).await {
                Ok(lease) => break lease,
                Err(Error::ShutDown) => sleep(CALL_TIMEOUT).await,
                Err(error) => return self.history.broken(format!("{} does not get {key}: {error}", self.identity)),
            }
        };
        self.note_taken(asked, key);
        self.note_wait(asked, key);
        self.history.granted(&lease);
        sleep(self.world.time(CALL_TIMEOUT)).await;
        let owner = lease.owner().to_string();
        let released = lease.release().await;
        self.history.given_back(key);
        if released != Released::Freed {
            self.history.broken(format!("{owner} releases {key} without any fault: {released:?}"));
        }
        // Requests under way arrive.
        sleep(CALL_TIMEOUT).await;
        let state = self.world.now();
        let left = state.servers.iter().flat_map(|server| server.held(Instant::now())).any(|(_, held)| held == owner);
        drop(state);
        if left {
            self.history.broken(format!("{owner} has released {key}, and masters hold it"));
        }
    }
}
