//! Counts the masters' votes on a claim.

use crate::error::MasterError;
use crate::master::Vote;
use crate::quorum::{Majority, Quorum};

/// The votes on one claim so far.
///
/// The order of the answers does not matter for who wins. It can decide which verdict ends a lost vote: the first that
/// the answers justify.
#[derive(Clone, Debug)]
pub struct VoteTally {
    quorum: Quorum,
    granted: usize,
    stale: usize,
    /// Masters that said that another owner has the key.
    held_by_other: Vec<usize>,
    failures: Vec<(usize, MasterError)>,
    /// Masters to which the claim was not sent.
    unsent: Vec<usize>,
    /// Masters that gave a usable answer.
    settled: Vec<usize>,
    /// Masters to which it was sent, and that gave no usable answer.
    in_doubt: Vec<usize>,
}

/// What the votes so far amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoteVerdict {
    /// Undecided: more answers are needed.
    Open,
    /// A majority granted the claim.
    Won {
        /// Masters that granted it.
        votes: usize,
    },
    /// Lost only because masters have seen larger tokens. A vote with a larger token may win.
    StaleToken,
    /// Lost to other contenders.
    Contended,
    /// Lost because too few masters gave a usable answer. Said only when every master has answered.
    NoQuorum {
        /// Masters that gave a usable answer.
        usable: usize,
    },
}

impl VoteTally {
    /// No votes yet, of as many masters as `quorum` has.
    #[must_use]
    pub fn new(quorum: Quorum) -> Self {
        Self {
            quorum,
            granted: 0,
            stale: 0,
            held_by_other: Vec::new(),
            failures: Vec::new(),
            unsent: Vec::new(),
            settled: Vec::with_capacity(quorum.masters()),
            in_doubt: Vec::new(),
        }
    }

    /// Counts a master's answer.
    #[inline]
    pub fn hear(&mut self, master: usize, answer: Result<Vote, MasterError>) -> VoteVerdict {
        if answer.is_ok() {
            self.settled.push(master);
        }
        match answer {
            Ok(Vote::Granted) => self.granted += 1,
            Ok(Vote::HeldByOther) => self.held_by_other.push(master),
            Ok(Vote::StaleToken) => self.stale += 1,
            Err(error) => {
                self.in_doubt.push(master);
                self.failures.push((master, error));
            }
        }
        self.verdict()
    }

    /// Counts a master to which the claim could not be sent.
    pub fn hear_unsent(&mut self, master: usize, error: MasterError) -> VoteVerdict {
        self.unsent.push(master);
        self.failures.push((master, error));
        self.verdict()
    }

    /// What the votes so far amount to.
    #[inline]
    #[must_use]
    pub fn verdict(&self) -> VoteVerdict {
        let usable = self.granted + self.stale + self.held_by_other.len();
        let answered = usable + self.failures.len();
        match self.quorum.decide(self.granted, answered - self.granted) {
            Majority::Reached => VoteVerdict::Won { votes: self.granted },
            // Lost. Contenders or broken masters: that is told apart once a majority was usable.
            Majority::OutOfReach if self.quorum.is_reached_by(usable) => {
                if self.quorum.is_reached_by(self.granted + self.stale) {
                    VoteVerdict::StaleToken
                } else {
                    VoteVerdict::Contended
                }
            }
            Majority::OutOfReach if answered >= self.quorum.masters() => VoteVerdict::NoQuorum { usable },
            Majority::OutOfReach | Majority::Open => VoteVerdict::Open,
        }
    }

