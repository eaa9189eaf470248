//! Counts the masters' answers to a release.

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
}

impl ReleaseTally {
    /// No answers yet, of as many masters as `quorum` has.
    #[must_use]
    pub fn new(quorum: Quorum) -> Self {
        Self { quorum, deleted: 0, not_owner: 0, is_handed_on: false }
    }

    /// Counts a master's answer; `None` where it gave no usable one. Returns what the release found once the rest cannot
    /// change it.
    #[inline]
    pub fn hear(&mut self, answer: Option<ReleaseAnswer>) -> Option<Released> {
        match answer {
            Some(ReleaseAnswer::NotOwner) => self.not_owner += 1,
            Some(ReleaseAnswer::Deleted) => self.deleted += 1,
            Some(ReleaseAnswer::HandedOn) => {
                self.deleted += 1;
                self.is_handed_on = true;
            }
            None => {}
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
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NO: Option<ReleaseAnswer> = Some(ReleaseAnswer::NotOwner);
    const YES: Option<ReleaseAnswer> = Some(ReleaseAnswer::Deleted);
    const ON: Option<ReleaseAnswer> = Some(ReleaseAnswer::HandedOn);
    const SILENT: Option<ReleaseAnswer> = None;

    /// What was found first, and after how many answers.
    fn find(answers: &[Option<ReleaseAnswer>]) -> Option<(usize, Released)> {
        let mut tally = ReleaseTally::new(Quorum::of(answers.len()));
        (1..).zip(answers).find_map(|(heard, answer)| Some((heard, tally.hear(*answer)?)))
    }

    #[test]
    fn a_release_ends_as_soon_as_a_majority_says_what_it_found() {
        for (answers, found) in [
            ([YES, ON, YES, SILENT, SILENT], Some((3, Released::Freed))),
            ([NO, NO, YES, YES, ON], Some((5, Released::Freed))),
            ([NO, NO, NO, YES, YES], Some((3, Released::AlreadyExpired))),
            ([SILENT, NO, NO, SILENT, NO], Some((5, Released::AlreadyExpired))),
            ([YES, YES, SILENT, SILENT, NO], None),
            ([SILENT, SILENT, SILENT, SILENT, SILENT], None),
        ] {
            assert_eq!(find(&answers), found, "{answers:?}");
        }
    }

    #[test]
    fn one_master_that_told_its_queue_has_handed_the_lock_on() {
        let mut tally = ReleaseTally::new(Quorum::of(5));
        for (answer, is_handed_on) in [(SILENT, false), (YES, false), (ON, true), (YES, true)] {
            tally.hear(answer);
            assert_eq!(tally.is_handed_on(), is_handed_on, "{answer:?}");
        }
    }

    proptest! {
        #[test]
        fn what_was_found_stands_whatever_the_rest_say(
            answers in proptest::collection::vec(proptest::sample::select(vec![NO, YES, ON, SILENT]), 1..8),
        ) {
            let mut tally = ReleaseTally::new(Quorum::of(answers.len()));
            let mut found = None;
            for answer in answers {
                let now = tally.hear(answer);
                prop_assert!(found.is_none() || now == found, "{:?} became {:?}", found, now);
                found = now;
            }
        }
    }
}
