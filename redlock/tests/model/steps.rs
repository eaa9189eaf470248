//! The steps that are possible in a state.

use crate::client::{reachable, renewal};
use crate::rules::{Adoption, Clocks};
use crate::state::{Answer, CLIENTS, KINDS, Kind, MASTERS, Master, Phase, State, TOKENS, Token, requests_of};
use crate::world::World;

/// What becomes of a client's requests to one master when the client does not wait for them any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    pub release: Release,
    /// Whether requests under way may still arrive; otherwise they are lost.
    pub kept: bool,
}

/// A compare-and-delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    Arrives,
    UnderWay,
    Lost,
    NotSent,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Time passes, on every clock alike.
    Tick,
    /// A client draws a token.
    Draw(usize, Token),
    /// A client asks all masters for the lock.
    Acquire(usize, Token),
    /// A request arrives; its reply arrives at once, or is under way.
    Deliver { master: usize, kind: Kind, token: Token, slow: bool },
    /// A reply arrives.
    Hear(usize, usize),
    /// A client counts a majority among those that answered.
    CountReachable(usize),
    /// A holder asks all masters to renew.
    Renew(usize),
    /// A holder seeds a master that lacks its key.
    Seed(usize, usize),
    /// A client gives up an attempt, or its lease.
    End(usize, [Fate; MASTERS]),
    /// A client's process dies, or pauses for so long that it has a successor.
    Die { client: usize, successor: bool, fates: [Fate; MASTERS] },
    /// The successor of a dead process asks all masters to adopt its grant.
    Adopt(usize, Token),
    /// A holder has checked that it holds the lock, and writes.
    BeginWrite(usize),
    /// The write arrives at the guarded resource.
    Write(usize),
    /// A master restarts empty, and the operator notices it.
    Restart(usize),
    /// A master restarts empty, or is flushed, and nobody notices it.
    RestartUnseen(usize),
    /// The operator arms a master again.
    Arm(usize),
}

/// Events that must happen in some state; otherwise the model would prove nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Granted,
    Renewed,
    SeedTaken,
    Released,
    HandedOverAfterDeath,
    VoteOfRestarted,
    GrantedAfterRestart,
    StaleTokenRefused,
    LateRequest,
    TooLate,
    Adopted,
    AdoptedBesideContender,
    StaleWriteRefused,
}

pub const EVENTS: [(Event, &str); 13] = [
    (Event::Granted, "a grant"),
    (Event::Renewed, "a renewal"),
    (Event::SeedTaken, "a master that takes a seed"),
    (Event::Released, "a release"),
    (Event::HandedOverAfterDeath, "a grant after the holder's death"),
    (Event::VoteOfRestarted, "a vote of a restarted master"),
    (Event::GrantedAfterRestart, "a grant after a restart"),
    (Event::StaleTokenRefused, "a stale token that is refused"),
    (Event::LateRequest, "a request that arrives when its sender does not wait for it any more"),
    (Event::TooLate, "a vote that comes after the end of validity"),
    (Event::Adopted, "an adoption"),
    (Event::AdoptedBesideContender, "a vote for an adoption by a master that has seen a larger token"),
    (Event::StaleWriteRefused, "a write that the guarded resource refuses"),
];

impl World {
    /// Adds all steps that are possible next.
    pub fn steps(&self, state: &State, steps: &mut Vec<Step>) {
        steps.push(Step::Tick);
        for index in 0..CLIENTS {
            self.client_steps(state, index, steps);
        }
        for index in 0..MASTERS {
            let master = &state.masters[index];
            let mut requests = master.requests;
            while requests != 0 {
                let bit = requests.trailing_zeros() as u8;
                requests &= requests - 1;
                let (kind, token) = (KINDS[usize::from(bit / TOKENS)], bit % TOKENS + 1);
                if kind == Kind::Release && token == state.inherited && state.former_left > 0 {
                    continue;
                }
                steps.push(Step::Deliver { master: index, kind, token, slow: false });
                // At most one reply under way for each client: only the reply that decides can come too late.
                if let Some(client) = waiting(state, index, kind, token)
                    && (!self.forgets || state.masters.iter().all(|m| m.answers[client] != Answer::SlowYes))
                {
                    steps.push(Step::Deliver { master: index, kind, token, slow: true });
                }
            }
            for client in 0..CLIENTS {
                if master.answers[client] == Answer::SlowYes {
                    steps.push(Step::Hear(client, index));
                }
            }
            if state.crashes_left > 0 && master.is_armed() && (!self.bounds.rolling || has_lasting_holder(state, index))
            {
                // With all rules a restart is the same whether it is noticed or not: no vote until the delay has passed.
                steps.push(if self.rules.arming { Step::Restart(index) } else { Step::RestartUnseen(index) });
            }
            if master.out == 1 {
                steps.push(Step::Arm(index));
            }
        }
    }

