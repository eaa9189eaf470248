//! What a majority of masters shows of a lock.

use std::collections::HashMap;
use std::time::Duration;

use crate::error::{Error, MasterError, MasterFailure};
use crate::fence::Token;
use crate::master::Reading;
use crate::quorum::Quorum;
use crate::validity::drift;

/// What a majority of masters shows of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Value of the key on a majority of masters: somebody holds the lock. `None` where nobody does. (A key of another
    /// type than a string, which only another program makes, is shown as held by `another type`.)
    pub holder: Option<String>,
    /// Time for which a majority surely keeps that lease, if it is not renewed: less drift, counted from when the
    /// question was sent. `None` without a `holder`; with one, its key never expires: the lock is held without an end,
    /// until somebody deletes the key on the masters.
    pub remaining: Option<Duration>,
    /// Masters that show this holder.
    pub votes: usize,
    /// The largest token that a master has seen for this lock.
    pub fence: Option<Token>,
    /// Masters that did not answer, and why.
    pub failures: Vec<MasterFailure>,
}

impl Observation {
    /// What these answers of all masters show, `elapsed` after the question was sent. `failures` are those of them that
    /// failed, with the masters' names.
    ///
    /// # Errors
    /// [`Error::NoQuorum`] where too few masters answered to tell whether anybody holds the lock.
    pub(crate) fn of(
        quorum: Quorum,
        readings: &[Result<Reading, MasterError>],
        failures: Vec<MasterFailure>,
        elapsed: Duration,
    ) -> Result<Self, Error> {
        let answered = readings.len() - failures.len();
        let fence = readings.iter().flatten().filter_map(|reading| reading.fence).max();
        let (holder, votes) = match most_shown(readings.iter().flatten()) {
            Some((holder, votes)) => (Some(holder), votes),
            None => (None, 0),
        };
        if quorum.is_reached_by(votes) {
            let remaining = remaining(quorum, readings, holder.as_deref()).map(|left| left.saturating_sub(elapsed));
            return Ok(Self { holder, remaining, votes, fence, failures });
        }
        // Without a holder a majority must have said so; with one, the silent masters must not be able to complete a
        // majority for it.
        let is_plain = match holder {
            None => quorum.is_reached_by(answered),
            Some(_) => !quorum.is_reached_by(votes + failures.len()),
        };
        if is_plain {
            Ok(Self { fence, failures, ..Self::default() })
        } else {
            Err(Error::no_quorum(quorum, answered, failures))
        }
    }
}

/// How long a majority keeps the key of `holder`, less drift. It ends when only q-1 of its masters have the key: with the
/// (votes-q+1)th expiry. `None` if a majority of keys never expires.
fn remaining(quorum: Quorum, readings: &[Result<Reading, MasterError>], holder: Option<&str>) -> Option<Duration> {
    let mut left: Vec<_> = readings
        .iter()
        .flatten()
        .filter(|reading| reading.owner.as_deref() == holder)
        .map(|reading| reading.remaining.unwrap_or(Duration::MAX))
        .collect();
    left.sort_unstable();
    let end = left[left.len() - quorum.votes_needed()];
    (end != Duration::MAX).then(|| end.saturating_sub(drift(end)))
}

