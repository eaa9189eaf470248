//! Fencing tokens, and the hybrid logical clock that proposes them.
//!
//! Each grant of a key has a larger token, so that a guarded resource can refuse a holder that was paused past the end of
//! its lease. The contender proposes the token, and masters vote on it together with the lock: a master grants only a token
//! larger than the last it saw for that lock. Two majorities share a master. So a later grant has a larger token without
//! any assumption on clocks, as long as that master kept its data. The value is a time (microseconds of the Unix epoch):
//! it also grows across a loss of data, provided clocks agree to within the restart delay.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// A fencing token: microseconds of the Unix epoch, increased where needed to be larger than every earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Token {
    /// Largest token: sorted-set scores and JSON numbers are doubles, exact up to here.
    pub const MAX: u64 = (1 << 53) - 1;

    /// The token of that value; `None` if it is zero or above [`Self::MAX`].
    #[must_use]
    pub fn new(value: u64) -> Option<Self> {
        (1..=Self::MAX).contains(&value).then_some(Self(value))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Proposes tokens. In each namespace: never the same twice, never below the wall clock, always above every token
/// observed.
///
/// Each namespace counts for itself. A client may write any number into the fences of its own namespace, and must not be
/// able to use up the tokens of others by that.
#[derive(Debug, Default)]
pub struct TokenClock {
    last: Mutex<HashMap<String, u64>>,
}

impl TokenClock {
    /// A token for a lock of `namespace`: larger than every one proposed or observed there before, at least
    /// `unix_micros`; `None` when tokens have run out (an observed token was close to 2^53, which only a broken clock
    /// or a hostile client makes).
    pub fn propose(&self, namespace: &str, unix_micros: u64) -> Option<Token> {
        self.with_last(namespace, |last| {
            let token = Token::new(unix_micros.max(*last + 1))?;
            *last = token.get();
            Some(token)
        })
    }

    /// Takes note of a token seen on a master.
    pub fn observe(&self, namespace: &str, token: Token) {
        self.with_last(namespace, |last| *last = token.get().max(*last));
    }

    fn with_last<T>(&self, namespace: &str, act: impl FnOnce(&mut u64) -> T) -> T {
        // A panic in these few lines leaves valid numbers.
        let mut all = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(namespace) {
            Some(last) => act(last),
            None => act(all.entry(namespace.to_owned()).or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(clock: &TokenClock, times: &[u64]) -> Vec<u64> {
        times.iter().map(|&t| clock.propose("a", t).unwrap().get()).collect()
    }

    #[test]
    fn tokens_follow_the_wall_clock_and_never_go_back() {
        let clock = TokenClock::default();
        assert_eq!(values(&clock, &[100, 100, 50, 103]), [100, 101, 102, 103]);
    }

    #[test]
    fn a_proposal_is_above_every_token_seen() {
        let clock = TokenClock::default();
        clock.observe("a", Token::new(5_000).unwrap());
        clock.observe("a", Token::new(4_000).unwrap());
        assert_eq!(values(&clock, &[100]), [5_001]);
    }

    #[test]
    fn tokens_stay_exact_in_a_double() {
        let clock = TokenClock::default();
        assert_eq!(Token::new(0), None);
        assert_eq!(Token::new(Token::MAX + 1), None);
        clock.observe("a", Token::new(Token::MAX - 1).unwrap());
        assert_eq!(clock.propose("a", 1).map(Token::get), Some(Token::MAX));
        assert_eq!(clock.propose("a", 1), None);
    }

    #[test]
    fn a_token_written_into_one_namespace_drives_up_no_other() {
        let clock = TokenClock::default();
        clock.observe("hostile", Token::new(Token::MAX).unwrap());
        assert_eq!(clock.propose("hostile", 100), None);
        assert_eq!(values(&clock, &[100]), [100]);
    }
}
