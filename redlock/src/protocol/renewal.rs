//! Counts the masters' answers to a renewal, or to an adoption, which is a renewal by another process.

use std::time::Duration;

use crate::error::MasterError;
use crate::master::Extension;
use crate::quorum::Quorum;

/// Longest pause before a renewal without a majority is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(150);

/// The answers to one round of renewal so far, and to the seeds that followed.
#[derive(Clone, Debug)]
pub struct RenewalTally {
    quorum: Quorum,
    extended: usize,
    held_by_other: usize,
    /// Masters that do not have the key.
    missing: Vec<usize>,
    failures: Vec<(usize, MasterError)>,
}

/// What the answers so far amount to while a round goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalVerdict {
    /// Nothing to act on.
    Open,
    /// Exactly a majority has extended the lease. (Further votes are not told one by one: the end of the round counts them
    /// all.)
    Renewed,
    /// A majority of armed masters does not have this owner's key: it could have granted another owner since the last
    /// renewal, and nobody can tell that it did not.
    Taken,
}

impl RenewalTally {
    /// No answers yet, of as many masters as `quorum` has.
    #[must_use]
    pub fn new(quorum: Quorum) -> Self {
        Self { quorum, extended: 0, held_by_other: 0, missing: Vec::new(), failures: Vec::new() }
    }

    /// Counts a master's answer to the renewal.
    #[inline]
    pub fn hear(&mut self, master: usize, answer: Result<Extension, MasterError>) -> RenewalVerdict {
        match answer {
            Ok(Extension::Extended) => self.extended += 1,
            Ok(Extension::Missing) => self.missing.push(master),
            Ok(Extension::HeldByOther) => self.held_by_other += 1,
            Err(error) => self.failures.push((master, error)),
        }
        if self.extended == self.quorum.votes_needed() {
            RenewalVerdict::Renewed
        } else if self.is_taken() {
            RenewalVerdict::Taken
        } else {
            RenewalVerdict::Open
        }
    }

    /// Counts a master's answer to a seed: a vote if it took the key. Any other answer changes nothing, since that master
    /// is already counted as one without the key.
    pub fn hear_seed(&mut self, master: usize, answer: Result<Extension, MasterError>) {
        match answer {
            Ok(Extension::Extended) => self.extended += 1,
            Ok(Extension::Missing | Extension::HeldByOther) => {}
            Err(error) => self.failures.push((master, error)),
        }
    }

    /// Masters that have the lease for the full TTL again.
    #[must_use]
    pub fn votes(&self) -> usize {
        self.extended
    }

    /// Armed masters that do not have this owner's key.
    #[must_use]
    pub fn without_key(&self) -> usize {
        self.missing.len() + self.held_by_other
    }

    /// Whether a majority has extended the lease.
    #[must_use]
    pub fn is_renewed(&self) -> bool {
        self.quorum.is_reached_by(self.extended)
    }

    /// Whether a majority does not have this owner's key: see [`RenewalVerdict::Taken`].
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.quorum.is_reached_by(self.without_key())
    }

    /// The masters to seed: those that lack the key and do not have another owner's.
    #[must_use]
    pub fn to_seed(&self) -> &[usize] {
        &self.missing
    }

    /// The masters that gave no usable answer, with what they said. Removes them from the tally.
    pub fn take_failures(&mut self) -> Vec<(usize, MasterError)> {
        std::mem::take(&mut self.failures)
    }
}

