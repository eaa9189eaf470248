//! What a step does: the algorithm, and the faults that it must withstand.

use std::cell::Cell;
use std::time::Duration;

use redlock_engine::Grant;
use tokio::time::Instant;

use crate::client::{reachable, renewal};
use crate::rules::{Adoption, Bounds, Rules};
use crate::state::{
    Answer, Client, FRESH, Kind, MASTERS, Master, Phase, Promise, Reply, State, Token, request, requests_of,
};
use crate::steps::{Event, Fate, Release, Step, late, waiting};

/// The model: rules, bounds, and what has happened in it so far.
pub struct World {
    pub rules: Rules,
    pub bounds: Bounds,
    /// The promises that are checked.
    pub promises: &'static [Promise],
    /// Whether it forgets what cannot matter any more.
    pub forgets: bool,
    /// The present moment of every state: all its times count from now.
    pub now: Instant,
    pub events: Cell<u32>,
}

impl World {
    pub fn new(rules: Rules, bounds: Bounds, promises: &'static [Promise]) -> Self {
        // Late enough that times before it exist on the clock.
        let now = Instant::now() + Duration::from_secs(3600);
        Self { rules, bounds, promises, forgets: true, now, events: Cell::new(0) }
    }

    /// Three empty, armed masters, and clients that have not asked yet.
    pub fn start(&self) -> State {
        let bounds = &self.bounds;
        let client = |index: usize| Client {
            attempts_left: bounds.attempts[index],
            rounds_left: bounds.rounds[index],
            writes_left: bounds.writes,
            ..Client::default()
        };
        State {
            clients: [client(0), client(1)],
            crashes_left: bounds.crashes,
            deaths_left: bounds.deaths,
            successions_left: bounds.successions,
            ..State::default()
        }
    }

    /// The state after a step.
    pub fn apply(&self, before: &State, step: Step) -> State {
        let mut state = *before;
        match step {
            Step::Tick => self.tick(&mut state),
            Step::Draw(index, token) => {
                let client = &mut state.clients[index];
                (client.phase, client.token) = (Phase::Drawn, token);
                state.proposed |= 1 << token;
            }
            Step::Acquire(index, token) => {
                let client = &mut state.clients[index];
                client.attempts_left -= 1;
                ask(&mut state, index, Phase::Asking, Kind::Acquire, token, self.bounds.ttl);
            }
            Step::Adopt(index, token) => ask(&mut state, index, Phase::Adopting, Kind::Adopt, token, self.bounds.ttl),
            Step::Renew(index) => {
                let client = &mut state.clients[index];
                client.rounds_left -= 1;
                client.round = true;
                let token = client.token;
                ask(&mut state, index, Phase::Holding, Kind::Renew, token, self.bounds.ttl);
            }
            Step::Seed(index, master) => {
                let master = &mut state.masters[master];
                master.requests |= request(Kind::Seed, state.clients[index].token);
                master.answers[index] = Answer::None;
            }
            Step::Deliver { master, kind, token, slow } => self.deliver(&mut state, master, kind, token, slow),
            Step::Hear(index, master) => {
                state.masters[master].answers[index] = Answer::Yes;
                self.count(&mut state, index);
            }
            Step::CountReachable(index) => {
                let reachable = reachable(&state, index);
                if let Some(grant) = self.won(&state, index, reachable) {
                    self.grant(&mut state, index, &grant);
                }
            }
            Step::End(index, fates) => self.end(&mut state, index, Phase::Idle, fates),
            Step::Die { client, successor, fates } => {
                if successor {
                    state.successions_left -= 1;
                    (state.inherited, state.former_left) = (state.clients[client].token, state.clients[client].left);
                    self.end(&mut state, client, Phase::Orphaned, fates);
                } else {
                    state.deaths_left -= 1;
                    self.end(&mut state, client, Phase::Dead, fates);
                }
            }
            Step::BeginWrite(index) => {
                let client = &mut state.clients[index];
                client.writes_left -= 1;
                (client.writing, client.writing_grant) = (client.token, client.grant);
            }
            Step::Write(index) => self.write(&mut state, index),
            Step::Restart(master) => self.restart(&mut state, master, self.rules.restart_delay),
            Step::RestartUnseen(master) => self.restart(&mut state, master, self.rules.arming),
            Step::Arm(master) => state.masters[master].out = FRESH,
        }
        if self.forgets {
            self.forget(&mut state);
        }
        self.judge(&mut state);
        state
    }

