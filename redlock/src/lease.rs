//! A held lock, as its holder sees it.

use std::fmt;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::error::Error;
use super::key::LockKey;
use super::owner::Owner;
use super::release::Released;
use super::validity::drift;

/// Below this, drift leaves too little of a lease to act on.
const SHORTEST_TTL: Duration = Duration::from_millis(10);
/// Above this, a time to live is a mistake.
const LONGEST_TTL: Duration = Duration::from_secs(366 * 24 * 3600);
/// What a place in a queue has bits for.
const PRIORITIES: std::ops::RangeInclusive<i16> = -1000..=1000;
/// More often nobody can renew.
const SHORTEST_PERIOD: Duration = Duration::from_millis(1);

/// How a lease is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// A watchdog renews it back to the full TTL, so long after it was last acquired or renewed: at least 1 ms, less
    /// than the TTL.
    Every(Duration),
    /// Nobody renews it: it ends after its TTL.
    None,
}

/// What a lease shall be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseOptions {
    /// Who asks, in 1 to 253 bytes of printable text without spaces: unique among those that contend.
    pub identity: String,
    /// Time to live of the lock on each master: at least 10 ms, at most 366 days and the masters' cap. Masters count it in
    /// whole milliseconds, rounded down.
    pub ttl: Duration,
    /// How it is kept.
    pub renewal: Renewal,
    /// How often it may be renewed; then it ends with [`Loss::MaxRenewals`] when the next renewal would be due. `None`,
    /// the default, for no limit.
    pub max_renewals: Option<u64>,
    /// Validity that the caller needs at least; less is given back. Zero by default; below the TTL less its
    /// [`drift`].
    pub min_validity: Duration,
    /// Other processes renew or [adopt](super::Client::adopt) the grant under the same owner. Where one of them loses
    /// or drops its lease, the others may count on it still: so it is not given back then, and ends by
    /// [`Lease::release`] or after its TTL. Not shared by default; an adopted lease always is.
    pub is_shared: bool,
    /// Of those that wait for the lock the highest priority gets it first: -1000 to 1000, 0 by default. A hint, as the
    /// whole queue is.
    pub priority: i16,
}

impl LeaseOptions {
    /// A lease of `ttl` for `identity`, renewed each third of it.
    #[must_use]
    pub fn new(identity: impl Into<String>, ttl: Duration) -> Self {
        let renewal = Renewal::Every(ttl / 3);
        let identity = identity.into();
        Self { identity, ttl, renewal, max_renewals: None, min_validity: Duration::ZERO, is_shared: false, priority: 0 }
    }

    /// Refuses what could not work.
    pub(super) fn check(&self) -> Result<(), Error> {
        let invalid = |why: String| Err(Error::Invalid(why));
        let printable = |c: char| !c.is_whitespace() && !c.is_control();
        if self.identity.is_empty() || self.identity.len() > 253 || !self.identity.chars().all(printable) {
            return invalid(format!(
                "identity {:?} must have 1 to 253 printable characters without spaces",
                self.identity
            ));
        }
        if self.ttl < SHORTEST_TTL || self.ttl > LONGEST_TTL {
            return invalid(format!("a TTL of {:?} is not between {SHORTEST_TTL:?} and {LONGEST_TTL:?}", self.ttl));
        }
        // With what no vote can give, every vote would be won and given back.
        if self.min_validity >= self.ttl.saturating_sub(drift(self.ttl)) {
            return invalid(format!("a lease of {:?} is never valid for {:?}", self.ttl, self.min_validity));
        }
        if !PRIORITIES.contains(&self.priority) {
            return invalid(format!("priority {} is not between -1000 and 1000", self.priority));
        }
        match self.renewal {
            Renewal::Every(period) if period < SHORTEST_PERIOD || period >= self.ttl => {
                invalid(format!("a lease of {:?} cannot be renewed every {period:?}", self.ttl))
            }
            Renewal::Every(_) | Renewal::None => Ok(()),
        }
    }
}

/// A proven hold, as of its last renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// When the acquisition was sent (for an adopted lease: when it was adopted).
    pub acquired_at: Instant,
    /// When the last successful acquisition or renewal was sent: what `valid_until` counts from.
    pub renewed_at: Instant,
    /// Until when it is proven, on this process's monotonic clock.
    pub valid_until: Instant,
    /// Masters that held it at `renewed_at`, as far as they have answered.
    pub votes: usize,
    /// Successful renewals so far.
    pub renewals: u64,
}

/// Why a lease ended against its holder's will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It could not be renewed before its validity ended.
    Expired,
    /// A majority of masters does not hold it any more: another has it, or may have had it since.
    Taken,
    /// It was renewed as often as its holder asked for. The holder is told while the masters still keep it, so that it
    /// can undo its work: it is given back when the lease is dropped or released, at the latest at the end of the last
    /// grant's validity. (A [shared](LeaseOptions::is_shared) one only when it is released.)
    MaxRenewals,
}

impl Loss {
    /// The word for it, in the form that Kubernetes wants of a condition's reason.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "Expired",
            Self::Taken => "Taken",
            Self::MaxRenewals => "MaxRenewals",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease could not be renewed before it ended",
            Self::Taken => "a majority of the masters does not hold the lease any more",
            Self::MaxRenewals => "the lease was renewed as often as it may be",
        })
    }
}

