//! Releases that a master has not confirmed yet, until the keys end by their TTL: when to send each again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::claim::Claim;
use crate::error::MasterError;
use crate::key::LockKey;

/// How many are kept for a master. Beyond it the oldest is given up: its key is the next to end.
const MOST: usize = 4096;
/// How long a release is kept whose claim has no TTL: of another process's grant.
pub(crate) const UNKNOWN_TTL: Duration = Duration::from_secs(5 * 60);

/// Pauses before a release is sent again to a master that is connected and did not confirm it.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(20), Duration::from_millis(100), Duration::from_millis(500), Duration::from_secs(1)];
/// Pause before a release that found no key is sent again. The key may still be on its way, on a connection that has broken:
/// TCP goes on sending about as long after an outage as that has lasted. A key that comes late keeps the lock from everybody
/// for no longer than this.
const DOUBT: Duration = Duration::from_millis(500);
/// So often it is sent again after the same pause. Then the pause doubles: after a long outage few keys are still to come.
const DOUBTS: u32 = 16;

/// A release that a master has not confirmed.
#[derive(Clone, Debug)]
pub(crate) struct PendingRelease {
    pub(crate) claim: Arc<Claim>,
    /// Whether to tell the queue.
    pub(crate) wake: bool,
    /// When the key has ended by itself.
    until: Instant,
    /// When to send it again.
    due: Instant,
    /// How often it was sent again without an answer.
    failures: usize,
    /// How often it found no key.
    doubts: u32,
}

impl PendingRelease {
    /// The release of a claim whose last write was sent before `now`.
    pub(crate) fn new(claim: &Arc<Claim>, wake: bool, now: Instant) -> Self {
        let ttl = if claim.ttl().is_zero() { UNKNOWN_TTL } else { claim.ttl() };
        Self { claim: Arc::clone(claim), wake, until: now + ttl, due: now + PAUSES[0], failures: 0, doubts: 0 }
    }

    /// The same after the master gave no usable answer.
    pub(crate) fn after_failure(mut self, error: &MasterError, now: Instant) -> Self {
        // Without a connection the next one is waited for, and nothing else.
        if !matches!(error, MasterError::Unreachable(_)) {
            self.failures = (self.failures + 1).min(PAUSES.len() - 1);
        }
        self.due = now + PAUSES[self.failures];
        self
    }

    /// The same after the master said that it has no key of this owner, which may still come.
    pub(crate) fn after_no_key(mut self, now: Instant) -> Self {
        self.due = now + DOUBT * 2_u32.saturating_pow(self.doubts.saturating_sub(DOUBTS - 1).min(16));
        (self.failures, self.doubts) = (0, self.doubts + 1);
        self
    }
}

/// The pending releases of one master.
#[derive(Debug, Default)]
pub(crate) struct PendingReleases {
    pending: Mutex<Pending>,
    /// Tells the task that sends them of a further one.
    added: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    /// In the order in which they came.
    releases: BTreeMap<u64, PendingRelease>,
    /// The number of each claim's: a release that is asked for again and again is kept once.
    numbers: HashMap<(LockKey, String), u64>,
    last_number: u64,
    /// Whether a task sends them.
    is_served: bool,
}

impl PendingReleases {
    /// Keeps a release. Returns whether the caller must start the task that sends them.
    pub(crate) fn keep(&self, release: PendingRelease) -> bool {
        let mut pending = self.lock();
        pending.insert(release);
        self.added.notify_one();
        !std::mem::replace(&mut pending.is_served, true)
    }

    /// Resolves when a release was added.
    pub(crate) async fn added(&self) {
        self.added.notified().await;
    }

    /// When the first is to be sent, and when all have ended by themselves. `None` without any: then the task must end.
    pub(crate) fn times(&self, now: Instant) -> Option<(Instant, Instant)> {
        let mut pending = self.lock();
        pending.releases.retain(|_, release| release.until > now);
        let due = pending.releases.values().map(|release| release.due).min();
        let times = due.zip(pending.releases.values().map(|release| release.until).max());
        pending.is_served = times.is_some();
        times
    }

    /// Takes the oldest of those that are due, so many at most.
    pub(crate) fn take(&self, most: usize, now: Instant) -> Vec<PendingRelease> {
        self.take_if(most, |release| release.due <= now && now < release.until)
    }

    /// Takes all of them, due or not.
    pub(crate) fn take_all(&self, now: Instant) -> Vec<PendingRelease> {
        self.take_if(usize::MAX, |release| now < release.until)
    }

