//! Counts the masters' answers to a release.

use crate::error::MasterError;
use crate::master::ReleaseAnswer;
use crate::quorum::{Majority, Quorum};

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// A majority still had the lease. Now it is gone from every master that answered.
    Freed,
    /// The lease had already ended on a majority. What was left of it is gone.
    AlreadyExpired,
    /// Too few masters answered to tell. What they still have of the lease ends by itself after its TTL.
    Unknown,
}

/// The answers to one release so far.
#[derive(Clone, Debug)]
pub struct ReleaseTally {
    quorum: Quorum,
    deleted: usize,
    not_owner: usize,
    is_handed_on: bool,
    /// Masters that did not answer in time.
    silent: Vec<usize>,
}

impl ReleaseTally {
    /// No answers yet, of as many masters as `quorum` has.
    #[must_use]
    pub fn new(quorum: Quorum) -> Self {
        Self { quorum, deleted: 0, not_owner: 0, is_handed_on: false, silent: Vec::new() }
    }

    /// Counts a master's answer. Returns what the release found once the rest cannot change it.
    #[allow(clippy::needless_pass_by_value)] // As in the other tallies, which keep the error.
    #[inline]
    pub fn hear(&mut self, master: usize, answer: Result<ReleaseAnswer, MasterError>) -> Option<Released> {
        match answer {
            Ok(ReleaseAnswer::NotOwner) => self.not_owner += 1,
            Ok(ReleaseAnswer::Deleted) => self.deleted += 1,
            Ok(ReleaseAnswer::HandedOn) => {
                self.deleted += 1;
                self.is_handed_on = true;
            }
            Err(MasterError::Timeout) => self.silent.push(master),
            // A master that is not reachable is not asked again: calls to it fail at once, and there would be ever more.
            Err(_) => {}
        }
        match self.quorum.decide(self.deleted, self.not_owner) {
            Majority::Reached => Some(Released::Freed),
            Majority::OutOfReach => Some(Released::AlreadyExpired),
            Majority::Open => None,
        }
    }

    /// Whether a master told a contender in its queue.
    #[must_use]
    pub fn is_handed_on(&self) -> bool {
        self.is_handed_on
    }

    /// Whether a master did not answer in time, and must be asked again.
    #[must_use]
    pub fn has_silent(&self) -> bool {
        !self.silent.is_empty()
    }

    /// The masters that did not answer in time. Removes them from the tally.
    pub fn take_silent(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.silent)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NO: Result<ReleaseAnswer, MasterError> = Ok(ReleaseAnswer::NotOwner);
    const YES: Result<ReleaseAnswer, MasterError> = Ok(ReleaseAnswer::Deleted);
    const ON: Result<ReleaseAnswer, MasterError> = Ok(ReleaseAnswer::HandedOn);
    const SILENT: Result<ReleaseAnswer, MasterError> = Err(MasterError::Timeout);
    const DOWN: Result<ReleaseAnswer, MasterError> = Err(MasterError::Quarantined);

    /// What was found first, and after how many answers.
    fn find(answers: &[Result<ReleaseAnswer, MasterError>]) -> Option<(usize, Released)> {
        let mut tally = ReleaseTally::new(Quorum::of(answers.len()));
        (1..).zip(answers).find_map(|(heard, answer)| Some((heard, tally.hear(heard - 1, answer.clone())?)))
    }

    #[test]
    fn a_release_ends_as_soon_as_a_majority_says_what_it_found() {
        for (answers, found) in [
            ([YES, ON, YES, SILENT, SILENT], Some((3, Released::Freed))),
            ([NO, NO, YES, YES, ON], Some((5, Released::Freed))),
            ([NO, NO, NO, YES, YES], Some((3, Released::AlreadyExpired))),
            ([SILENT, NO, NO, DOWN, NO], Some((5, Released::AlreadyExpired))),
            ([YES, YES, SILENT, DOWN, NO], None),
            ([SILENT, SILENT, SILENT, DOWN, DOWN], None),
        ] {
            assert_eq!(find(&answers), found, "{answers:?}");
        }
    }

    #[test]
    fn only_masters_that_did_not_answer_in_time_are_asked_again() {
        let mut tally = ReleaseTally::new(Quorum::of(5));
        for (master, answer) in [(4, SILENT), (1, DOWN), (2, YES), (0, SILENT)] {
            tally.hear(master, answer);
        }
        assert!(tally.has_silent() && !tally.is_handed_on());
        assert_eq!(tally.take_silent(), [4, 0]);
        assert!(!tally.has_silent());
        tally.hear(3, ON);
        assert!(tally.is_handed_on());
    }

    proptest! {
        #[test]
        fn what_was_found_stands_whatever_the_rest_say(
            answers in proptest::collection::vec(proptest::sample::select(vec![NO, YES, ON, SILENT, DOWN]), 1..8),
        ) {
            let mut tally = ReleaseTally::new(Quorum::of(answers.len()));
            let mut found = None;
            for (master, answer) in answers.into_iter().enumerate() {
                let now = tally.hear(master, answer);
                prop_assert!(found.is_none() || now == found, "{:?} became {:?}", found, now);
                found = now;
            }
        }
    }
}