    fn tick(&self, state: &mut State) {
        for master in &mut state.masters {
            master.left = master.left.saturating_sub(1);
            if master.left == 0 {
                master.owner = 0;
            }
            if master.out > 1 && master.out < FRESH {
                master.out -= 1;
            }
        }
        state.former_left = state.former_left.saturating_sub(1);
        for client in &mut state.clients {
            let valid = client.left > 0;
            client.left = client.left.saturating_sub(1);
            client.window = client.window.saturating_sub(1);
            let over = match client.phase {
                Phase::Asking => client.window == 0,
                _ => valid && client.left == 0,
            };
            if over && client.token > 0 {
                let mut ended = 0;
                if self.rules.adoption == Adoption::RequestsEnd {
                    ended |= request(Kind::Seed, client.token);
                }
                if self.rules.adoption.acquisitions_end() {
                    ended |= request(Kind::Acquire, client.token);
                }
                for master in &mut state.masters {
                    master.requests &= !ended;
                }
            }
        }
    }

    fn deliver(&self, state: &mut State, master: usize, kind: Kind, token: Token, slow: bool) {
        if late(state, &state.masters[master]) & request(kind, token) != 0 {
            self.note(Event::LateRequest);
        }
        state.masters[master].requests &= !request(kind, token);
        let inherited = state.inherited;
        let reply = self.execute(&mut state.masters[master], kind, token, inherited);
        let Some(client) = waiting(state, master, kind, token) else { return };
        state.masters[master].answers[client] = match (reply, slow) {
            (Reply::Yes, false) => Answer::Yes,
            (Reply::Yes, true) => Answer::SlowYes,
            // A slow no would change nothing: a client never has to wait for it.
            (Reply::Missing, _) => Answer::Missing,
            (Reply::No, _) => Answer::No,
        };
        self.count(state, client);
    }

    /// What a master does with a request.
    fn execute(&self, master: &mut Master, kind: Kind, token: Token, inherited: Token) -> Reply {
        if !master.is_armed() {
            return Reply::No;
        }
        let ttl = self.bounds.ttl;
        let rises = token > master.fence;
        let reply = match kind {
            Kind::Acquire => {
                let set = master.owner == 0;
                if set {
                    (master.owner, master.left) = (token, ttl);
                }
                master.fence = master.fence.max(token);
                if set && !rises && self.rules.fencing_vote {
                    self.note(Event::StaleTokenRefused);
                }
                let yes = set && (rises || !self.rules.fencing_vote);
                if yes && master.out == FRESH {
                    self.note(Event::VoteOfRestarted);
                    master.out = 0;
                }
                if yes { Reply::Yes } else { Reply::No }
            }
            Kind::Renew => renew(master, token, ttl, self.rules.compare_on_renew),
            Kind::Seed => {
                if master.owner != 0 && master.owner != token {
                    return Reply::No;
                }
                if master.owner == 0 {
                    self.note(Event::SeedTaken);
                }
                (master.owner, master.left) = (token, ttl);
                Reply::Yes
            }
            Kind::Release => {
                if master.owner == token || !self.rules.compare_on_release {
                    (master.owner, master.left) = (0, 0);
                }
                Reply::Yes
            }
            Kind::Adopt => {
                let contended = master.fence > inherited;
                let reply = if token != inherited {
                    replace(master, inherited, token, ttl)
                } else if contended && self.rules.adoption == Adoption::FenceVote {
                    Reply::No
                } else {
                    renew(master, token, ttl, self.rules.compare_on_renew)
                };
                if contended && reply == Reply::Yes {
                    self.note(Event::AdoptedBesideContender);
                }
                reply
            }
        };
        let carries = matches!(kind, Kind::Renew | Kind::Seed | Kind::Adopt) && self.rules.renewals_carry_token;
        if carries && reply == Reply::Yes && master.owner == token {
            master.fence = master.fence.max(token);
        }
        reply
    }

    /// A client counts the answers that have reached it.
    fn count(&self, state: &mut State, index: usize) {
        match state.clients[index].phase {
            Phase::Asking => {
                if let Some(grant) = self.won(state, index, MASTERS) {
                    self.grant(state, index, &grant);
                }
            }
            Phase::Adopting => {
                if let Some(grant) = self.adopted(state, index) {
                    self.grant(state, index, &grant);
                }
            }
            Phase::Holding => {
                let tally = renewal(state, index);
                if tally.is_renewed() {
                    self.renewed(state, index, tally.votes());
                }
            }
            Phase::Idle | Phase::Drawn | Phase::Orphaned | Phase::Dead => {}
        }
    }

    fn renewed(&self, state: &mut State, index: usize, votes: usize) {
        let client = state.clients[index];
        if let Some(grant) = self.extended(&client, votes) {
            self.note(Event::Renewed);
            if !self.is_valid(&client) {
                self.break_promise(state, Promise::NothingRevived);
            }
            state.clients[index].left = self.ticks_left(&grant);
        }
        (state.clients[index].round, state.clients[index].window) = (false, 0);
    }

