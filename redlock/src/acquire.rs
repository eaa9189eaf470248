//! One attempt to acquire: asks all masters for their vote, and leaves nothing behind where the vote fails.

use std::future::{Future, poll_fn};
use std::sync::Arc;

use futures::stream::StreamExt as _;
use tokio::time::Instant;

use crate::claim::Claim;
use crate::error::Error;
use crate::fence::Token;
use crate::key::LockKey;
use crate::lease::{Grant, Lease, LeaseOptions};
use crate::master::Master;
use crate::masters::Masters;
use crate::protocol::vote::{VoteTally, VoteVerdict};
use crate::read::read_all;
use crate::release::release_in_background;
use crate::watchdog::{self, Granted};

/// Number of votes of one attempt: where masters find its token stale, the next vote has a larger one.
const TOKEN_TRIES: usize = 8;

/// Takes the lock if it is free now, and starts its watchdog.
pub(crate) async fn try_acquire<M: Master>(
    masters: &Arc<Masters<M>>,
    key: &LockKey,
    options: &LeaseOptions,
) -> Result<Lease, Error> {
    options.validate()?;
    let mut tries = 1;
    loop {
        match hold_vote(masters, key, options).await? {
            Outcome::Granted(granted) => return Ok(watchdog::start(masters, granted, options)),
            Outcome::StaleToken if tries < TOKEN_TRIES => {
                tries += 1;
                // Reading takes note of the masters' tokens: the next proposal is larger.
                let readings = read_all(masters, key).await;
                let used_up = readings.iter().flatten().filter(|r| r.fence.is_some_and(|f| f.get() == Token::MAX));
                if !masters.quorum().is_reached_by(masters.count() - used_up.count()) {
                    return Err(Error::TokensRunOut);
                }
            }
            // Others were granted it, or asked for it, eight times meanwhile.
            Outcome::StaleToken => return Err(Error::Split),
        }
    }
}

enum Outcome {
    Granted(Granted),
    StaleToken,
}

async fn hold_vote<M: Master>(
    masters: &Arc<Masters<M>>,
    key: &LockKey,
    options: &LeaseOptions,
) -> Result<Outcome, Error> {
    masters.check_open()?;
    // Before the token is drawn: a process that sleeps between the two has an old token, and must not have a fresh
    // validity with it.
    let sent_at = Instant::now();
    let owner = masters.new_owner(key, &options.identity)?;
    let claim = Arc::new(Claim::new(key.clone(), owner, options.ttl));
    // What happens from here to the grant is undone on the masters, also when this future is dropped.
    let mut attempt =
        Attempt { masters, claim: Arc::clone(&claim), tally: VoteTally::new(masters.quorum()), is_granted: false };

    let deadline = masters.call_deadline(sent_at);
    let mut answers = masters.ask(0..masters.count(), |masters, index| {
        let claim = Arc::clone(&claim);
        async move {
            let (answer, was_sent) = with_sent(masters[index].acquire(&claim, deadline)).await;
            (index, answer, was_sent)
        }
    });
    let mut verdict = attempt.tally.verdict();
    while verdict == VoteVerdict::Open
        && let Some((index, answer, was_sent)) = answers.next().await
    {
        verdict = match answer {
            Err(error) if !was_sent => attempt.tally.hear_unsent(index, error),
            answer => attempt.tally.hear(index, answer),
        };
    }
    match verdict {
        VoteVerdict::Won { votes } => {
            let grant = Grant::new(sent_at, options.ttl, votes);
            grant.check_validity(Instant::now(), options.min_validity)?;
            masters.check_open()?;
            attempt.is_granted = true;
            let late = (!answers.is_empty()).then(|| answers.map(|(index, answer, _)| (index, answer)).boxed());
            let unsettled = attempt.tally.unsettled();
            Ok(Outcome::Granted(Granted { claim, grant, late, unsettled }))
        }
        VoteVerdict::StaleToken => Ok(Outcome::StaleToken),
        VoteVerdict::Contended => Err(Error::Contended { holder: None, remaining: None }),
        VoteVerdict::NoQuorum { usable } => Err(masters.no_quorum(usable, attempt.tally.take_failures())),
        // Every master answers: the tally has decided by then.
        VoteVerdict::Open => Err(masters.no_quorum(0, attempt.tally.take_failures())),
    }
}

/// The output of a call, and whether it can have been sent: what is there at the first poll came without the network.
async fn with_sent<T>(call: impl Future<Output = T>) -> (T, bool) {
    let (mut call, mut is_pending) = (std::pin::pin!(call), false);
    poll_fn(|context| {
        let polled = call.as_mut().poll(context).map(|output| (output, is_pending));
        is_pending = true;
        polled
    })
    .await
}

/// A vote under way. If it is dropped without a grant, the claim is released on the masters that may have it.
struct Attempt<'a, M: Master> {
    masters: &'a Arc<Masters<M>>,
    claim: Arc<Claim>,
    tally: VoteTally,
    is_granted: bool,
}

impl<M: Master> Drop for Attempt<'_, M> {
    fn drop(&mut self) {
        if !self.is_granted {
            let indexes: Vec<_> = self.tally.to_release().collect();
            if !indexes.is_empty() {
                // Nobody held the lock by this claim, so no waiter is told.
                let doubtful = self.tally.in_doubt().to_vec();
                release_in_background(self.masters, &self.claim, indexes, doubtful, false);
            }
        }
    }
}
