//! How many votes make a majority, and when an outcome is decided without waiting for the rest.

/// The majority of a fixed number of masters. Always of the *configured* number, never of the reachable ones: two sides
/// of a partition would each find a majority of what they see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    masters: usize,
}

/// What a tally of answers amounts to so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A majority said yes.
    Yes,
    /// So many said no that a majority of yes cannot come about any more.
    No,
    /// Open: wait for more answers.
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

    /// What `yes` and `no` answers amount to.
    #[must_use]
    pub fn decide(self, yes: usize, no: usize) -> Decision {
        if self.is_reached_by(yes) {
            Decision::Yes
        } else if yes + self.masters.saturating_sub(yes + no) < self.votes_needed() {
            Decision::No
        } else {
            Decision::Open
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
            (0, 0, Decision::Open),
            (2, 2, Decision::Open),
            (3, 0, Decision::Yes),
            (3, 2, Decision::Yes),
            (0, 3, Decision::No),
            (2, 3, Decision::No),
            (0, 2, Decision::Open),
        ] {
            assert_eq!(five.decide(yes, no), expected, "{yes} yes, {no} no");
        }
    }

    #[test]
    fn an_even_tie_is_a_no_at_once() {
        assert_eq!(Quorum::of(2).decide(1, 1), Decision::No);
        assert_eq!(Quorum::of(4).decide(2, 2), Decision::No);
        assert_eq!(Quorum::of(4).decide(1, 2), Decision::No);
    }

    #[test]
    fn no_masters_never_agree() {
        assert_eq!(Quorum::of(0).decide(0, 0), Decision::No);
    }

    proptest! {
        #[test]
        fn two_majorities_share_a_master(n in 1_usize..64) {
            prop_assert!(2 * Quorum::of(n).votes_needed() > n);
        }

        #[test]
        fn a_full_tally_is_never_open(n in 1_usize..64, yes in 0_usize..64) {
            let yes = yes.min(n);
            prop_assert_ne!(Quorum::of(n).decide(yes, n - yes), Decision::Open);
        }

        #[test]
        fn a_decision_stands_whatever_the_rest_say(answers in proptest::collection::vec(any::<bool>(), 1..16)) {
            let quorum = Quorum::of(answers.len());
            let mut decided = Decision::Open;
            for seen in 0..=answers.len() {
                let yes = answers[..seen].iter().filter(|yes| **yes).count();
                let now = quorum.decide(yes, seen - yes);
                prop_assert!(decided == Decision::Open || now == decided, "{decided:?} became {now:?}");
                decided = now;
            }
        }
    }
}