    /// The masters that may have the claim's key: all but those that said that another owner has it, and those to which
    /// the claim was not sent. A claim that fails is released there, because a master that did not answer may have set the
    /// key.
    pub fn to_release(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.quorum.masters())
            .filter(|master| !self.held_by_other.contains(master) && !self.unsent.contains(master))
    }

    /// The masters that were sent the claim and gave no usable answer. If the connection breaks, the claim may reach them
    /// later than what is sent on the next one.
    #[must_use]
    pub fn in_doubt(&self) -> &[usize] {
        &self.in_doubt
    }

    /// The same, and the masters that have not answered yet.
    #[must_use]
    pub fn unsettled(&self) -> Vec<usize> {
        let is_settled = |master: &usize| self.settled.contains(master) || self.unsent.contains(master);
        (0..self.quorum.masters()).filter(|master| !is_settled(master)).collect()
    }

    /// The masters that gave no usable answer, with what they said. Removes them from the tally.
    pub fn take_failures(&mut self) -> Vec<(usize, MasterError)> {
        std::mem::take(&mut self.failures)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const YES: Result<Vote, MasterError> = Ok(Vote::Granted);
    const HELD: Result<Vote, MasterError> = Ok(Vote::HeldByOther);
    const STALE: Result<Vote, MasterError> = Ok(Vote::StaleToken);
    const SILENT: Result<Vote, MasterError> = Err(MasterError::Timeout);

    /// The first verdict that is not open, and after how many answers.
    fn decide(masters: usize, answers: &[Result<Vote, MasterError>]) -> (usize, VoteVerdict) {
        let mut tally = VoteTally::new(Quorum::of(masters));
        let mut verdict = (0, tally.verdict());
        for (heard, answer) in (1..).zip(answers) {
            if verdict.1 == VoteVerdict::Open {
                verdict = (heard, tally.hear(heard - 1, answer.clone()));
            }
        }
        verdict
    }

    #[test]
    fn a_vote_is_decided_as_soon_as_the_rest_cannot_change_it() {
        for (masters, answers, after, verdict) in [
            (5, vec![YES, YES, YES, HELD, HELD], 3, VoteVerdict::Won { votes: 3 }),
            (5, vec![SILENT, SILENT, YES, YES, YES], 5, VoteVerdict::Won { votes: 3 }),
            (5, vec![HELD, HELD, HELD, YES, YES], 3, VoteVerdict::Contended),
            (5, vec![YES, YES, HELD, HELD, HELD], 5, VoteVerdict::Contended),
            (5, vec![STALE, YES, STALE, STALE, YES], 4, VoteVerdict::StaleToken),
            (5, vec![STALE, STALE, HELD, HELD, HELD], 3, VoteVerdict::Contended),
            (1, vec![YES], 1, VoteVerdict::Won { votes: 1 }),
            (2, vec![YES, HELD], 2, VoteVerdict::Contended),
            (5, vec![YES, YES], 2, VoteVerdict::Open),
        ] {
            assert_eq!(decide(masters, &answers), (after, verdict), "{answers:?}");
        }
    }

    #[test]
    fn a_lost_vote_goes_on_until_contenders_and_broken_masters_can_be_told_apart() {
        for (answers, after, verdict) in [
            (vec![SILENT, SILENT, SILENT, HELD, HELD], 5, VoteVerdict::NoQuorum { usable: 2 }),
            (vec![SILENT, SILENT, HELD, HELD, HELD], 5, VoteVerdict::Contended),
            (vec![SILENT, SILENT, HELD, HELD, YES], 5, VoteVerdict::Contended),
            (vec![SILENT, SILENT, STALE, STALE, YES], 5, VoteVerdict::StaleToken),
            (vec![SILENT; 5], 5, VoteVerdict::NoQuorum { usable: 0 }),
        ] {
            assert_eq!(decide(5, &answers), (after, verdict), "{answers:?}");
        }
    }

    #[test]
    fn no_masters_are_no_quorum_before_any_answer() {
        assert_eq!(decide(0, &[]), (0, VoteVerdict::NoQuorum { usable: 0 }));
    }

    #[test]
    fn a_failed_claim_is_released_wherever_its_key_may_be() {
        let mut tally = VoteTally::new(Quorum::of(5));
        for (master, answer) in [(3, HELD), (0, SILENT), (1, STALE), (4, YES)] {
            tally.hear(master, answer);
        }
        assert_eq!(tally.to_release().collect::<Vec<_>>(), [0, 1, 2, 4], "master 2 has not answered");
        assert_eq!(tally.in_doubt(), [0]);
        assert_eq!(tally.take_failures(), [(0, MasterError::Timeout)]);
        let reset = MasterError::Unreachable("reset".to_owned());
        let mut tally = VoteTally::new(Quorum::of(3));
        tally.hear_unsent(0, reset.clone());
        tally.hear(1, Err(reset));
        assert_eq!(tally.unsettled(), [1, 2]);
        tally.hear(2, YES);
        assert_eq!(tally.unsettled(), [1]);
        assert_eq!(tally.to_release().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(tally.in_doubt(), [1]);
    }

    fn answer() -> impl Strategy<Value = Result<Vote, MasterError>> {
        proptest::sample::select(vec![YES, HELD, STALE, SILENT])
    }

    proptest! {
        #[test]
        fn all_answers_decide_and_their_order_decides_nothing_about_who_wins(
            answers in proptest::collection::vec(answer(), 0..8),
            turn in any::<prop::sample::Index>(),
        ) {
            let masters = answers.len();
            let mut turned = answers.clone();
            turned.rotate_left(turn.index(masters.max(1)).min(masters));
            turned.reverse();
            let (one, other) = (decide(masters, &answers).1, decide(masters, &turned).1);
            prop_assert_ne!(one, VoteVerdict::Open);
            prop_assert_eq!(matches!(one, VoteVerdict::Won { .. }), matches!(other, VoteVerdict::Won { .. }));
            prop_assert_eq!(matches!(one, VoteVerdict::NoQuorum { .. }), matches!(other, VoteVerdict::NoQuorum { .. }));
            let granted = answers.iter().filter(|answer| **answer == YES).count();
            prop_assert_eq!(matches!(one, VoteVerdict::Won { .. }), Quorum::of(masters).is_reached_by(granted));
        }

        #[test]
        fn a_won_or_lost_vote_stays_so_whatever_the_rest_say(answers in proptest::collection::vec(answer(), 1..8)) {
            let mut tally = VoteTally::new(Quorum::of(answers.len()));
            let mut decided = None;
            for (master, answer) in answers.into_iter().enumerate() {
                let verdict = tally.hear(master, answer);
                let won = matches!(verdict, VoteVerdict::Won { .. });
                if let Some(before) = decided {
                    prop_assert_eq!(won, before);
                }
                decided = (verdict != VoteVerdict::Open).then_some(won).or(decided);
            }
        }
    }
}
