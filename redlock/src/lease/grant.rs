//! A grant: the proof that a lease is held, and until when.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, Loss};
use crate::validity::{check_left, valid_until};

/// A proven hold, as of its last renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// When the acquisition was sent. For an adopted lease: when it was adopted.
    pub acquired_at: Instant,
    /// When the last successful acquisition or renewal was sent. `valid_until` counts from it.
    pub renewed_at: Instant,
    /// End of validity, on this process's monotonic clock.
    pub valid_until: Instant,
    /// Masters that held it at `renewed_at`, as far as they have answered.
    pub votes: usize,
    /// Successful renewals so far.
    pub renewals: u64,
    /// Why the last renewal failed, where it did: what the masters said. A failure is noted here without a notification of
    /// those that watch the state. `None` again once a renewal succeeds.
    pub last_failure: Option<Arc<Error>>,
}

impl Grant {
    /// The grant of an acquisition or adoption that was sent at `sent_at` and got these votes.
    #[must_use]
    pub fn new(sent_at: Instant, ttl: Duration, votes: usize) -> Self {
        let valid_until = valid_until(sent_at, ttl);
        Self { acquired_at: sent_at, renewed_at: sent_at, valid_until, votes, renewals: 0, last_failure: None }
    }

    /// Whether it is valid at `now`. Once it is not, it never is again.
    #[must_use]
    pub fn is_valid_at(&self, now: Instant) -> bool {
        now < self.valid_until
    }

    /// What is left of its validity at `now`: zero once it is over.
    #[must_use]
    pub fn validity_at(&self, now: Instant) -> Duration {
        self.valid_until.saturating_duration_since(now)
    }

    /// Refuses a grant that is over at `now`, or has less validity left than `needed`.
    ///
    /// # Errors
    /// [`Error::TooSlow`].
    pub fn check_validity(&self, now: Instant, needed: Duration) -> Result<(), Error> {
        check_left(self.validity_at(now), needed)
    }

    /// The grant after a renewal that was sent at `sent_at` and got these votes, heard at `now`. `None` where its validity
    /// is over: the holder may have been told so, and nothing expired is ever revived. Heard twice, the same renewal
    /// counts once, with its last votes.
    #[must_use]
    pub fn extended(mut self, sent_at: Instant, ttl: Duration, votes: usize, now: Instant) -> Option<Self> {
        if !self.is_valid_at(now) {
            return None;
        }
        if self.renewed_at < sent_at {
            self.renewals += 1;
            self.renewed_at = sent_at;
            self.valid_until = valid_until(sent_at, ttl);
        }
        self.last_failure = None;
        self.votes = votes;
        Some(self)
    }

    /// The loss of a holder whose validity ends with this grant.
    #[must_use]
    pub fn expired(&self) -> Loss {
        Loss::Expired { last_failure: self.last_failure.clone() }
    }

    /// The grant with one more vote, from a master that answered after the vote was won. `None` where its validity is
    /// over at `now`.
    #[must_use]
    pub fn with_late_vote(mut self, now: Instant) -> Option<Self> {
        self.votes += 1;
        self.is_valid_at(now).then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);
    /// 10 s less 1 % and 2 ms.
    const VALIDITY: Duration = Duration::from_millis(9898);

    #[test]
    fn a_grant_is_valid_from_before_its_question_was_sent_until_its_ttl_less_drift() {
        let sent_at = Instant::now();
        let grant = Grant::new(sent_at, TTL, 3);
        for (after, left) in [(0, 9898), (9897, 1), (9898, 0), (20_000, 0)] {
            let (now, left) = (sent_at + Duration::from_millis(after), Duration::from_millis(left));
            assert_eq!((grant.validity_at(now), grant.is_valid_at(now)), (left, !left.is_zero()), "{after} ms");
        }
    }

    #[test]
    fn a_grant_with_too_little_validity_left_is_refused() {
        let sent_at = Instant::now();
        let (grant, millis) = (Grant::new(sent_at, TTL, 3), Duration::from_millis);
        for (after, needed, refused) in
            [(0, 0, false), (898, 9000, false), (899, 9000, true), (9897, 0, false), (9898, 0, true)]
        {
            let checked = grant.check_validity(sent_at + millis(after), millis(needed));
            let error = Error::TooSlow { left: VALIDITY.saturating_sub(millis(after)), needed: millis(needed) };
            assert_eq!(checked, if refused { Err(error) } else { Ok(()) }, "{after} ms, {needed} ms needed");
        }
    }

    #[test]
    fn a_renewal_counts_from_when_it_was_sent_and_counts_once() {
        let sent_at = Instant::now();
        let (again, heard) = (sent_at + TTL / 3, sent_at + TTL / 2);
        let failed = Grant { last_failure: Some(Arc::new(Error::ShutDown)), ..Grant::new(sent_at, TTL, 5) };
        let renewed = failed.extended(again, TTL, 3, heard).unwrap();
        let expected = Grant {
            acquired_at: sent_at,
            renewed_at: again,
            valid_until: again + VALIDITY,
            votes: 3,
            renewals: 1,
            last_failure: None,
        };
        assert_eq!(renewed, expected);
        assert_eq!(renewed.extended(again, TTL, 4, heard), Some(Grant { votes: 4, ..expected }));
    }

    #[test]
    fn what_has_run_out_is_never_extended() {
        let sent_at = Instant::now();
        let grant = Grant::new(sent_at, TTL, 5);
        let over = grant.valid_until;
        assert_eq!(grant.clone().extended(sent_at + TTL / 3, TTL, 5, over), None);
        assert_eq!(grant.clone().extended(over, TTL, 5, over), None);
        assert_eq!(grant.clone().with_late_vote(over), None);
        assert_eq!(grant.with_late_vote(sent_at).map(|grant| grant.votes), Some(6));
    }
}
