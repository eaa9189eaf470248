//! What one that waits makes of what masters show and tell: how the lock stands, and whose turn it is.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use super::error::MasterError;
use super::fence::Token;
use super::master::{Queued, Reading};
use super::quorum::Quorum;
use super::read::most_shown;

/// What a key is taken to last for on a master that does not tell.
const UNKNOWN: Duration = Duration::from_secs(1);

/// How a lock stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    /// Somebody holds it, or may. A majority of masters will be free after this time, unless it is renewed.
    Held(Duration),
    /// Nobody holds it.
    Free,
    /// Nobody holds it, but contenders have split the votes.
    Split,
    /// Too few masters answer to tell.
    Unknown,
}

/// What a contender sees of a lock and its queue.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) lock: Lock,
    /// The owner on the most masters.
    pub(super) holder: Option<String>,
    /// Releases to be heard until a majority is free.
    pub(super) needed: usize,
    /// How many wait before this one.
    pub(super) ahead: u32,
    /// Whether further answers would not change how the lock stands.
    pub(super) is_plain: bool,
}

impl Look {
    pub(super) fn judge(quorum: Quorum, seen: &[Result<Queued, MasterError>]) -> Self {
        let majority = quorum.votes_needed();
        let silent = seen.iter().filter(|r| r.is_err()).count();
        let free = seen.iter().flatten().filter(|q| q.reading.owner.is_none()).count();
        let needed = majority.saturating_sub(free).max(1);
        let mut ahead: Vec<_> = seen.iter().flatten().map(|q| q.ahead).collect();
        ahead.sort_unstable();
        let ahead = ahead.get(ahead.len() / 2).map_or(0, |a| u32::try_from(*a).unwrap_or(u32::MAX).min(1000));
        let (holder, masters) = match most_shown(seen.iter().flatten().map(|q| &q.reading)) {
            Some((holder, masters)) => (Some(holder), masters),
            None => (None, 0),
        };
        let lock = if free >= majority {
            Lock::Free
        } else if !quorum.is_reached_by(seen.len() - silent) {
            Lock::Unknown
        } else if masters + silent < majority {
            Lock::Split
        } else {
            // A master that does not answer, or holds a key without end, is not counted on.
            let mut left: Vec<_> = seen
                .iter()
                .map(|r| match r.as_ref().map(|q| &q.reading) {
                    Ok(Reading { owner: None, .. }) => Duration::ZERO,
                    Ok(Reading { remaining: Some(left), .. }) => *left,
                    _ => UNKNOWN,
                })
                .collect();
            left.sort_unstable();
            // One millisecond more: a master counts in whole ones.
            Lock::Held(left.get(majority - 1).map_or(UNKNOWN, |left| *left + Duration::from_millis(1)))
        };
        let is_plain = free >= majority || masters >= majority;
        Self { lock, holder, needed, ahead, is_plain }
    }
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// This one's.
    Mine,
    /// Another's: the grant of that token was released, and the masters named another.
    Anothers(Token),
    /// That cannot be told: messages were missed.
    Missed,
    /// Nothing was released.
    None,
}

/// The messages of one release.
pub(super) struct Release {
    token: Token,
    /// Whom each master named.
    named: HashMap<usize, Box<str>>,
}

impl Release {
    /// The release of that grant.
    pub(super) fn of(token: Token) -> Self {
        Self { token, named: HashMap::new() }
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }

    /// Takes note of whom a master named. Answers how many masters have told so far.
    pub(super) fn hear(&mut self, master: usize, next: Box<str>) -> usize {
        self.named.insert(master, next);
        self.named.len()
    }

    /// Masters may differ in whom they name. It is the turn of whom the most have named, of several the first by name, so
    /// that all who hear the same agree.
    pub(super) fn call(&self, place: &str) -> Call {
        let mut votes: HashMap<&str, usize> = HashMap::new();
        for named in self.named.values() {
            *votes.entry(named).or_default() += 1;
        }
        match votes.into_iter().max_by_key(|&(named, votes)| (votes, Reverse(named))) {
            Some((named, _)) if named != place => Call::Anothers(self.token),
            Some(_) | None => Call::Mine,
        }
    }
}

#[cfg(test)]
#[path = "look_tests.rs"]
mod tests;
