//! What a caller asks of a lease, and which of it is refused.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::Error;
use crate::validity::drift;

/// With a shorter TTL, drift leaves too little of a lease.
const SHORTEST_TTL: Duration = Duration::from_millis(10);
/// A longer TTL is a mistake.
const LONGEST_TTL: Duration = Duration::from_secs(366 * 24 * 3600);
/// A place in a queue has bits for these.
const PRIORITIES: RangeInclusive<i16> = -1000..=1000;
/// Nobody can renew more often.
const SHORTEST_PERIOD: Duration = Duration::from_millis(1);

/// Whether a lease is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// A watchdog renews it back to the full TTL. The period counts from the last acquisition or renewal; it is at least
    /// 1 ms and less than the TTL.
    Every(Duration),
    /// Nobody renews it: it ends after its TTL.
    None,
}

/// What a caller asks of a lease. Made by [`Self::new`] and the setters, which have the names of the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseOptions {
    /// Who asks: 1 to 253 bytes of printable text without spaces, unique among the contenders.
    pub identity: String,
    /// TTL of the lock on each master: at least 10 ms, at most 366 days and at most the masters' cap. Masters count it in
    /// whole milliseconds, rounded down.
    pub ttl: Duration,
    /// Whether it is renewed.
    pub renewal: Renewal,
    /// Number of renewals after which the lease ends, with [`Loss::MaxRenewals`](crate::Loss::MaxRenewals) when the next
    /// renewal would be due. `None`, the default, for no limit.
    pub max_renewals: Option<u64>,
    /// Least validity that the caller needs. A grant with less is released. Zero by default; less than the TTL without
    /// its [`drift`].
    pub min_validity: Duration,
    /// Whether other processes renew or [adopt](crate::Client::adopt) the grant under the same owner. Where one of them
    /// loses or drops a shared lease, the others may still count on it. So it is not released then: it ends by
    /// [`Lease::release`](crate::Lease::release) or after its TTL. Not shared by default; an adopted lease always is.
    pub is_shared: bool,
    /// Whether masters that lack the key are given it at each renewal (seeded), while the lease is valid. True by default.
    /// One of several processes that renew a [shared](#structfield.is_shared) lease decides when it is released; only that
    /// one may seed: a seed of another that crosses the release would bring the released key back. See
    /// [`Lease::set_seeds`](crate::Lease::set_seeds).
    pub seeds: bool,
    /// Of several waiting contenders the highest priority gets the lock first: -1000 to 1000, 0 by default. A hint, as
    /// the whole queue is.
    pub priority: i16,
}

impl LeaseOptions {
    /// A lease of `ttl` for `identity`, renewed each third of it.
    #[must_use]
    pub fn new(identity: impl Into<String>, ttl: Duration) -> Self {
        let renewal = Renewal::Every(ttl / 3);
        let identity = identity.into();
        let (max_renewals, min_validity) = (None, Duration::ZERO);
        Self { identity, ttl, renewal, max_renewals, min_validity, is_shared: false, seeds: true, priority: 0 }
    }

    /// For another [`identity`](#structfield.identity).
    #[must_use]
    pub fn identity(self, identity: impl Into<String>) -> Self {
        Self { identity: identity.into(), ..self }
    }

    /// With another [`ttl`](#structfield.ttl). The period of renewal stays.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// With another [`renewal`](#structfield.renewal).
    #[must_use]
    pub fn renewal(self, renewal: Renewal) -> Self {
        Self { renewal, ..self }
    }

    /// With a limit of [`max_renewals`](#structfield.max_renewals), or with none.
    #[must_use]
    pub fn max_renewals(self, max_renewals: impl Into<Option<u64>>) -> Self {
        Self { max_renewals: max_renewals.into(), ..self }
    }

    /// With a [`min_validity`](#structfield.min_validity).
    #[must_use]
    pub fn min_validity(self, min_validity: Duration) -> Self {
        Self { min_validity, ..self }
    }

    /// [Shared](#structfield.is_shared) with other processes, or not.
    #[must_use]
    pub fn shared(self, is_shared: bool) -> Self {
        Self { is_shared, ..self }
    }

    /// Whether it [seeds](#structfield.seeds) masters that lack the key.
    #[must_use]
    pub fn seeds(self, seeds: bool) -> Self {
        Self { seeds, ..self }
    }

    /// With a [`priority`](#structfield.priority) in the queue.
    #[must_use]
    pub fn priority(self, priority: i16) -> Self {
        Self { priority, ..self }
    }

    /// Refuses options that cannot work.
    pub(crate) fn validate(&self) -> Result<(), Error> {
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
        // No grant can be valid for that long: each would be won and released again.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_could_not_work_are_refused() {
        let second = Duration::from_secs(1);
        let good = LeaseOptions::new("job/a", second);
        assert_eq!(good.validate(), Ok(()));
        for (options, word) in [
            (LeaseOptions::new("", second), "identity"),
            (LeaseOptions::new("a b", second), "identity"),
            (LeaseOptions::new("a".repeat(254), second), "identity"),
            (LeaseOptions::new("a", Duration::ZERO), "TTL"),
            (LeaseOptions::new("a", Duration::from_millis(9)), "TTL"),
            (LeaseOptions::new("a", Duration::MAX), "TTL"),
            (good.clone().min_validity(Duration::from_millis(988)), "never valid"),
            (good.clone().priority(1001), "priority"),
            (good.clone().priority(i16::MIN), "priority"),
            (good.clone().renewal(Renewal::Every(Duration::ZERO)), "renewed"),
            (good.clone().renewal(Renewal::Every(second)), "renewed"),
        ] {
            let error = options.validate().unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn each_setter_sets_the_field_of_its_name() {
        let (second, renewal) = (Duration::from_secs(1), Renewal::None);
        let made = LeaseOptions::new("a", second).identity("b").ttl(3 * second).renewal(renewal).max_renewals(7);
        let made = made.min_validity(second).shared(true).seeds(false).priority(-5);
        let (identity, ttl, max_renewals, min_validity) = ("b".to_owned(), 3 * second, Some(7), second);
        let (is_shared, seeds) = (true, false);
        let expected =
            LeaseOptions { identity, ttl, renewal, max_renewals, min_validity, is_shared, seeds, priority: -5 };
        assert_eq!(made, expected);
        assert_eq!(made.max_renewals(None).max_renewals, None);
    }
}
