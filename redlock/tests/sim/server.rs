//! One server: its memory, and a clock of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use redlock_engine::master::{Extension, News, Place, Queued, Reading, ReleaseAnswer, Vote};
use redlock_engine::validity::valid_until;
use redlock_engine::{LockKey, MasterError, Owner, Token};
use tokio::time::Instant;

use crate::link::Connection;
use crate::queue::Queue;
use crate::rules::Rule;

/// A server's own wall clock, by which its keys expire.
#[derive(Clone, Copy)]
struct Clock {
    /// The time that it showed at an instant.
    showed: (Duration, Instant),
    /// How fast it runs, in thousandths of true time.
    rate: u32,
}

/// The value of a key, and when it expires on the server's clock.
struct Entry {
    owner: String,
    ends: Duration,
}

/// Keys and fences, and whether the server votes.
pub struct Server {
    /// Counts its processes: a connection is to one of them.
    pub process: u64,
    /// Counts its crashes.
    pub life: u64,
    pub up: bool,
    /// Whether its marker names this process.
    pub armed: bool,
    /// Channels that connections listen to.
    pub listeners: Vec<Listener>,
    /// Effects of commands that the world has not applied yet.
    pub effects: Vec<Effect>,
    keys: BTreeMap<String, Entry>,
    fences: BTreeMap<String, u64>,
    queues: BTreeMap<String, Queue>,
    clock: Clock,
    longest: Duration,
    broken: Option<Rule>,
}

/// An effect of a command, for the world to apply.
pub enum Effect {
    /// A message was published on a channel.
    Published { channel: String, news: News },
    /// A vote was given.
    Voted { owner: String },
    /// A key was set: no holder can count on it beyond that instant.
    Set { owner: String, proven: Instant },
}

/// A connection that listens to a channel.
pub struct Listener {
    pub channel: String,
    pub of: Connection,
}

/// Dead contenders that one release passes over.
const PASSED_OVER: usize = 16;

/// Whole milliseconds, in which a server counts: a key's TTL loses up to one.
pub fn whole(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_millis()).expect("a short time"))
}

impl Server {
    /// An armed server whose clock runs at `rate` thousandths, and which grants leases of up to `longest`.
    pub fn new(rate: u32, longest: Duration, broken: Option<Rule>) -> Self {
        // A clock can be set back by less than it shows.
        let clock = Clock { showed: (Duration::from_secs(3600), Instant::now()), rate };
        let (keys, fences, queues, listeners, effects) = Default::default();
        Self {
            process: 1,
            life: 0,
            up: true,
            armed: true,
            listeners,
            effects,
            keys,
            fences,
            queues,
            clock,
            longest,
            broken,
        }
    }

    fn clock_at(&self, now: Instant) -> Duration {
        let (showed, at) = self.clock.showed;
        showed + now.saturating_duration_since(at) * self.clock.rate / 1000
    }

    /// Sets the clock forward or back.
    pub fn set_clock(&mut self, now: Instant, by: Duration, forward: bool) {
        let shows = self.clock_at(now);
        self.clock.showed = (if forward { shows + by } else { shows.saturating_sub(by) }, now);
    }

    /// Loses all keys and the marker.
    pub fn flush(&mut self) {
        self.keys.clear();
        self.fences.clear();
        self.queues.clear();
        self.armed = false;
    }

    /// Starts another process, not armed, with the data that is left.
    pub fn start(&mut self) {
        self.process += 1;
        (self.up, self.armed) = (true, false);
        self.listeners.clear();
    }

    /// Ends the process.
    pub fn stop(&mut self) {
        (self.up, self.armed) = (false, false);
        self.listeners.clear();
    }

    fn entry(&self, key: &str, now: Instant) -> Option<&Entry> {
        self.keys.get(key).filter(|entry| whole(self.clock_at(now)) < entry.ends)
    }

    fn holds_other(&self, key: &str, owner: &str, now: Instant) -> bool {
        self.entry(key, now).is_some_and(|entry| entry.owner != owner)
    }

    fn set(&mut self, key: &str, owner: &str, ttl: Duration, now: Instant) {
        let ends = whole(self.clock_at(now)) + ttl;
        self.effects.push(Effect::Set { owner: owner.to_owned(), proven: valid_until(now, ttl) });
        self.keys.insert(key.to_owned(), Entry { owner: owner.to_owned(), ends });
    }

    fn check(&self, ttl: Duration) -> Result<(), MasterError> {
        if !self.armed {
            Err(MasterError::Quarantined)
        } else if ttl > self.longest {
            Err(MasterError::TtlRefused)
        } else {
            Ok(())
        }
    }

    /// Keys that have not expired, with their owners.
    pub fn held(&self, now: Instant) -> Vec<(String, String)> {
        let held = |key: &String| Some((key.clone(), self.entry(key, now)?.owner.clone()));
        self.keys.keys().filter_map(held).collect()
    }

    /// The locks of which it knows a token.
    pub fn known(&self) -> impl Iterator<Item = &String> {
        self.fences.keys()
    }

    /// When that owner's key expires, in true time, if no clock is set meanwhile.
    pub fn expires(&self, key: &str, owner: &str, now: Instant) -> Option<Instant> {
        let entry = self.entry(key, now).filter(|entry| entry.owner == owner)?;
        Some(now + entry.ends.saturating_sub(self.clock_at(now)) * 1000 / self.clock.rate)
    }

