//! One vote on a grant: ask all masters, decide as soon as it is decided, leave nothing behind where it fails.

use std::sync::Arc;

use futures::stream::{BoxStream, StreamExt as _};
use tokio::time::Instant;

use super::client::Client;
use super::error::{Error, MasterError};
use super::key::LockKey;
use super::lease::{Grant, LeaseOptions};
use super::master::{Bid, Master, Vote};
use super::owner::Owner;
use super::quorum::Decision;
use super::validity::valid_until;

/// How often a token that masters found stale is replaced by a larger one before the attempt fails.
const TOKEN_TRIES: usize = 8;

/// A vote that was won.
pub(super) struct Granted {
    pub(super) bid: Arc<Bid>,
    pub(super) grant: Grant,
    /// Answers that were not waited for.
    pub(super) late: Option<BoxStream<'static, (usize, Result<Vote, MasterError>)>>,
}

/// Holds one vote on `key`, and further ones only where a token was stale.
pub(super) async fn acquire<N: Master>(
    client: &Client<N>,
    key: &LockKey,
    options: &LeaseOptions,
) -> Result<Granted, Error> {
    options.check()?;
    let mut tries = 1;
    loop {
        match hold_vote(client, key, options).await? {
            Outcome::Granted(granted) => return Ok(granted),
            Outcome::StaleToken if tries < TOKEN_TRIES => {
                tries += 1;
                // Reading takes note of the masters' tokens: the next proposal is larger.
                client.survey(key).await;
            }
            Outcome::StaleToken => return Err(Error::Contended { holder: None, remaining: None }),
        }
    }
}

enum Outcome {
    Granted(Granted),
    StaleToken,
}

async fn hold_vote<N: Master>(client: &Client<N>, key: &LockKey, options: &LeaseOptions) -> Result<Outcome, Error> {
    if client.closing().is_cancelled() {
        return Err(Error::ShutDown);
    }
    // Before the token is drawn: whoever sleeps between the two has an old token, and must not have a fresh validity
    // with it.
    let sent_at = Instant::now();
    let owner = Owner::new(options.identity.clone(), client.propose_token(key)?);
    let bid = Arc::new(Bid::new(key.clone(), owner, options.ttl));
    // Whatever happens from here to the grant, also that this future is dropped, is undone on the masters.
    let mut undo = Undo { client, bid: Arc::clone(&bid), masters: (0..client.masters().len()).collect() };

    let deadline = sent_at + client.call_timeout();
    let mut answers = client.ask(0..client.masters().len(), |masters, index| {
        let bid = Arc::clone(&bid);
        async move { (index, masters[index].acquire(&bid, deadline).await) }
    });

    let quorum = client.quorum();
    let (mut yes, mut held, mut stale, mut failures) = (0, 0, 0, Vec::new());
    while let Some((index, answer)) = answers.next().await {
        match answer {
            Ok(Vote::Yes) => yes += 1,
            Ok(Vote::Held) => {
                held += 1;
                undo.masters.retain(|&n| n != index);
            }
            Ok(Vote::StaleToken) => stale += 1,
            Err(error) => failures.push(client.failure(index, error)),
        }
        match quorum.decide(yes, held + stale + failures.len()) {
            Decision::Yes => {
                let valid_until = valid_until(sent_at, options.ttl);
                let left = valid_until.saturating_duration_since(Instant::now());
                if left.is_zero() || left < options.min_validity {
                    return Err(Error::TooSlow { left, needed: options.min_validity });
                }
                if client.closing().is_cancelled() {
                    return Err(Error::ShutDown);
                }
                undo.masters.clear();
                let grant = Grant { acquired_at: sent_at, renewed_at: sent_at, valid_until, votes: yes, renewals: 0 };
                let late = (!answers.is_empty()).then(|| answers.boxed());
                return Ok(Outcome::Granted(Granted { bid, grant, late }));
            }
            // Lost. Whether to contenders or to broken masters is told apart once a majority was usable; until then go
            // on.
            Decision::No if quorum.is_reached_by(yes + held + stale) => break,
            Decision::No | Decision::Open => {}
        }
    }
    let usable = yes + held + stale;
    if quorum.is_reached_by(yes + stale) {
        Ok(Outcome::StaleToken)
    } else if quorum.is_reached_by(usable) {
        Err(Error::Contended { holder: None, remaining: None })
    } else {
        Err(client.no_quorum(usable, failures))
    }
}

/// Releases a bid on the masters that may hold it, when dropped.
struct Undo<'a, N: Master> {
    client: &'a Client<N>,
    bid: Arc<Bid>,
    masters: Vec<usize>,
}

impl<N: Master> Drop for Undo<'_, N> {
    fn drop(&mut self) {
        if !self.masters.is_empty() {
            // Nobody held the lock by this bid, so nobody is woken for it.
            self.client.give_back(&self.bid, std::mem::take(&mut self.masters), false);
        }
    }
}
