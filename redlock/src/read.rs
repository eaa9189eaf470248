//! Reading a lock: who holds it, as a majority of masters shows it.

use std::collections::HashMap;
use std::time::Duration;

use futures::stream::StreamExt as _;
use tokio::time::Instant;

use super::client::Client;
use super::error::{Error, MasterError, MasterFailure};
use super::fence::Token;
use super::key::LockKey;
use super::master::{Master, Reading};
use super::validity::drift;

/// What a majority of masters shows of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Value of the key on a majority of masters: somebody holds the lock.
    pub holder: Option<String>,
    /// What is surely left of that lease: while so much of it is left, a majority holds it (less drift, counted from
    /// when the question was sent).
    pub remaining: Option<Duration>,
    /// Masters that show this holder.
    pub votes: usize,
    /// The largest token that a master has seen for this lock.
    pub fence: Option<Token>,
    /// Masters that did not answer, and why.
    pub failures: Vec<MasterFailure>,
}

impl<N: Master> Client<N> {
    /// Reads who holds the lock. [`Error::NoQuorum`] where too few masters answer to tell whether anybody does.
    pub async fn read(&self, key: &LockKey) -> Result<Observation, Error> {
        let sent_at = Instant::now();
        let readings = self.survey(key).await;
        let quorum = self.quorum();
        let fence = readings.iter().flatten().filter_map(|r| r.fence).max();
        let failures: Vec<_> =
            (0..).zip(&readings).filter_map(|(i, r)| r.as_ref().err().map(|e| self.failure(i, e.clone()))).collect();
        let answered = readings.len() - failures.len();
        let Some((holder, votes)) = most_shown(readings.iter().flatten()) else {
            return if quorum.is_reached_by(answered) {
                Ok(Observation { fence, failures, ..Observation::default() })
            } else {
                Err(self.no_quorum(answered, failures))
            };
        };
        if quorum.is_reached_by(votes) {
            // A majority holds it until only q-1 of its masters do: until the (votes-q+1)th expiry.
            let mut left: Vec<_> = readings
                .iter()
                .flatten()
                .filter(|r| r.owner.as_deref() == Some(holder.as_str()))
                .map(|r| r.remaining.unwrap_or(Duration::MAX))
                .collect();
            left.sort_unstable();
            let ends = left[votes - quorum.votes_needed()];
            let remaining = ends.saturating_sub(drift(ends)).saturating_sub(sent_at.elapsed());
            Ok(Observation { holder: Some(holder), remaining: Some(remaining), votes, fence, failures })
        } else if quorum.is_reached_by(votes + failures.len()) {
            Err(self.no_quorum(answered, failures))
        } else {
            Ok(Observation { fence, failures, ..Observation::default() })
        }
    }

    /// What each master knows of the lock; tokens seen are taken note of.
    pub(super) async fn survey(&self, lock: &LockKey) -> Vec<Result<Reading, MasterError>> {
        let deadline = Instant::now() + self.inner.call_timeout;
        let mut answers = self.ask(0..self.masters().len(), |masters, index| {
            let key = lock.clone();
            async move { (index, masters[index].read(&key, deadline).await) }
        });
        let mut readings = vec![Err(MasterError::Timeout); self.masters().len()];
        while let Some((index, reading)) = answers.next().await {
            if let Ok(Reading { fence: Some(token), .. }) = reading {
                self.inner.tokens.observe(lock.namespace(), token);
            }
            readings[index] = reading;
        }
        readings
    }
}

/// The owner that the most masters show, and how many.
pub(super) fn most_shown<'a>(readings: impl Iterator<Item = &'a Reading>) -> Option<(String, usize)> {
    let mut shown: HashMap<&str, usize> = HashMap::new();
    for owner in readings.filter_map(|r| r.owner.as_deref()) {
        *shown.entry(owner).or_default() += 1;
    }
    // Of two with as many masters the larger text, so that the answer does not depend on the map's order.
    let (owner, masters) = shown.into_iter().max_by_key(|&(owner, masters)| (masters, owner))?;
    Some((owner.to_owned(), masters))
}
