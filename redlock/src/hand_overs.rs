//! When this client's releases handed a lock on to a waiting contender.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::key::LockKey;
use crate::protocol::waiting::HEAD_START;

/// Recent hand-overs by lock. A contender of this client that asks for such a lock goes to the end of the queue, so that
/// it does not overtake the contender that was told.
#[derive(Debug, Default)]
pub(crate) struct HandOvers(Mutex<HashMap<LockKey, Instant>>);

impl HandOvers {
    /// Notes that a release handed the lock on at `now`.
    pub(crate) fn note(&self, key: &LockKey, now: Instant) {
        let mut all = self.lock();
        all.retain(|_, at| now.saturating_duration_since(*at) < HEAD_START);
        all.insert(key.clone(), now);
    }

    /// Whether the lock was handed on less than a head start ago.
    pub(crate) fn is_recent(&self, key: &LockKey, now: impl FnOnce() -> Instant) -> bool {
        // Nearly always there is none, and the clock is not read.
        self.lock().get(key).is_some_and(|at| now().saturating_duration_since(*at) < HEAD_START)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockKey, Instant>> {
        // The map is only read and added to: a panic cannot leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_lock_that_was_handed_on_is_left_to_others_for_a_head_start() {
        let (hand_overs, now) = (HandOvers::default(), Instant::now());
        let [one, other] = ["one", "other"].map(|name| LockKey::new("a", name).unwrap());
        hand_overs.note(&one, now);
        assert!(hand_overs.is_recent(&one, || now + HEAD_START - Duration::from_nanos(1)));
        assert!(!hand_overs.is_recent(&one, || now + HEAD_START));
        assert!(!hand_overs.is_recent(&other, || now));
        hand_overs.note(&other, now + HEAD_START);
        assert_eq!(hand_overs.lock().len(), 1, "the former is forgotten");
    }
}
