//! What a step does: the algorithm, and what it must bear.

use std::cell::Cell;

use crate::rules::{Adoption, Bounds, Rules};
use crate::state::{
    Answer, Client, FRESH, Kind, NODES, Node, Phase, Promise, QUORUM, Reply, State, Token, request, requests_of,
};
use crate::steps::{Event, Fate, Release, Step, late, waiting};

/// The model: rules, bounds, and what has happened in it so far.
pub struct World {
    pub rules: Rules,
    pub bounds: Bounds,
    /// The promises that are looked at.
    pub promises: &'static [Promise],
    /// Whether what can change nothing any more is forgotten.
    pub forgets: bool,
    pub events: Cell<u32>,
}

impl World {
    pub fn new(rules: Rules, bounds: Bounds, promises: &'static [Promise]) -> Self {
        Self { rules, bounds, promises, forgets: true, events: Cell::new(0) }
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
            Step::Seed(index, node) => {
                let node = &mut state.nodes[node];
                node.requests |= request(Kind::Seed, state.clients[index].token);
                node.answers[index] = Answer::None;
            }
            Step::Deliver { node, kind, token, slow } => self.deliver(&mut state, node, kind, token, slow),
            Step::Hear(index, node) => {
                state.nodes[node].answers[index] = Answer::Yes;
                self.count(&mut state, index);
            }
            Step::CountReachable(index) => {
                let gives = state.clients[index].window;
                self.grant(&mut state, index, gives);
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
            Step::Restart(node) => self.restart(&mut state, node, self.rules.restart_delay),
            Step::RestartUnseen(node) => self.restart(&mut state, node, self.rules.arming),
            Step::Arm(node) => state.nodes[node].out = FRESH,
        }
        if self.forgets {
            self.forget(&mut state);
        }
        self.judge(&mut state);
        state
    }

    fn tick(&self, state: &mut State) {
        for node in &mut state.nodes {
            node.left = node.left.saturating_sub(1);
            if node.left == 0 {
                node.owner = 0;
            }
            if node.out > 1 && node.out < FRESH {
                node.out -= 1;
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
                for node in &mut state.nodes {
                    node.requests &= !ended;
                }
            }
        }
    }

    fn deliver(&self, state: &mut State, node: usize, kind: Kind, token: Token, slow: bool) {
        if late(state, &state.nodes[node]) & request(kind, token) != 0 {
            self.note(Event::LateRequest);
        }
        state.nodes[node].requests &= !request(kind, token);
        let inherited = state.inherited;
        let reply = self.execute(&mut state.nodes[node], kind, token, inherited);
        let Some(client) = waiting(state, node, kind, token) else { return };
        state.nodes[node].answers[client] = match (reply, slow) {
            (Reply::Yes, false) => Answer::Yes,
            (Reply::Yes, true) => Answer::SlowYes,
            // A no that is slow would change nothing: clients go on without it at any time.
            (Reply::Missing, _) => Answer::Missing,
            (Reply::No, _) => Answer::No,
        };
        self.count(state, client);
    }

    /// What a master does with a request.
    fn execute(&self, node: &mut Node, kind: Kind, token: Token, inherited: Token) -> Reply {
        if !node.is_armed() {
            return Reply::No;
        }
        let ttl = self.bounds.ttl;
        let rises = token > node.fence;
        match kind {
            Kind::Acquire => {
                let set = node.owner == 0;
                if set {
                    (node.owner, node.left) = (token, ttl);
                }
                node.fence = node.fence.max(token);
                if set && !rises && self.rules.fencing_vote {
                    self.note(Event::StaleTokenRefused);
                }
                let yes = set && (rises || !self.rules.fencing_vote);
                if yes && node.out == FRESH {
                    self.note(Event::VoteOfRestarted);
                    node.out = 0;
                }
                if yes { Reply::Yes } else { Reply::No }
            }
            Kind::Renew => renew(node, token, ttl, self.rules.compare_on_renew),
            Kind::Seed => {
                if node.owner != 0 && node.owner != token {
                    return Reply::No;
                }
                if node.owner == 0 {
                    self.note(Event::SeedTaken);
                }
                (node.owner, node.left) = (token, ttl);
                Reply::Yes
            }
            Kind::Release => {
                if node.owner == token || !self.rules.compare_on_release {
                    (node.owner, node.left) = (0, 0);
                }
                Reply::Yes
            }
            Kind::Adopt => {
                let contended = node.fence > inherited;
                let reply = if token != inherited {
                    replace(node, inherited, token, ttl)
                } else if contended && self.rules.adoption == Adoption::FenceVote {
                    Reply::No
                } else {
                    renew(node, token, ttl, self.rules.compare_on_renew)
                };
                if contended && reply == Reply::Yes {
                    self.note(Event::AdoptedBesideContender);
                }
                reply
            }
        }
    }