    fn take_if(&self, most: usize, is_wanted: impl Fn(&PendingRelease) -> bool) -> Vec<PendingRelease> {
        let mut pending = self.lock();
        let wanted = pending.releases.iter().filter(|(_, release)| is_wanted(release)).map(|(number, _)| *number);
        let numbers: Vec<_> = wanted.take(most).collect();
        numbers.into_iter().filter_map(|number| pending.releases.remove(&number)).collect()
    }

    /// Puts one back.
    pub(crate) fn put_back(&self, release: PendingRelease) {
        self.lock().insert(release);
    }

    /// Gives up what there is. The task must end.
    pub(crate) fn give_up(&self) {
        *self.lock() = Pending::default();
    }

    // A panic in one of the short sections here cannot leave the maps half changed.
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    fn insert(&mut self, release: PendingRelease) {
        let name = (release.claim.key().clone(), release.claim.value().to_owned());
        if let Some(known) = self.numbers.get(&name).and_then(|number| self.releases.get_mut(number)) {
            known.wake |= release.wake;
            known.until = known.until.max(release.until);
            known.due = known.due.min(release.due);
            return;
        }
        self.last_number += 1;
        self.numbers.insert(name, self.last_number);
        self.releases.insert(self.last_number, release);
        if self.releases.len() > MOST {
            self.releases.pop_first();
        }
        // Numbers of releases that are gone are forgotten together, now and then.
        if self.numbers.len() > 2 * self.releases.len() + 16 {
            self.numbers.retain(|_, number| self.releases.contains_key(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::Token;
    use crate::owner::Owner;

    const TTL: Duration = Duration::from_secs(30);

    fn release(number: usize, ttl: Duration, now: Instant) -> PendingRelease {
        let owner = Owner::new("x".to_owned(), Token::new(number as u64 + 1).unwrap(), 7);
        PendingRelease::new(&Arc::new(Claim::new(LockKey::new("a", "b").unwrap(), owner, ttl)), false, now)
    }

    fn tokens(releases: &[PendingRelease]) -> Vec<u64> {
        releases.iter().map(|release| release.claim.owner().token().get()).collect()
    }

    #[test]
    fn a_release_is_kept_once_and_until_its_key_has_ended() {
        let (pending, now) = (PendingReleases::default(), Instant::now());
        assert!(pending.keep(release(0, TTL, now)), "a task is needed");
        assert!(!pending.keep(release(0, TTL, now + TTL / 2)));
        assert!(!pending.keep(release(1, TTL, now)));
        assert!(!pending.keep(release(2, Duration::ZERO, now)));
        assert_eq!(pending.times(now), Some((now + PAUSES[0], now + UNKNOWN_TTL)));
        assert_eq!(tokens(&pending.take(1, now)), [0; 0], "none is due");
        let first = pending.take(1, now + TTL);
        assert_eq!(tokens(&first), [1], "asked for again, it has a further TTL");
        pending.put_back(first.into_iter().next().unwrap());
        assert_eq!(tokens(&pending.take_all(now + TTL)), [3, 1], "the second has ended");
        assert_eq!(pending.times(now + TTL), None);
        assert!(pending.keep(release(0, TTL, now)), "the task has ended");
    }

    #[test]
    fn the_oldest_is_given_up_where_there_are_too_many() {
        let (pending, now) = (PendingReleases::default(), Instant::now());
        for number in 0..MOST + 2 {
            pending.keep(release(number, TTL, now));
        }
        let kept = pending.take_all(now);
        assert_eq!((kept.len(), tokens(&kept[..1])), (MOST, vec![3]));
    }

    #[test]
    fn a_release_is_sent_again_ever_more_rarely_and_at_once_on_a_new_connection() {
        let now = Instant::now();
        let mut release = release(0, TTL, now);
        let unreachable = MasterError::Unreachable("reset".to_owned());
        for (error, pause) in [
            (&unreachable, 20),
            (&MasterError::Timeout, 100),
            (&MasterError::Timeout, 500),
            (&unreachable, 500),
            (&MasterError::Timeout, 1000),
            (&MasterError::Timeout, 1000),
        ] {
            release = release.after_failure(error, now);
            assert_eq!(release.due - now, Duration::from_millis(pause), "{error}");
        }
        let pauses: Vec<_> = (0..DOUBTS + 3)
            .map(|_| {
                release = release.clone().after_no_key(now);
                (release.due - now).as_millis()
            })
            .collect();
        assert_eq!(pauses, [vec![500; 16], vec![1000, 2000, 4000]].concat());
    }
}
