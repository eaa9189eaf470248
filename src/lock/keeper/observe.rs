//! Observes who holds a lock that pods acquire by themselves.

use std::time::Duration;

use redlock_engine::{Error, Observation};
use tokio::time::{Instant, sleep};

use super::assignment::LockTarget;
use super::context::StatePublisher;
use super::state::{Sighting, State, Trouble};
use crate::duration::with_jitter;

/// How often the masters are read. Jitter adds up to half of it.
const PERIOD: Duration = Duration::from_secs(1);
/// Consecutive reads without a majority before the holder is unknown; one slow answer is ignored.
const MISSES: u32 = 2;
/// How much longer than last seen a key must last to count as renewed: the masters are read at different moments.
const RENEWED_BY: Duration = Duration::from_millis(200);

/// Reads the masters for ever, and publishes what changes.
pub(crate) async fn observe(target: &LockTarget, states: &StatePublisher) {
    target.engine.settled().await;
    let mut missed = 0;
    loop {
        let answer = target.engine.client().read(&target.key).await;
        if let Err(error) = &answer {
            target.report_refused_credentials(error);
        }
        missed = if answer.is_err() { missed + 1 } else { 0 };
        let before = match states.current() {
            State::Observed(sighting) => Some(sighting),
            _ => None,
        };
        if let Some(sighting) = interpret(before.as_ref(), answer, missed, Instant::now()) {
            states.publish(State::Observed(sighting));
        }
        sleep(with_jitter(PERIOD)).await;
    }
}

/// The new sighting after an answer of the masters, or `None` if nothing changed. `now` is when the answer came.
fn interpret(
    before: Option<&Sighting>,
    answer: Result<Observation, Error>,
    missed: u32,
    now: Instant,
) -> Option<Sighting> {
    let sighting = match answer {
        Err(_) if missed < MISSES && before.is_some() => return None,
        Err(error) => Sighting::Unknown(Trouble::from(&error)),
        Ok(Observation { holder: None, .. }) => Sighting::Nobody,
        Ok(Observation { holder: Some(value), remaining, votes, .. }) => {
            let valid_until = remaining.and_then(|left| now.checked_add(left));
            match before {
                Some(Sighting::Somebody { value: known, valid_until: until, renewed_at, .. })
                    if *known == value && !is_later(valid_until, *until) =>
                {
                    let (valid_until, renewed_at) = (*until, *renewed_at);
                    Sighting::Somebody { value, renewed_at, valid_until, votes }
                }
                _ => Sighting::Somebody { value, renewed_at: now, valid_until, votes },
            }
        }
    };
    (before != Some(&sighting)).then_some(sighting)
}

fn is_later(seen: Option<Instant>, known: Option<Instant>) -> bool {
    match (seen, known) {
        (Some(seen), Some(known)) => seen > known + RENEWED_BY,
        (seen, known) => seen != known,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "the answer of a read")]
    fn held(value: &str, left: u64, votes: usize) -> Result<Observation, Error> {
        Ok(observation(value, Some(Duration::from_millis(left)), votes))
    }

    fn observation(value: &str, remaining: Option<Duration>, votes: usize) -> Observation {
        Observation { holder: Some(value.to_owned()), remaining, votes, fence: None, failures: Vec::new() }
    }

    #[expect(clippy::unnecessary_wraps, reason = "the answer of a read")]
    fn free() -> Result<Observation, Error> {
        Ok(Observation { holder: None, remaining: None, votes: 0, fence: None, failures: Vec::new() })
    }

    fn down() -> Result<Observation, Error> {
        Err(Error::NoQuorum { usable: 1, needed: 3, masters: 5, failures: Vec::new() })
    }

    #[test]
    fn passing_time_changes_nothing_but_a_renewal_does() {
        let now = Instant::now();
        let ms = Duration::from_millis;
        let first = interpret(None, held("p@1", 3_000, 5), 0, now).unwrap();
        assert_eq!(interpret(Some(&first), held("p@1", 2_010, 5), 0, now + ms(1_000)), None, "1 s later, 1 s less");
        let renewed = interpret(Some(&first), held("p@1", 2_900, 5), 0, now + ms(1_000)).unwrap();
        let Sighting::Somebody { renewed_at, valid_until, .. } = renewed else { panic!("{renewed:?}") };
        assert_eq!((renewed_at, valid_until), (now + ms(1_000), Some(now + ms(3_900))));
    }

    #[test]
    fn a_key_without_an_end_or_one_beyond_the_clock_is_held_without_an_end() {
        let now = Instant::now();
        for remaining in [None, Some(Duration::MAX)] {
            let first = interpret(None, Ok(observation("6f1c", remaining, 3)), 0, now).unwrap();
            let value = "6f1c".to_owned();
            assert_eq!(first, Sighting::Somebody { value, renewed_at: now, valid_until: None, votes: 3 });
            let again = interpret(Some(&first), Ok(observation("6f1c", remaining, 3)), 0, now + PERIOD);
            assert_eq!(again, None, "it stays the same");
        }
    }

    #[test]
    fn a_lost_vote_is_seen_and_is_no_renewal() {
        let now = Instant::now();
        let first = interpret(None, held("p@1", 3_000, 5), 0, now).unwrap();
        let fewer = interpret(Some(&first), held("p@1", 2_000, 3), 0, now + Duration::from_secs(1)).unwrap();
        let until = Some(now + Duration::from_secs(3));
        let value = "p@1".to_owned();
        assert_eq!(fewer, Sighting::Somebody { value, renewed_at: now, valid_until: until, votes: 3 });
    }

    #[test]
    fn one_missed_answer_is_ignored_and_two_are_not() {
        let now = Instant::now();
        let first = interpret(None, held("p@1", 3_000, 5), 0, now).unwrap();
        assert_eq!(interpret(Some(&first), down(), 1, now), None);
        let unknown = interpret(Some(&first), down(), 2, now).unwrap();
        assert!(matches!(&unknown, Sighting::Unknown(t) if t.reason.as_str() == "NoQuorum"), "{unknown:?}");
        assert_eq!(interpret(Some(&unknown), down(), 3, now), None, "the same trouble again");
        assert!(
            matches!(interpret(None, down(), 1, now), Some(Sighting::Unknown(_))),
            "nothing else is known at first"
        );
    }

    #[test]
    fn a_lock_that_nobody_holds_any_more_is_shown_at_once() {
        let now = Instant::now();
        let first = interpret(None, held("p@1", 3_000, 5), 0, now).unwrap();
        assert_eq!(interpret(Some(&first), free(), 0, now), Some(Sighting::Nobody));
        assert_eq!(interpret(Some(&Sighting::Nobody), free(), 0, now), None);
    }
}