    /// A client counts what it has heard.
    fn count(&self, state: &mut State, index: usize) {
        if state.nodes.iter().filter(|n| n.answers[index] == Answer::Yes).count() < QUORUM {
            return;
        }
        let client = &state.clients[index];
        let gives = if self.rules.validity_from_send { client.window } else { self.bounds.ttl };
        match client.phase {
            Phase::Asking | Phase::Adopting if gives > 0 => self.grant(state, index, gives),
            Phase::Holding => {
                if gives > client.left && (client.left > 0 || !self.rules.extend_while_valid) {
                    self.note(Event::Renewed);
                    if client.left == 0 {
                        self.break_promise(state, Promise::NothingRevived);
                    }
                    state.clients[index].left = gives;
                }
                (state.clients[index].round, state.clients[index].window) = (false, 0);
            }
            _ => {}
        }
    }

    fn grant(&self, state: &mut State, index: usize, gives: u8) {
        let adopted = state.clients[index].phase == Phase::Adopting;
        self.note(if adopted { Event::Adopted } else { Event::Granted });
        if state.clients.iter().any(|c| c.phase == Phase::Dead) {
            self.note(Event::HandedOverAfterDeath);
        }
        if state.crashes_left < self.bounds.crashes {
            self.note(Event::GrantedAfterRestart);
        }
        for node in &mut state.nodes {
            node.answers[index] = Answer::None;
        }
        let client = &mut state.clients[index];
        (client.phase, client.left, client.window) = (Phase::Holding, gives, 0);
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

    fn end(&self, state: &mut State, index: usize, phase: Phase, fates: [Fate; NODES]) {
        let client = &mut state.clients[index];
        let token = client.token;
        if client.holds() && fates.iter().any(|fate| fate.release == Release::Arrives) {
            self.note(Event::Released);
        }
        // What is left of a dead holder's validity bounds its seeds, where they end.
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
        for (node, fate) in state.nodes.iter_mut().zip(fates) {
            node.answers[index] = Answer::None;
            if !fate.kept {
                node.requests &= !requests_of(token);
            }
            match fate.release {
                Release::Arrives if node.is_armed() => {
                    self.execute(node, Kind::Release, token, 0);
                }
                Release::UnderWay => node.requests |= request(Kind::Release, token),
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

    fn restart(&self, state: &mut State, node: usize, delayed: bool) {
        state.crashes_left -= 1;
        let node = &mut state.nodes[node];
        (node.owner, node.left, node.fence) = (0, 0, 0);
        node.out = if delayed { 1 + self.bounds.ttl } else { FRESH };
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
    for node in &mut state.nodes {
        node.requests |= request(kind, token);
        node.answers[index] = Answer::None;
    }
}

fn renew(node: &mut Node, token: Token, ttl: u8, compare: bool) -> Reply {
    if node.owner == 0 {
        Reply::Missing
    } else if node.owner == token || !compare {
        node.left = ttl;
        Reply::Yes
    } else {
        Reply::No
    }
}

/// Replaces an inherited token by a new one, if it is larger than every one that the master has seen.
fn replace(node: &mut Node, inherited: Token, token: Token, ttl: u8) -> Reply {
    if node.owner == 0 {
        Reply::Missing
    } else if node.owner == inherited && token > node.fence {
        (node.owner, node.left, node.fence) = (token, ttl, token);
        Reply::Yes
    } else {
        Reply::No
    }
}
