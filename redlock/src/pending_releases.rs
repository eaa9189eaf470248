//! Releases that a master has not confirmed yet, until the keys end by their TTL.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::claim::Claim;
use crate::key::LockKey;

/// How many are kept for a master. Beyond it the oldest is given up: its key is the next to end.
const MOST: usize = 4096;
/// How long a release is kept whose claim has no TTL: of another process's grant.
pub(crate) const UNKNOWN_TTL: Duration = Duration::from_secs(5 * 60);

/// A release that a master has not confirmed.
#[derive(Clone, Debug)]
pub(crate) struct PendingRelease {
    pub(crate) claim: Arc<Claim>,
    /// Whether to tell the queue.
    pub(crate) wake: bool,
    /// When the key has ended by itself.
    pub(crate) until: Instant,
}

impl PendingRelease {
    /// The release of a claim whose last write was sent before `now`.
    pub(crate) fn new(claim: &Arc<Claim>, wake: bool, now: Instant) -> Self {
        let ttl = if claim.ttl().is_zero() { UNKNOWN_TTL } else { claim.ttl() };
        Self { claim: Arc::clone(claim), wake, until: now + ttl }
    }
}

/// The pending releases of one master.
#[derive(Debug, Default)]
pub(crate) struct PendingReleases(Mutex<Pending>);

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
        !std::mem::replace(&mut pending.is_served, true)
    }

    /// Until when there may be one to send. `None` without any: then the task must end.
    pub(crate) fn until(&self, now: Instant) -> Option<Instant> {
        let mut pending = self.lock();
        pending.forget_ended(now);
        let until = pending.releases.values().map(|release| release.until).max();
        pending.is_served = until.is_some();
        until
    }

    /// Takes the oldest of them, so many at most.
    pub(crate) fn take(&self, most: usize, now: Instant) -> Vec<PendingRelease> {
        let mut pending = self.lock();
        pending.forget_ended(now);
        let numbers: Vec<_> = pending.releases.keys().copied().take(most).collect();
        numbers.into_iter().filter_map(|number| pending.remove(number)).collect()
    }

    /// Puts one back that was not confirmed.
    pub(crate) fn put_back(&self, release: PendingRelease) {
        self.lock().insert(release);
    }

    /// Gives up what there is. The task must end.
    pub(crate) fn give_up(&self) {
        *self.lock() = Pending::default();
    }

    // A panic in one of the short sections here cannot leave the maps half changed.
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    fn insert(&mut self, release: PendingRelease) {
        let name = name(&release.claim);
        if let Some(known) = self.numbers.get(&name).and_then(|number| self.releases.get_mut(number)) {
            known.wake |= release.wake;
            known.until = known.until.max(release.until);
            return;
        }
        self.last_number += 1;
        self.numbers.insert(name, self.last_number);
        self.releases.insert(self.last_number, release);
        if self.releases.len() > MOST
            && let Some((_, oldest)) = self.releases.pop_first()
        {
            self.numbers.remove(&name_of(&oldest));
        }
    }

    fn remove(&mut self, number: u64) -> Option<PendingRelease> {
        let release = self.releases.remove(&number)?;
        self.numbers.remove(&name_of(&release));
        Some(release)
    }

    fn forget_ended(&mut self, now: Instant) {
        let ended: Vec<_> =
            self.releases.iter().filter(|(_, release)| release.until <= now).map(|(number, _)| *number).collect();
        for number in ended {
            self.remove(number);
        }
    }
}

fn name(claim: &Claim) -> (LockKey, String) {
    (claim.key().clone(), claim.value().to_owned())
}

fn name_of(release: &PendingRelease) -> (LockKey, String) {
    name(&release.claim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::Token;
    use crate::owner::Owner;

    const TTL: Duration = Duration::from_secs(30);

    fn release(number: usize, ttl: Duration, now: Instant) -> PendingRelease {
        let owner = Owner::new("x".to_owned(), Token::new(number as u64 + 1).unwrap());
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
        assert_eq!(pending.until(now), Some(now + UNKNOWN_TTL));
        let first = pending.take(1, now + TTL);
        assert_eq!(tokens(&first), [1], "asked for again, it has a further TTL");
        pending.put_back(first.into_iter().next().unwrap());
        assert_eq!(tokens(&pending.take(9, now + TTL)), [3, 1], "the second has ended");
        assert_eq!(pending.until(now), None);
        assert!(pending.keep(release(0, TTL, now)), "the task has ended");
    }

    #[test]
    fn the_oldest_is_given_up_where_there_are_too_many() {
        let (pending, now) = (PendingReleases::default(), Instant::now());
        for number in 0..MOST + 2 {
            pending.keep(release(number, TTL, now));
        }
        let kept = pending.take(usize::MAX, now);
        assert_eq!((kept.len(), tokens(&kept[..1])), (MOST, vec![3]));
    }
}