/// Shortest and longest pause before a renewal without a majority is tried again: 50 to 150 ms, or less where the longest
/// would be more than a tenth of the TTL.
pub(crate) fn retry_pause(ttl: Duration) -> (Duration, Duration) {
    let longest = RETRY_PAUSE.min(ttl / 10);
    (longest / 3, longest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const YES: Result<Extension, MasterError> = Ok(Extension::Extended);
    const MISSING: Result<Extension, MasterError> = Ok(Extension::Missing);
    const OTHER: Result<Extension, MasterError> = Ok(Extension::HeldByOther);
    const SILENT: Result<Extension, MasterError> = Err(MasterError::Timeout);

    fn hear(answers: &[Result<Extension, MasterError>]) -> (RenewalTally, Vec<RenewalVerdict>) {
        let mut tally = RenewalTally::new(Quorum::of(answers.len()));
        let verdicts = answers.iter().enumerate().map(|(master, answer)| tally.hear(master, answer.clone())).collect();
        (tally, verdicts)
    }

    #[test]
    fn the_answer_that_completes_a_majority_decides_the_round() {
        use RenewalVerdict::{Open, Renewed, Taken};
        for (answers, verdicts) in [
            ([YES, YES, YES, YES, YES], [Open, Open, Renewed, Open, Open]),
            ([YES, SILENT, YES, MISSING, YES], [Open, Open, Open, Open, Renewed]),
            ([YES, YES, YES, SILENT, OTHER], [Open, Open, Renewed, Renewed, Renewed]),
            ([MISSING, OTHER, YES, YES, MISSING], [Open, Open, Open, Open, Taken]),
            ([OTHER, OTHER, OTHER, YES, YES], [Open, Open, Taken, Taken, Taken]),
            ([SILENT, SILENT, SILENT, MISSING, MISSING], [Open; 5]),
            ([YES, YES, MISSING, MISSING, SILENT], [Open; 5]),
        ] {
            assert_eq!(hear(&answers).1, verdicts, "{answers:?}");
        }
    }

    #[test]
    fn only_masters_without_any_key_are_seeded() {
        let (tally, _) = hear(&[YES, MISSING, OTHER, SILENT, MISSING]);
        assert_eq!(tally.to_seed(), [1, 4]);
        assert_eq!((tally.votes(), tally.without_key()), (1, 3));
    }

    #[test]
    fn a_seed_that_is_taken_is_a_vote() {
        let (mut tally, _) = hear(&[YES, YES, MISSING, MISSING, SILENT]);
        assert!(!tally.is_renewed());
        tally.hear_seed(2, OTHER);
        assert!(!tally.is_renewed() && !tally.is_taken());
        tally.hear_seed(3, YES);
        assert!(tally.is_renewed());
        assert_eq!(tally.votes(), 3);
    }

    #[test]
    fn a_failed_renewal_and_a_failed_seed_are_told_with_what_masters_said() {
        let (mut tally, _) = hear(&[MISSING, Err(MasterError::Quarantined), MISSING]);
        tally.hear_seed(2, SILENT);
        assert_eq!(tally.take_failures(), [(1, MasterError::Quarantined), (2, MasterError::Timeout)]);
    }

    #[test]
    fn the_pause_before_another_try_is_at_most_a_tenth_of_the_ttl() {
        let millis = Duration::from_millis;
        assert_eq!(retry_pause(millis(30_000)), (millis(50), millis(150)));
        assert_eq!(retry_pause(millis(300)), (millis(10), millis(30)));
    }

    proptest! {
        #[test]
        fn the_order_of_answers_does_not_matter(
            answers in proptest::collection::vec(proptest::sample::select(vec![YES, MISSING, OTHER, SILENT]), 1..8),
            turn in any::<prop::sample::Index>(),
        ) {
            let mut turned = answers.clone();
            turned.rotate_left(turn.index(answers.len()));
            let ((one, verdicts), (other, others)) = (hear(&answers), hear(&turned));
            prop_assert_eq!((one.is_renewed(), one.is_taken()), (other.is_renewed(), other.is_taken()));
            prop_assert_eq!(one.to_seed().len(), other.to_seed().len());
            prop_assert!(!(one.is_renewed() && one.is_taken()));
            for verdict in [RenewalVerdict::Renewed, RenewalVerdict::Taken] {
                prop_assert_eq!(verdicts.contains(&verdict), others.contains(&verdict));
            }
            prop_assert_eq!(verdicts.contains(&RenewalVerdict::Renewed), one.is_renewed());
        }
    }
}
