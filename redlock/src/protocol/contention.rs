//! Interprets the masters' answers for a waiting contender: who holds the lock, and which contender is next.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use crate::error::{Error, MasterError};
use crate::fence::Token;
use crate::master::{Queued, Reading};
use crate::protocol::reading::most_shown;
use crate::quorum::Quorum;

/// Assumed time to live of a key on a master that does not tell it.
const UNKNOWN: Duration = Duration::from_secs(1);

/// Time to live of a key that never expires: another program set it without one.
pub(crate) const ENDLESS: Duration = Duration::MAX;

/// Whether the lock can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Somebody holds it, or may. A majority of masters will be free after this time, unless it is renewed;
    /// never, if the time is [`ENDLESS`].
    Held(Duration),
    /// Nobody holds it.
    Free,
    /// Nobody holds it, but contenders have split the votes.
    Split,
    /// Too few masters answered to tell.
    Unknown,
}

/// What the masters show a waiting contender of the lock and its queue.
#[derive(Clone, Debug)]
pub(crate) struct Contention {
    /// Whether the lock can be had.
    pub(crate) standing: Standing,
    /// The owner on the most masters.
    pub(crate) holder: Option<String>,
    /// Releases to hear of until a majority is free.
    pub(crate) needed: usize,
    /// Contenders ahead in the queue.
    pub(crate) ahead: u32,
    /// Whether further answers cannot change the standing.
    pub(crate) is_decided: bool,
}

impl Contention {
    /// What these answers show. A master that has not answered yet counts as a failure.
    pub(crate) fn of(quorum: Quorum, answers: &[Result<Queued, MasterError>]) -> Self {
        let majority = quorum.votes_needed();
        let silent = answers.iter().filter(|answer| answer.is_err()).count();
        let free = answers.iter().flatten().filter(|queued| queued.reading.owner.is_none()).count();
        let needed = majority.saturating_sub(free).max(1);
        let mut ahead: Vec<_> = answers.iter().flatten().map(|queued| queued.ahead).collect();
        ahead.sort_unstable();
        let ahead = ahead.get(ahead.len() / 2).map_or(0, |a| u32::try_from(*a).unwrap_or(u32::MAX).min(1000));
        let (holder, masters) = match most_shown(answers.iter().flatten().map(|queued| &queued.reading)) {
            Some((holder, masters)) => (Some(holder), masters),
            None => (None, 0),
        };
        let standing = if free >= majority {
            Standing::Free
        } else if !quorum.is_reached_by(answers.len() - silent) {
            Standing::Unknown
        } else if masters + silent < majority {
            Standing::Split
        } else {
            Standing::Held(free_in(majority, answers))
        };
        let is_decided = free >= majority || masters >= majority;
        Self { standing, holder, needed, ahead, is_decided }
    }

    /// The error of a contender whose time is over now. [`Standing::Unknown`] has another: too few masters answered.
    pub(crate) fn to_error(&self) -> Error {
        let remaining = match self.standing {
            Standing::Held(ENDLESS) => None,
            Standing::Held(free_in) => Some(free_in),
            Standing::Free | Standing::Split | Standing::Unknown => return Error::Split,
        };
        Error::Contended { holder: self.holder.clone(), remaining }
    }
}

/// After how long a majority of masters is free, unless the lease is renewed.
fn free_in(majority: usize, answers: &[Result<Queued, MasterError>]) -> Duration {
    let mut left: Vec<_> = answers
        .iter()
        .map(|answer| match answer.as_ref().map(|queued| &queued.reading) {
            Ok(Reading { owner: None, .. }) => Duration::ZERO,
            Ok(Reading { remaining: Some(left), .. }) => *left,
            Ok(Reading { remaining: None, .. }) => ENDLESS,
            // A master that does not answer is not counted on.
            Err(_) => UNKNOWN,
        })
        .collect();
    left.sort_unstable();
    // One millisecond more: a master counts in whole ones.
    left.get(majority - 1).map_or(UNKNOWN, |left| left.saturating_add(Duration::from_millis(1)))
}

/// Which contender tries next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextTurn {
    /// This contender.
    Ours,
    /// Another contender: the grant of that token was released, and the masters named the other one.
    Another(Token),
    /// Unknown: messages were missed.
    Missed,
    /// Nobody: nothing was released.
    Nobody,
}

/// The messages about releases that a contender hears during one pause.
#[derive(Debug)]
pub(crate) struct ReleaseMessages {
    /// Messages about earlier grants are late.
    from: Option<Token>,
    /// Masters that must have named a contender.
    needed: usize,
    latest: Option<Release>,
}

/// The messages about one release: the token of the grant that ended, and the contender that each master named.
#[derive(Debug)]
struct Release {
    token: Token,
    named: HashMap<usize, Box<str>>,
}

/// What one message changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageVerdict {
    /// It is about an earlier release.
    Late,
    /// It is the first message about a newer release: those of the other masters follow shortly.
    First,
    /// It is a further message about the same release.
    Further,
    /// Enough masters have named a contender.
    Decided(NextTurn),
}

impl ReleaseMessages {
    /// No messages yet. Those about grants before `from` do not count, and `needed` masters decide.
    pub(crate) fn new(from: Option<Token>, needed: usize) -> Self {
        Self { from, needed, latest: None }
    }

    /// Counts a master's message: the grant of `token` was released, and the place `next` was first in the queue. `place`
    /// is this contender's.
    pub(crate) fn hear(&mut self, master: usize, token: Token, next: Box<str>, place: &str) -> MessageVerdict {
        let is_late = |earliest: Token| token < earliest;
        if self.from.is_some_and(is_late) || self.latest.as_ref().is_some_and(|latest| is_late(latest.token)) {
            return MessageVerdict::Late;
        }
        let is_first = self.latest.as_ref().is_none_or(|latest| token > latest.token);
        let latest = match &mut self.latest {
            Some(latest) if !is_first => latest,
            latest => latest.insert(Release { token, named: HashMap::new() }),
        };
        latest.named.insert(master, next);
        if latest.named.len() >= self.needed {
            MessageVerdict::Decided(latest.next_turn(place))
        } else if is_first {
            MessageVerdict::First
        } else {
            MessageVerdict::Further
        }
    }

    /// Which contender tries next, by the messages so far.
    pub(crate) fn next_turn(&self, place: &str) -> NextTurn {
        self.latest.as_ref().map_or(NextTurn::Nobody, |latest| latest.next_turn(place))
    }
}

impl Release {
    /// Masters may name different contenders. The one that the most have named tries next; of several, the first by name,
    /// so that all who hear the same agree.
    fn next_turn(&self, place: &str) -> NextTurn {
        let mut votes: HashMap<&str, usize> = HashMap::new();
        for named in self.named.values() {
            *votes.entry(named).or_default() += 1;
        }
        match votes.into_iter().max_by_key(|&(named, votes)| (votes, Reverse(named))) {
            Some((named, _)) if named != place => NextTurn::Another(self.token),
            Some(_) | None => NextTurn::Ours,
        }
    }
}

#[cfg(test)]
mod tests;
