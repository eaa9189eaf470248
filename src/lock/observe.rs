//! Watches who holds a lock that pods take by themselves.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::actor::{Actor, with_jitter};
use super::job::Job;
use super::state::{Sighting, State, Trouble};
use redlock_engine::{Error, Observation};

/// How often the masters are read; up to half of it again is added at random.
const PERIOD: Duration = Duration::from_secs(1);
/// How often in a row too few masters must answer before it is told. One slow answer is no news.
const MISSES: u32 = 2;
/// By how much a key must last longer than last seen to have been renewed: masters are read at different moments.
const RENEWED_BY: Duration = Duration::from_millis(200);

impl Actor {
    /// Reads the masters for ever, and reports what changes.
    pub(super) async fn observe(&mut self, job: &Job) {
        job.engine.settled().await;
        let mut missed = 0;
        loop {
            let answer = job.engine.client().read(&job.key).await;
            if let Err(error) = &answer {
                job.note_refused_credentials(error);
            }
            missed = if answer.is_err() { missed + 1 } else { 0 };
            let before = match self.state() {
                State::Observed(sighting) => Some(sighting),
                _ => None,
            };
            if let Some(seen) = sight(before.as_ref(), answer, missed, Instant::now()) {
                self.publish(State::Observed(seen));
            }
            sleep(with_jitter(PERIOD)).await;
        }
    }
}

/// What is now known of the lock, if that is anything new. `now` is when the answer came.
fn sight(before: Option<&Sighting>, answer: Result<Observation, Error>, missed: u32, now: Instant) -> Option<Sighting> {
    let seen = match answer {
        Err(_) if missed < MISSES && before.is_some() => return None,
        Err(error) => Sighting::Untold(Trouble::from(&error)),
        Ok(Observation { holder: None, .. }) => Sighting::Nobody,
        Ok(Observation { holder: Some(value), remaining, votes, .. }) => {
            let valid_until = remaining.map(|left| now + left);
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
    (before != Some(&seen)).then_some(seen)
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
        Ok(Observation {
            holder: Some(value.to_owned()),
            remaining: Some(Duration::from_millis(left)),
            votes,
            fence: None,
            failures: Vec::new(),
        })
    }

    #[expect(clippy::unnecessary_wraps, reason = "the answer of a read")]
    fn free() -> Result<Observation, Error> {
        Ok(Observation { holder: None, remaining: None, votes: 0, fence: None, failures: Vec::new() })
    }

    fn down() -> Result<Observation, Error> {
        Err(Error::NoQuorum { usable: 1, needed: 3, masters: 5, failures: Vec::new() })
    }

    #[test]
    fn time_passing_is_nothing_new_but_a_renewal_is() {
        let now = Instant::now();
        let ms = Duration::from_millis;
        let first = sight(None, held("p@1", 3_000, 5), 0, now).unwrap();
        assert_eq!(sight(Some(&first), held("p@1", 2_010, 5), 0, now + ms(1_000)), None, "1 s later, 1 s less");
        let renewed = sight(Some(&first), held("p@1", 2_900, 5), 0, now + ms(1_000)).unwrap();
        let Sighting::Somebody { renewed_at, valid_until, .. } = renewed else { panic!("{renewed:?}") };
        assert_eq!((renewed_at, valid_until), (now + ms(1_000), Some(now + ms(3_900))));
    }

    #[test]
    fn a_vote_less_is_seen_without_a_renewal_being_made_up() {
        let now = Instant::now();
        let first = sight(None, held("p@1", 3_000, 5), 0, now).unwrap();
        let fewer = sight(Some(&first), held("p@1", 2_000, 3), 0, now + Duration::from_secs(1)).unwrap();
        let until = Some(now + Duration::from_secs(3));
        let value = "p@1".to_owned();
        assert_eq!(fewer, Sighting::Somebody { value, renewed_at: now, valid_until: until, votes: 3 });
    }

    #[test]
    fn one_missed_answer_is_not_told_but_two_are() {
        let now = Instant::now();
        let first = sight(None, held("p@1", 3_000, 5), 0, now).unwrap();
        assert_eq!(sight(Some(&first), down(), 1, now), None);
        let untold = sight(Some(&first), down(), 2, now).unwrap();
        assert!(matches!(&untold, Sighting::Untold(t) if t.reason.as_str() == "NoQuorum"), "{untold:?}");
        assert_eq!(sight(Some(&untold), down(), 3, now), None, "the same trouble is no news");
        assert!(
            matches!(sight(None, down(), 1, now), Some(Sighting::Untold(_))),
            "at first it is all there is to tell"
        );
    }

    #[test]
    fn a_lock_that_nobody_holds_any_more_is_told_at_once() {
        let now = Instant::now();
        let first = sight(None, held("p@1", 3_000, 5), 0, now).unwrap();
        assert_eq!(sight(Some(&first), free(), 0, now), Some(Sighting::Nobody));
        assert_eq!(sight(Some(&Sighting::Nobody), free(), 0, now), None);
    }
}
