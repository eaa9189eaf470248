//! What a waiting contender does next: how long it pauses, and whether it tries or checks the lock then.

use std::time::Duration;

use crate::error::{Error, MasterError};
use crate::fence::Token;
use crate::owner::Owner;
use crate::protocol::contention::{Contention, Standing};
use crate::quorum::Quorum;

/// Longest time between two checks of the lock. Messages can be missed, and other libraries send none.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long the first contender in the queue has the lock to itself after a release. A dead one costs the others this.
pub(crate) const HEAD_START: Duration = Duration::from_millis(50);
/// Shortest bound of the pause after contenders split the votes. It doubles with each split.
const SPLIT_PAUSE: Duration = Duration::from_millis(4);
/// Shortest bound of the pause after too few masters answered. It doubles each time.
const OUTAGE_PAUSE: Duration = Duration::from_millis(50);
/// When a dead holder's lease ends, each contender in the queue tries this much later than the one before it.
const STAGGER: Duration = Duration::from_millis(5);

/// What to do after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Ask for the lock.
    Try,
    /// Check who holds the lock, and the own place in the queue.
    Check,
}

/// How a contender waits for a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    /// It ends after this time at the latest.
    pub(crate) length: Duration,
    /// What to do then.
    pub(crate) then: NextStep,
    /// Masters that must have told of the release, so that a majority is free.
    pub(crate) needed: usize,
    /// Messages about earlier grants do not end it.
    pub(crate) from: Option<Token>,
}

impl Pause {
    /// The pause after an attempt that failed for another reason than contention: the failure number `failures` in a row,
    /// from zero. `draw` draws a time between two bounds.
    pub(crate) fn after_outage(failures: u32, draw: impl FnOnce(Duration, Duration) -> Duration) -> Self {
        let length = draw_pause(OUTAGE_PAUSE, failures, draw);
        Self { length, then: NextStep::Try, needed: 1, from: None }
    }

    /// The pause after a check of the lock, when `failures` attempts in a row have failed. After the first failure it is
    /// never zero: a lock that is free by all answers, and still not granted, is not asked for without end.
    pub(crate) fn after_check(
        contention: &Contention,
        failures: u32,
        draw: impl Fn(Duration, Duration) -> Duration,
    ) -> Self {
        let Contention { standing, holder, needed, ahead, .. } = contention;
        let again = failures.saturating_sub(1);
        let shortest = match failures {
            0 => Duration::ZERO,
            _ => draw_pause(SPLIT_PAUSE, again, &draw).min(HEAD_START),
        };
        let (length, then) = match *standing {
            Standing::Held(free_in) => {
                let turn = free_in.saturating_add(STAGGER * *ahead);
                let longest = draw_pause(LONGEST_PAUSE, 0, draw);
                if turn <= longest { (turn.max(shortest), NextStep::Try) } else { (longest, NextStep::Check) }
            }
            Standing::Free => (LONGEST_PAUSE.min(HEAD_START * *ahead).max(shortest), NextStep::Try),
            Standing::Split => (draw_pause(SPLIT_PAUSE, again, draw), NextStep::Try),
            Standing::Unknown => (draw_pause(OUTAGE_PAUSE, again, draw), NextStep::Try),
        };
        let from = holder.as_deref().and_then(|holder| holder.parse::<Owner>().ok()).map(|owner| owner.token());
        Self { length, then, needed: *needed, from }
    }

    /// The pause after another contender was named for the release of `token`'s grant: it has a head start. Ends within
    /// `longest`: while others are named over and over, a check now and then makes sure of the place.
    pub(crate) fn behind_another(
        quorum: Quorum,
        token: Token,
        longest: Duration,
        draw: impl FnOnce(Duration, Duration) -> Duration,
    ) -> Self {
        let length = draw(HEAD_START, HEAD_START * 3 / 2).min(longest);
        let (needed, from) = (quorum.votes_needed(), Token::new(token.get() + 1));
        Self { length, then: NextStep::Check, needed, from }
    }
}

fn draw_pause(first: Duration, failures: u32, draw: impl FnOnce(Duration, Duration) -> Duration) -> Duration {
    let (shortest, longest) = pause_bounds(first, failures);
    draw(shortest, longest)
}

/// Bounds of a pause. The upper one starts at `first` and doubles with each failure, to a second at most. The lower is
/// half of it, so that nobody spins.
fn pause_bounds(first: Duration, failures: u32) -> (Duration, Duration) {
    let bound = LONGEST_PAUSE.min(first * 2_u32.saturating_pow(failures.min(16)));
    (bound / 2, bound)
}

/// Whether a later attempt would end the same way: the claim can never be granted, or the client was shut down.
pub(crate) fn is_final(error: &Error) -> bool {
    match error {
        Error::Invalid(_) | Error::TokensRunOut | Error::ShutDown => true,
        Error::NoQuorum { failures, needed, masters, .. } => {
            let refusals = failures.iter().filter(|failure| failure.error == MasterError::TtlRefused).count();
            refusals > masters - needed
        }
        Error::Contended { .. }
        | Error::Split
        | Error::TooSlow { .. }
        | Error::Expired
        | Error::Lost { .. }
        | Error::LostWhileWaiting(_) => false,
    }
}