    fn grant(&self, state: &mut State, index: usize, grant: &Grant) {
        let adopted = state.clients[index].phase == Phase::Adopting;
        self.note(if adopted { Event::Adopted } else { Event::Granted });
        if state.clients.iter().any(|c| c.phase == Phase::Dead) {
            self.note(Event::HandedOverAfterDeath);
        }
        if state.crashes_left < self.bounds.crashes {
            self.note(Event::GrantedAfterRestart);
        }
        for master in &mut state.masters {
            master.answers[index] = Answer::None;
        }
        let client = &mut state.clients[index];
        (client.phase, client.left, client.window) = (Phase::Holding, self.ticks_left(grant), 0);
        let token = client.token;
        let again = adopted && token == state.inherited;
        if self.bounds.writes > 0 && !again {
            state.grants += 1;
            client.grant = state.grants;
        }
        if token < state.granted {
            self.break_promise(state, Promise::TokensRise);
        }
        state.granted = state.granted.max(token);
    }

    fn end(&self, state: &mut State, index: usize, phase: Phase, fates: [Fate; MASTERS]) {
        let client = &mut state.clients[index];
        let token = client.token;
        if client.holds() && fates.iter().any(|fate| fate.release == Release::Arrives) {
            self.note(Event::Released);
        }
        // The rest of a dead holder's validity bounds its seeds, in worlds where they end.
        let proven = if phase == Phase::Orphaned { client.left } else { 0 };
        *client = Client {
            phase,
            left: proven,
            token: if proven > 0 { token } else { 0 },
            window: 0,
            round: false,
            grant: 0,
            ..*client
        };
        for (master, fate) in state.masters.iter_mut().zip(fates) {
            master.answers[index] = Answer::None;
            if !fate.kept {
                master.requests &= !requests_of(token);
            }
            match fate.release {
                Release::Arrives if master.is_armed() => {
                    self.execute(master, Kind::Release, token, 0);
                }
                Release::UnderWay => master.requests |= request(Kind::Release, token),
                Release::Arrives | Release::Lost | Release::NotSent => {}
            }
        }
    }

    fn write(&self, state: &mut State, index: usize) {
        let client = &mut state.clients[index];
        let (token, grant) = (client.writing, client.writing_grant);
        (client.writing, client.writing_grant) = (0, 0);
        if self.rules.guard && token < state.seen_token {
            return self.note(Event::StaleWriteRefused);
        }
        if grant < state.seen_grant {
            self.break_promise(state, Promise::NoWriteAfterLater);
        }
        if grant < state.grants {
            self.break_promise(state, Promise::NoWriteAfterGrant);
        }
        state.seen_token = state.seen_token.max(token);
        state.seen_grant = state.seen_grant.max(grant);
    }

    fn restart(&self, state: &mut State, master: usize, delayed: bool) {
        state.crashes_left -= 1;
        let master = &mut state.masters[master];
        (master.owner, master.left, master.fence) = (0, 0, 0);
        master.out = if delayed { 1 + self.bounds.ttl } else { FRESH };
    }

    fn judge(&self, state: &mut State) {
        let [first, second] = &state.clients;
        if first.holds() && second.holds() {
            self.break_promise(state, Promise::Exclusive);
        }
        if state.clients.iter().any(|c| c.holds() && c.token < state.granted) {
            self.break_promise(state, Promise::TokensRise);
        }
    }

    fn break_promise(&self, state: &mut State, promise: Promise) {
        if state.broken.is_none() && self.promises.contains(&promise) {
            state.broken = Some(promise);
        }
    }

    pub fn note(&self, event: Event) {
        self.events.set(self.events.get() | 1 << event as u8);
    }
}

fn ask(state: &mut State, index: usize, phase: Phase, kind: Kind, token: Token, ttl: u8) {
    let client = &mut state.clients[index];
    (client.phase, client.token, client.window) = (phase, token, ttl);
    state.proposed |= 1 << token;
    for master in &mut state.masters {
        master.requests |= request(kind, token);
        master.answers[index] = Answer::None;
    }
}

fn renew(master: &mut Master, token: Token, ttl: u8, compare: bool) -> Reply {
    if master.owner == 0 {
        Reply::Missing
    } else if master.owner == token || !compare {
        master.left = ttl;
        Reply::Yes
    } else {
        Reply::No
    }
}

/// Replaces an inherited token by a new one, if that is larger than every token that the master has seen.
fn replace(master: &mut Master, inherited: Token, token: Token, ttl: u8) -> Reply {
    if master.owner == 0 {
        Reply::Missing
    } else if master.owner == inherited && token > master.fence {
        (master.owner, master.left, master.fence) = (token, ttl, token);
        Reply::Yes
    } else {
        Reply::No
    }
}