    fn client_steps(&self, state: &State, index: usize, steps: &mut Vec<Step>) {
        let client = &state.clients[index];
        match client.phase {
            Phase::Idle if client.attempts_left > 0 => {
                let draw = if self.rules.token_drawn_at_send { Step::Acquire } else { Step::Draw };
                self.tokens(state, |token| steps.push(draw(index, token)));
            }
            Phase::Drawn => steps.push(Step::Acquire(index, client.token)),
            Phase::Asking => {
                if !self.rules.majority_of_configured && self.won(state, index, reachable(state, index)).is_some() {
                    steps.push(Step::CountReachable(index));
                }
                self.ends(state, index, true, &mut |fates| steps.push(Step::End(index, fates)));
                self.deaths(state, index, steps);
            }
            Phase::Holding => {
                let is_valid = self.is_valid(client);
                if client.rounds_left > 0 && (is_valid || !self.rules.extend_while_valid) {
                    steps.push(Step::Renew(index));
                }
                if is_valid || !self.rules.seed_while_valid {
                    let tally = renewal(state, index);
                    // If a majority does not have the key the lease is lost.
                    if !tally.is_taken() {
                        steps.extend(tally.to_seed().iter().map(|&master| Step::Seed(index, master)));
                    }
                }
                if client.writes_left > 0 && client.left > 0 {
                    steps.push(Step::BeginWrite(index));
                }
                self.ends(state, index, true, &mut |fates| steps.push(Step::End(index, fates)));
                self.deaths(state, index, steps);
            }
            Phase::Orphaned if self.rules.adoption == Adoption::NewToken => {
                self.tokens(state, |token| steps.push(Step::Adopt(index, token)));
            }
            Phase::Orphaned => steps.push(Step::Adopt(index, state.inherited)),
            Phase::Adopting => {
                let new_token = client.token != state.inherited;
                self.ends(state, index, new_token, &mut |fates| steps.push(Step::End(index, fates)));
            }
            Phase::Idle | Phase::Dead => {}
        }
        if client.writing > 0 {
            steps.push(Step::Write(index));
        }
    }

    fn deaths(&self, state: &State, client: usize, steps: &mut Vec<Step>) {
        if state.deaths_left > 0 {
            self.ends(state, client, false, &mut |fates| steps.push(Step::Die { client, successor: false, fates }));
        }
        if state.successions_left > 0 && state.clients[client].phase == Phase::Holding {
            self.ends(state, client, self.bounds.pauses, &mut |fates| {
                // A paused process releases nothing before it wakes.
                if fates.iter().all(|fate| fate.release != Release::Arrives) {
                    steps.push(Step::Die { client, successor: true, fates });
                }
            });
        }
    }

    /// The tokens that a client may propose now.
    fn tokens(&self, state: &State, mut propose: impl FnMut(Token)) {
        let fresh = |token: &Token| state.proposed >> token & 1 == 0;
        let all = self.bounds.attempts.iter().sum::<u8>() + self.bounds.successions;
        match self.bounds.clocks {
            Clocks::Agree => (1..=all).find(fresh).into_iter().for_each(propose),
            Clocks::Any => (1..=all).filter(fresh).for_each(&mut propose),
        }
    }

    /// All fates of a client's requests that leave no more of them under way than the bound permits.
    fn ends(&self, state: &State, index: usize, release: bool, add: &mut dyn FnMut([Fate; MASTERS])) {
        let token = state.clients[index].token;
        let others: u32 = state.masters.iter().map(|master| late(state, master).count_ones()).sum();
        let mut fates = [Fate { release: Release::NotSent, kept: false }; MASTERS];
        self.end_at(state, token, release, 0, others, &mut fates, add);
    }

    #[allow(clippy::too_many_arguments)] // A recursion over masters.
    fn end_at(
        &self,
        state: &State,
        token: Token,
        release: bool,
        at: usize,
        late: u32,
        fates: &mut [Fate; MASTERS],
        add: &mut dyn FnMut([Fate; MASTERS]),
    ) {
        if at == MASTERS {
            return add(*fates);
        }
        let master = &state.masters[at];
        let under_way = (master.requests & requests_of(token)).count_ones();
        let deletes = if self.rules.compare_on_release { master.owner == token } else { master.owner > 0 };
        for kept in [false, true] {
            if kept && under_way == 0 {
                continue;
            }
            let late = late + if kept { under_way } else { 0 };
            let releases: &[Release] = match (release, deletes, kept || !self.rules.compare_on_release) {
                (false, ..) => &[Release::NotSent],
                (true, true, _) => &[Release::Arrives, Release::UnderWay, Release::Lost],
                // A release that arrives now deletes nothing. A later one may.
                (true, false, true) if self.bounds.pauses => &[Release::Arrives, Release::UnderWay, Release::Lost],
                (true, false, true) => &[Release::Arrives, Release::UnderWay],
                (true, false, false) if self.bounds.pauses => &[Release::Arrives, Release::Lost],
                (true, false, false) => &[Release::Arrives],
            };
            for &release_here in releases {
                let late = late + u32::from(release_here == Release::UnderWay);
                if late <= self.bounds.late {
                    fates[at] = Fate { release: release_here, kept };
                    self.end_at(state, token, release, at + 1, late, fates, add);
                }
            }
        }
    }
}

/// Whether all masters but this one are armed and have the key of a holder.
fn has_lasting_holder(state: &State, restarts: usize) -> bool {
    let holds = |token| state.clients.iter().any(|client| client.holds() && client.token == token);
    let mut others = (0..MASTERS).filter(|index| *index != restarts).map(|index| &state.masters[index]);
    others.all(|master| master.is_armed() && holds(master.owner))
}

/// The client that waits for this master's answer to that request.
pub fn waiting(state: &State, master: usize, kind: Kind, token: Token) -> Option<usize> {
    (0..CLIENTS).find(|&index| {
        let client = &state.clients[index];
        let asked = match kind {
            Kind::Acquire => client.phase == Phase::Asking,
            Kind::Renew | Kind::Seed => client.phase == Phase::Holding && client.round,
            Kind::Adopt => client.phase == Phase::Adopting,
            Kind::Release => false,
        };
        asked && client.token == token && state.masters[master].answers[index] == Answer::None
    })
}

/// Requests to a master that their senders do not wait for any more.
pub fn late(state: &State, master: &Master) -> u32 {
    state.clients.iter().fold(master.requests, |requests, client| requests & !requests_of(client.current()))
}
