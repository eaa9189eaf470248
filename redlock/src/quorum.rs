//! How many votes make a majority, and when it is decided without the rest of the answers.

/// The majority of a fixed number of masters: always of the *configured* number, never of the reachable ones. With the
/// reachable ones, each side of a partition would find a majority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    masters: usize,
}

/// Whether a majority said yes, by the answers so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Majority {
    /// A majority said yes.
    Reached,
    /// So many said no that a majority of yes is not possible any more.
    OutOfReach,
    /// Undecided: more answers are needed.
    Open,
}

impl Quorum {
    /// The quorum of `masters` configured masters.
    #[must_use]
    pub fn of(masters: usize) -> Self {
        Self { masters }
    }

    /// The number of configured masters (N).
    #[must_use]
    pub fn masters(self) -> usize {
        self.masters
    }

    /// Votes needed: ⌊N/2⌋+1.
    #[must_use]
    pub fn votes_needed(self) -> usize {
        self.masters / 2 + 1
    }

    /// Whether `votes` are a majority. Without masters nothing is.
    #[must_use]
    pub fn is_reached_by(self, votes: usize) -> bool {
        votes >= self.votes_needed()
    }

    /// Whether `yes` of the answers so far are a majority, or can still become one besides `no` others.
    #[must_use]
    pub fn decide(self, yes: usize, no: usize) -> Majority {
        if self.is_reached_by(yes) {
            Majority::Reached
        } else if yes + self.masters.saturating_sub(yes + no) < self.votes_needed() {
            Majority::OutOfReach
        } else {
            Majority::Open
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_majority_is_more_than_half_of_the_configured_masters() {
        let needed: Vec<_> = (0..=7).map(|n| Quorum::of(n).votes_needed()).collect();
        assert_eq!(needed, [1, 1, 2, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn decided_as_soon_as_the_rest_cannot_change_it() {
        let five = Quorum::of(5);
        for (yes, no, expected) in [
            (0, 0, Majority::Open),
            (2, 2, Majority::Open),
            (3, 0, Majority::Reached),
            (3, 2, Majority::Reached),
            (0, 3, Majority::OutOfReach),
            (2, 3, Majority::OutOfReach),
            (0, 2, Majority::Open),
        ] {
            assert_eq!(five.decide(yes, no), expected, "{yes} yes, {no} no");
        }
    }

    #[test]
    fn an_even_tie_is_a_no_at_once() {
        assert_eq!(Quorum::of(2).decide(1, 1), Majority::OutOfReach);
        assert_eq!(Quorum::of(4).decide(2, 2), Majority::OutOfReach);
        assert_eq!(Quorum::of(4).decide(1, 2), Majority::OutOfReach);
    }

    #[test]
    fn no_masters_never_agree() {
        assert_eq!(Quorum::of(0).decide(0, 0), Majority::OutOfReach);
    }

    proptest! {
        #[test]
        fn two_majorities_share_a_master(n in 1_usize..64) {
            prop_assert!(2 * Quorum::of(n).votes_needed() > n);
        }

        #[test]
        fn a_full_tally_is_never_open(n in 1_usize..64, yes in 0_usize..64) {
            let yes = yes.min(n);
            prop_assert_ne!(Quorum::of(n).decide(yes, n - yes), Majority::Open);
        }

        #[test]
        fn a_decision_stands_whatever_the_rest_say(answers in proptest::collection::vec(any::<bool>(), 1..16)) {
            let quorum = Quorum::of(answers.len());
            let mut decided = Majority::Open;
            for seen in 0..=answers.len() {
                let yes = answers[..seen].iter().filter(|yes| **yes).count();
                let now = quorum.decide(yes, seen - yes);
                prop_assert!(decided == Majority::Open || now == decided, "{decided:?} became {now:?}");
                decided = now;
            }
        }
    }
}
