//! A client's decisions, by the engine's own tallies and grants, which get their input from the model's state.
//!
//! A tick is a second of the engine's clock. Drift is less than a tick, so a validity that still runs is rounded up to
//! whole ticks.

use std::time::Duration;

use redlock_engine::Grant;
use redlock_engine::master::{Extension, Vote};
use redlock_engine::protocol::renewal::RenewalTally;
use redlock_engine::protocol::vote::{VoteTally, VoteVerdict};
use redlock_engine::quorum::Quorum;
use tokio::time::Instant;

use crate::state::{Answer, Client, MASTERS, State};
use crate::world::World;

const TICK: Duration = Duration::from_secs(1);

/// The votes on a client's claim that have reached it, of this number of masters.
fn votes(state: &State, index: usize, masters: usize) -> VoteTally {
    let mut tally = VoteTally::new(Quorum::of(masters));
    for (master, answer) in state.masters.iter().map(|master| master.answers[index]).enumerate() {
        let vote = match answer {
            Answer::None | Answer::SlowYes => continue,
            Answer::Yes => Vote::Granted,
            // Another has the key, or the master does not vote: both give no vote.
            Answer::Missing | Answer::No => Vote::HeldByOther,
        };
        tally.hear(master, Ok(vote));
    }
    tally
}

/// How many masters have answered a client.
pub fn reachable(state: &State, index: usize) -> usize {
    let is_heard = |answer| !matches!(answer, Answer::None | Answer::SlowYes);
    state.masters.iter().filter(|master| is_heard(master.answers[index])).count()
}

/// The answers to a client's renewal, seeds or adoption that have reached it.
pub fn renewal(state: &State, index: usize) -> RenewalTally {
    let mut tally = RenewalTally::new(Quorum::of(MASTERS));
    for (master, answer) in state.masters.iter().map(|master| master.answers[index]).enumerate() {
        let extension = match answer {
            Answer::None | Answer::SlowYes => continue,
            Answer::Yes => Extension::Extended,
            Answer::Missing => Extension::Missing,
            Answer::No => Extension::HeldByOther,
        };
        tally.hear(master, Ok(extension));
    }
    tally
}

impl World {
    /// The grant of a client that has asked for the lock, if a majority of this number of masters voted for it in time.
    pub fn won(&self, state: &State, index: usize, masters: usize) -> Option<Grant> {
        let VoteVerdict::Won { votes } = votes(state, index, masters).verdict() else { return None };
        let grant = Grant::new(self.asked_at(&state.clients[index]), self.ttl(), votes);
        grant.check_validity(self.now, Duration::ZERO).ok().map(|()| grant)
    }

    /// The grant of a client that has asked to adopt one, if a majority still had its key and it is still valid.
    pub fn adopted(&self, state: &State, index: usize) -> Option<Grant> {
        let tally = renewal(state, index);
        let grant = Grant::new(self.asked_at(&state.clients[index]), self.ttl(), tally.votes());
        (tally.is_renewed() && grant.is_valid_at(self.now)).then_some(grant)
    }

    /// The grant of a holder after its renewal, if that extends it.
    pub fn extended(&self, client: &Client, votes: usize) -> Option<Grant> {
        let grant = self.held(client);
        // Without the rule it is extended as if it were still valid.
        let heard_at = if self.rules.extend_while_valid { self.now } else { grant.renewed_at };
        grant
            .clone()
            .extended(self.asked_at(client), self.ttl(), votes, heard_at)
            .filter(|after| after.renewals > grant.renewals)
    }

    /// Whether a holder's grant is valid now.
    pub fn is_valid(&self, client: &Client) -> bool {
        self.held(client).is_valid_at(self.now)
    }

    /// The rest of a grant's validity, in ticks.
    pub fn ticks_left(&self, grant: &Grant) -> u8 {
        let left = grant.validity_at(self.now).as_nanos().div_ceil(TICK.as_nanos());
        u8::try_from(left).expect("a small TTL")
    }

    /// The grant of a holder, from the rest of its validity.
    fn held(&self, client: &Client) -> Grant {
        Grant::new(self.ago(self.bounds.ttl - client.left), self.ttl(), MASTERS)
    }

    /// When a client sent its request: validity counts from then, or from the answer where that rule is left out.
    fn asked_at(&self, client: &Client) -> Instant {
        if self.rules.validity_from_send { self.ago(self.bounds.ttl - client.window) } else { self.now }
    }

    fn ttl(&self) -> Duration {
        TICK * u32::from(self.bounds.ttl)
    }

    fn ago(&self, ticks: u8) -> Instant {
        self.now - TICK * u32::from(ticks)
    }
}