/// Whether an attempt failed by what this contender asks for, and another's might succeed.
pub(crate) fn is_of_own_options(error: &Error) -> bool {
    match error {
        Error::TooSlow { .. } => true,
        Error::NoQuorum { failures, .. } => failures.iter().any(|failure| failure.error == MasterError::TtlRefused),
        Error::Contended { .. }
        | Error::Split
        | Error::Expired
        | Error::Lost { .. }
        | Error::LostWhileWaiting(_)
        | Error::Invalid(_)
        | Error::TokensRunOut
        | Error::ShutDown => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::MasterFailure;

    const FIVE: usize = 5;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Draws the upper bound.
    fn longest(_: Duration, longest: Duration) -> Duration {
        longest
    }

    fn after_check(standing: Standing, ahead: u32, failures: u32) -> (Duration, NextStep) {
        let holder = Some("a@7.0000000000000001".to_owned());
        let contention = Contention { standing, holder, needed: 2, ahead, is_decided: true };
        let pause = Pause::after_check(&contention, failures, longest);
        assert_eq!((pause.needed, pause.from), (2, Token::new(7)), "releases of the holder's grant count");
        (pause.length, pause.then)
    }

    #[test]
    fn pauses_double_up_to_a_second() {
        let bounds: Vec<_> = (0..7).map(|failures| pause_bounds(OUTAGE_PAUSE, failures).1.as_millis()).collect();
        assert_eq!(bounds, [50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(pause_bounds(OUTAGE_PAUSE, u32::MAX), (LONGEST_PAUSE / 2, LONGEST_PAUSE));
    }

    #[test]
    fn what_follows_a_check_depends_on_how_the_lock_stands() {
        for (standing, ahead, failures, pause) in [
            (Standing::Held(millis(101)), 0, 9, (millis(101), NextStep::Try)),
            (Standing::Held(millis(101)), 3, 0, (millis(116), NextStep::Try)),
            (Standing::Held(millis(1000)), 0, 0, (millis(1000), NextStep::Try)),
            (Standing::Held(millis(1001)), 0, 0, (millis(1000), NextStep::Check)),
            (Standing::Held(Duration::MAX), 1000, 0, (millis(1000), NextStep::Check)),
            (Standing::Free, 0, 0, (millis(0), NextStep::Try)),
            (Standing::Free, 3, 0, (millis(150), NextStep::Try)),
            (Standing::Free, 3, 9, (millis(150), NextStep::Try)),
            (Standing::Free, 1000, 0, (millis(1000), NextStep::Try)),
            (Standing::Split, 3, 3, (millis(16), NextStep::Try)),
            (Standing::Unknown, 3, 3, (millis(200), NextStep::Try)),
        ] {
            assert_eq!(after_check(standing, ahead, failures), pause, "{standing:?}, {ahead} ahead");
        }
    }

    #[test]
    fn no_pause_after_a_failed_attempt_is_zero() {
        for (failures, pause) in [(1, 4), (2, 8), (4, 32), (5, 50), (u32::MAX, 50)] {
            assert_eq!(after_check(Standing::Free, 0, failures), (millis(pause), NextStep::Try), "{failures} failures");
            let held = Standing::Held(millis(1));
            assert_eq!(after_check(held, 0, failures), (millis(pause), NextStep::Try), "{failures} failures");
        }
    }

    #[test]
    fn a_failed_attempt_is_tried_again_after_a_growing_pause() {
        let pause = Pause::after_outage(1, longest);
        let expected = Pause { length: millis(100), then: NextStep::Try, needed: 1, from: None };
        assert_eq!(pause, expected);
    }

    #[test]
    fn a_contender_that_was_named_has_a_head_start() {
        let seven = Token::new(7).unwrap();
        let behind = |left| Pause::behind_another(Quorum::of(FIVE), seven, left, longest);
        let expected = Pause { length: millis(75), then: NextStep::Check, needed: 3, from: Token::new(8) };
        assert_eq!(behind(LONGEST_PAUSE), expected);
        assert_eq!(behind(millis(10)).length, millis(10));
    }

    #[test]
    fn an_attempt_is_final_only_where_a_later_one_would_end_the_same() {
        let no_quorum = |refusals: usize| {
            let failure = |error| MasterFailure { master: "main-0".to_owned(), error };
            let refused = vec![failure(MasterError::TtlRefused); refusals];
            let silent = vec![failure(MasterError::Timeout); FIVE - refusals];
            Error::no_quorum(Quorum::of(FIVE), 0, [refused, silent].concat())
        };
        for (error, expected) in [
            (Error::Invalid("identity".to_owned()), true),
            (Error::ShutDown, true),
            (Error::TokensRunOut, true),
            (no_quorum(3), true),
            (no_quorum(2), false),
            (no_quorum(0), false),
            (Error::Contended { holder: None, remaining: None }, false),
            (Error::Split, false),
            (Error::TooSlow { left: Duration::ZERO, needed: Duration::ZERO }, false),
        ] {
            assert_eq!(is_final(&error), expected, "{error}");
            let is_own = matches!(error, Error::TooSlow { .. }) || error.to_string().contains("TTL");
            assert_eq!(is_of_own_options(&error), is_own, "{error}");
        }
    }
}