/// Where a lease stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Held until [`Grant::valid_until`], if it is not renewed before.
    Held(Grant),
    /// Ended against the holder's will. Final: the lock may be acquired again, as another lease.
    Lost(Loss),
    /// Given back, or left to another process. Final.
    Released,
}

impl LeaseState {
    /// The grant, if it is proven at `now`.
    #[must_use]
    pub fn valid_at(&self, now: Instant) -> Option<Grant> {
        match self {
            Self::Held(grant) if now < grant.valid_until => Some(*grant),
            _ => None,
        }
    }
}

/// What a holder can ask of the watchdog.
#[derive(Debug)]
pub(super) enum Order {
    /// Stop, give the lock back, and say what was found.
    Release(oneshot::Sender<Released>),
    /// Stop, and leave the lock on the masters.
    Abandon,
}

/// A held lock. Dropped, it is given back in the background, unless it is [shared](LeaseOptions::is_shared).
#[derive(Debug)]
pub struct Lease {
    key: LockKey,
    owner: Owner,
    state: watch::Receiver<LeaseState>,
    order: oneshot::Sender<Order>,
}

impl Lease {
    pub(super) fn new(
        key: LockKey,
        owner: Owner,
        state: watch::Receiver<LeaseState>,
        order: oneshot::Sender<Order>,
    ) -> Self {
        Self { key, owner, state, order }
    }

    /// The lock.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// Who holds it: identity and fencing token.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Where it stands, and changes of that: each renewal, the loss, the release. The last state is final, and stays
    /// there. `Held` counts until its [`Grant::valid_until`] only: ask [`LeaseState::valid_at`].
    #[must_use]
    pub fn state(&self) -> watch::Receiver<LeaseState> {
        self.state.clone()
    }

    /// Whether it is proven held right now, by the local monotonic clock alone: no network, and no waiting. Once false,
    /// it stays false.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.validity().is_zero()
    }

    /// What is left of the proven hold; zero once it is over.
    #[must_use]
    pub fn validity(&self) -> Duration {
        // The state is locked before the clock is read: see the watchdog's extension of it.
        let state = self.state.borrow();
        let now = Instant::now();
        state.valid_at(now).map_or(Duration::ZERO, |grant| grant.valid_until - now)
    }

    /// Ends when the lease is lost or released, and says which. Never later than the end of validity, as far as the
    /// runtime's timer is in time: whoever is about to act asks [`Self::is_held`].
    pub async fn ended(&self) -> LeaseState {
        let mut state = self.state.clone();
        loop {
            let valid_until = match *state.borrow_and_update() {
                LeaseState::Held(grant) => grant.valid_until,
                ended => return ended,
            };
            let over = tokio::time::sleep_until(valid_until);
            tokio::select! {
                biased;
                changed = state.changed() => if changed.is_err() {
                    // The watchdog is gone without a word (the runtime shuts down): what is proven stays proven.
                    tokio::time::sleep_until(valid_until).await;
                    return LeaseState::Lost(Loss::Expired);
                },
                () = over => if !self.is_held() {
                    let ended = *state.borrow();
                    return if matches!(ended, LeaseState::Held(_)) { LeaseState::Lost(Loss::Expired) } else { ended };
                },
            }
        }
    }

    /// Stops renewing, then gives the lock back on all masters, as [`Client::release`](super::Client::release) does.
    /// Where it had run out or was taken, nobody waits for the masters. Goes on in the background if the future is
    /// dropped.
    pub async fn release(self) -> Released {
        let (done, released) = oneshot::channel();
        // The watchdog may have ended by itself, or end before it reads the order.
        if self.order.send(Order::Release(done)).is_ok()
            && let Ok(released) = released.await
        {
            return released;
        }
        match *self.state.borrow() {
            // What was left of it is being deleted.
            LeaseState::Lost(_) => Released::AlreadyExpired,
            // By a shutdown of the client or of the runtime.
            LeaseState::Released | LeaseState::Held(_) => Released::Unknown,
        }
    }

    /// Stops renewing and leaves the lock on the masters as it is, for another process to [adopt](super::Client::adopt).
    /// This one holds it no more.
    pub fn abandon(self) {
        // A watchdog that has ended has nothing to stop.
        let _ = self.order.send(Order::Abandon);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_could_not_work_are_refused() {
        let second = Duration::from_secs(1);
        let good = LeaseOptions::new("job/a", second);
        assert_eq!(good.check(), Ok(()));
        for (options, word) in [
            (LeaseOptions::new("", second), "identity"),
            (LeaseOptions::new("a b", second), "identity"),
            (LeaseOptions::new("a".repeat(254), second), "identity"),
            (LeaseOptions::new("a", Duration::ZERO), "TTL"),
            (LeaseOptions::new("a", Duration::from_millis(9)), "TTL"),
            (LeaseOptions::new("a", Duration::MAX), "TTL"),
            (LeaseOptions { min_validity: Duration::from_millis(988), ..good.clone() }, "never valid"),
            (LeaseOptions { priority: 1001, ..good.clone() }, "priority"),
            (LeaseOptions { priority: i16::MIN, ..good.clone() }, "priority"),
            (LeaseOptions { renewal: Renewal::Every(Duration::ZERO), ..good.clone() }, "renewed"),
            (LeaseOptions { renewal: Renewal::Every(second), ..good.clone() }, "renewed"),
        ] {
            let error = options.check().unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