    // === commands ===

    /// The answers to SET NX, ZADD GT CH and GET of the marker, combined as the engine's master does.
    pub fn acquire(&mut self, key: &LockKey, owner: &Owner, ttl: Duration, now: Instant) -> Result<Vote, MasterError> {
        let free = self.entry(key.redis_key(), now).is_none();
        if free {
            self.set(key.redis_key(), &owner.to_string(), ttl, now);
        }
        let fence = self.fences.entry(key.redis_key().to_owned()).or_default();
        let token = owner.token().get();
        let larger = token > *fence || self.broken == Some(Rule::VotesOnTokens);
        *fence = token.max(*fence);
        if !free {
            return Ok(Vote::HeldByOther);
        }
        self.check(ttl)?;
        if !larger {
            return Ok(Vote::StaleToken);
        }
        self.effects.push(Effect::Voted { owner: owner.to_string() });
        Ok(Vote::Granted)
    }

    pub fn renew(
        &mut self,
        key: &LockKey,
        owner: &Owner,
        ttl: Duration,
        now: Instant,
    ) -> Result<Extension, MasterError> {
        self.check(ttl)?;
        let (key, token, owner) = (key.redis_key(), owner.token().get(), owner.to_string());
        match self.entry(key, now) {
            None => Ok(Extension::Missing),
            Some(entry) if entry.owner != owner => Ok(Extension::HeldByOther),
            Some(_) => {
                self.set(key, &owner, ttl, now);
                self.carry(key, token);
                Ok(Extension::Extended)
            }
        }
    }

    /// A renewal or a seed carries the token into the fence.
    fn carry(&mut self, key: &str, token: u64) {
        if self.broken != Some(Rule::RenewalsCarryTokens) {
            let fence = self.fences.entry(key.to_owned()).or_default();
            *fence = token.max(*fence);
        }
    }

    pub fn seed(
        &mut self,
        key: &LockKey,
        owner: &Owner,
        ttl: Duration,
        now: Instant,
    ) -> Result<Extension, MasterError> {
        self.check(ttl)?;
        let (key, token, owner) = (key.redis_key(), owner.token().get(), owner.to_string());
        if self.holds_other(key, &owner, now) {
            return Ok(Extension::HeldByOther);
        }
        self.set(key, &owner, ttl, now);
        self.carry(key, token);
        Ok(Extension::Extended)
    }

    pub fn release(&mut self, key: &LockKey, owner: &Owner, wake: bool, now: Instant) -> ReleaseAnswer {
        let (name, compare) = (key.redis_key(), self.broken != Some(Rule::ComparesOwner));
        if self.entry(name, now).is_none() || compare && self.holds_other(name, &owner.to_string(), now) {
            return ReleaseAnswer::NotOwner;
        }
        self.keys.remove(name);
        if !wake {
            return ReleaseAnswer::Deleted;
        }
        let name = name.to_owned();
        // A place ends with its inbox. A waiter that does not listen to its inbox is dead.
        let channel = |place: &str| format!("{name}#{}", place.rsplit(' ').next().unwrap_or_default());
        let mut passed_over = 0;
        let next = loop {
            let Some(next) = self.queue(key, now).take_first() else { return ReleaseAnswer::Deleted };
            if self.listeners.iter().any(|listener| listener.channel == channel(&next)) {
                break next;
            }
            passed_over += 1;
            if passed_over == PASSED_OVER {
                return ReleaseAnswer::Deleted;
            }
        };
        let news = News::Released { token: owner.token(), next: (*next).into() };
        let second = self.queue(key, now).first();
        for place in [Some(next), second].into_iter().flatten() {
            self.effects.push(Effect::Published { channel: channel(&place), news: news.clone() });
        }
        ReleaseAnswer::HandedOn
    }

    fn queue(&mut self, key: &LockKey, now: Instant) -> &mut Queue {
        let clock = self.clock_at(now);
        let queue = self.queues.entry(key.redis_key().to_owned()).or_default();
        queue.lapse(clock);
        queue
    }

    /// Enters the queue, or keeps the place there.
    pub fn enqueue(&mut self, key: &LockKey, place: &Place, waited: Duration, now: Instant) -> Queued {
        let (reading, clock) = (self.read(key, now), self.clock_at(now));
        Queued { reading, ahead: self.queue(key, now).enter(place, waited, clock) }
    }

    /// Leaves the queue.
    pub fn dequeue(&mut self, key: &LockKey, place: &Place, now: Instant) {
        self.queue(key, now).leave(place.name());
    }

    /// SUBSCRIBE: once for each connection.
    pub fn listen(&mut self, channel: &str, of: Connection) {
        if !self.listeners.iter().any(|listener| listener.of == of && listener.channel == channel) {
            self.listeners.push(Listener { channel: channel.to_owned(), of });
        }
    }

    pub fn read(&self, key: &LockKey, now: Instant) -> Reading {
        let held = self.entry(key.redis_key(), now);
        Reading {
            owner: held.map(|entry| entry.owner.clone()),
            remaining: held.map(|entry| entry.ends.saturating_sub(whole(self.clock_at(now)))),
            fence: self.fences.get(key.redis_key()).copied().and_then(Token::new),
        }
    }
}