/// The owner that the most masters show, and how many show it.
pub(crate) fn most_shown<'a>(readings: impl Iterator<Item = &'a Reading>) -> Option<(String, usize)> {
    let mut shown: HashMap<&str, usize> = HashMap::new();
    for owner in readings.filter_map(|reading| reading.owner.as_deref()) {
        *shown.entry(owner).or_default() += 1;
    }
    // Of two with as many masters the larger text, so that the answer does not depend on the map's order.
    let (owner, masters) = shown.into_iter().max_by_key(|&(owner, masters)| (masters, owner))?;
    Some((owner.to_owned(), masters))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A master that shows the owner with so many milliseconds left.
    #[allow(clippy::unnecessary_wraps)] // In the form of a master's answer.
    fn shows(owner: &str, left: u64) -> Result<Reading, MasterError> {
        Ok(Reading {
            owner: Some(owner.to_owned()),
            remaining: Some(Duration::from_millis(left)),
            fence: Token::new(left),
        })
    }

    #[allow(clippy::unnecessary_wraps)] // In the form of a master's answer.
    fn free() -> Result<Reading, MasterError> {
        Ok(Reading::default())
    }

    fn silent() -> Result<Reading, MasterError> {
        Err(MasterError::Timeout)
    }

    fn observe(readings: &[Result<Reading, MasterError>], elapsed: Duration) -> Result<Observation, Error> {
        let failure = |error: &MasterError| MasterFailure { master: "main-0".to_owned(), error: error.clone() };
        let failures = readings.iter().filter_map(|reading| reading.as_ref().err().map(failure)).collect();
        Observation::of(Quorum::of(readings.len()), readings, failures, elapsed)
    }

    #[test]
    fn a_majority_shows_who_holds_the_lock() {
        let a = || shows("a@1", 500);
        for (readings, holder) in [
            (vec![a(), a(), a(), free(), silent()], Some(Some("a@1"))),
            (vec![a(), a(), free(), free(), free()], Some(None)),
            (vec![a(), a(), free(), free(), silent()], None),
            (vec![a(), a(), shows("b@2", 9), shows("b@2", 9), free()], Some(None)),
            (vec![free(), free(), free(), silent(), silent()], Some(None)),
            (vec![free(), free(), silent(), silent(), silent()], None),
        ] {
            let observation = observe(&readings, Duration::ZERO);
            let shown = observation.as_ref().ok().map(|seen| seen.holder.as_deref());
            assert_eq!(shown, holder, "{readings:?}");
        }
    }

    #[test]
    fn a_lease_remains_until_a_majority_of_its_keys_has_expired_less_drift_and_the_time_of_the_question() {
        let readings = [shows("a@1", 900), shows("a@1", 500), shows("a@1", 700), shows("a@1", 600), silent()];
        // Of four keys a majority of three is left until the second expires: 600 ms, less 8 ms drift.
        let seen = observe(&readings, Duration::from_millis(92)).unwrap();
        assert_eq!(seen.remaining, Some(Duration::from_millis(500)));
        assert_eq!((seen.votes, seen.fence, seen.failures.len()), (4, Token::new(900), 1));
        let late = observe(&readings, Duration::from_secs(2)).unwrap();
        assert_eq!(late.remaining, Some(Duration::ZERO));
    }

    #[test]
    fn a_key_without_an_end_on_a_majority_is_held_without_an_end() {
        let endless = || Ok(Reading { owner: Some("6f1c".to_owned()), ..Reading::default() });
        let seen = observe(&[endless(), endless(), free()], Duration::ZERO).unwrap();
        assert_eq!((seen.holder.as_deref(), seen.remaining), (Some("6f1c"), None));
        // A majority ends with the first of two expiries.
        let seen = observe(&[endless(), shows("6f1c", 1000), free()], Duration::ZERO).unwrap();
        assert_eq!((seen.holder.as_deref(), seen.remaining), (Some("6f1c"), Some(Duration::from_millis(988))));
    }

    #[test]
    fn too_few_answers_are_an_error_that_says_what_masters_said() {
        let error = observe(&[shows("a@1", 500), silent(), silent()], Duration::ZERO).unwrap_err();
        assert!(matches!(error, Error::NoQuorum { usable: 1, needed: 2, masters: 3, failures } if failures.len() == 2));
    }

    proptest! {
        #[test]
        fn the_order_of_masters_does_not_matter(
            owners in proptest::collection::vec(proptest::option::of((0_u64..3, 1_u64..1000)), 1..8),
            turn in any::<prop::sample::Index>(),
        ) {
            let mut readings: Vec<_> =
                owners.iter().map(|o| o.map_or_else(silent, |(owner, left)| shows(&owner.to_string(), left))).collect();
            let one = observe(&readings, Duration::ZERO);
            readings.rotate_left(turn.index(owners.len()));
            prop_assert_eq!(one, observe(&readings, Duration::ZERO));
        }
    }
}
