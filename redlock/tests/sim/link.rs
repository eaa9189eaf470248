//! The network: one connection at a time between a client and a master, with the guarantees of TCP.
//!
//! A connection keeps the order of messages, and a lost message is lost with all after it. There is no other order:
//! neither between masters, nor between a connection and the next.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redlock_engine::MasterError;
use redlock_engine::master::{Heard, News};
use redlock_engine::voters::{Admission, Voters};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::plan::{BACKOFF, TIMEOUTS_UNTIL_BROKEN};
use crate::rules::Rule;
use crate::server::{Effect, Server};
use crate::world::{EventHandler, State};

/// What becomes of messages in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    Open,
    /// They are lost, and the connection with them.
    Lost,
    /// They arrive when the path is open again.
    Held,
}

/// A contender that waits for messages of a channel.
pub struct Waiter {
    pub channel: String,
    pub index: usize,
    pub wake: UnboundedSender<Heard>,
}

/// Which master of its client a link leads to.
pub struct Member {
    pub index: usize,
    pub voters: Arc<Voters>,
}

/// The link of one client to one master.
pub struct Link {
    pub server: usize,
    pub requests: Path,
    pub replies: Path,
    pub slow: Duration,
    pub waiters: Vec<Waiter>,
    /// Number of the connection.
    connection: u64,
    /// The server's process to which it was made.
    process: u64,
    /// Whether the client uses it.
    up: bool,
    /// Whether a message was lost on it.
    torn: bool,
    unanswered: u32,
    last_arrival: Instant,
    last_reply: Instant,
    held_back: Vec<EventHandler>,
    /// When what was held back arrives: what was sent after it does not overtake it.
    arrives: Instant,
    member: Option<Member>,
    /// The right to the server's vote.
    admission: Option<Admission>,
    /// Waiters for a connection.
    waiting: Vec<Waker>,
}

impl Link {
    /// A connection to the first process of that server.
    pub fn new(server: usize, connection: u64, now: Instant) -> Self {
        Self {
            server,
            requests: Path::Open,
            replies: Path::Open,
            slow: Duration::ZERO,
            waiters: Vec::new(),
            connection,
            process: 1,
            up: true,
            torn: false,
            unanswered: 0,
            last_arrival: now,
            last_reply: now,
            held_back: Vec::new(),
            arrives: now,
            member: None,
            admission: None,
            waiting: Vec::new(),
        }
    }
}

/// A request. A server executes it, and it returns what delivers the answer.
pub type Request = Box<dyn FnOnce(&mut Server, Connection, Instant) -> Delivery + Send>;
/// Delivers an answer if the connection still stands, or else the error that it broke.
pub type Delivery = Box<dyn FnOnce(bool) + Send>;

/// A connection of a client to a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    pub client: usize,
    pub master: usize,
    /// Never used again.
    number: u64,
    /// The server's process to which it was made.
    process: u64,
}

impl State {
    fn link(&mut self, of: Connection) -> &mut Link {
        &mut self.links[of.client][of.master]
    }

    fn stands(&mut self, of: Connection) -> bool {
        let link = self.link(of);
        link.up && link.connection == of.number
    }

    /// A random time that a message is under way.
    fn delay(&mut self) -> Duration {
        let bound = match self.random.below(200) {
            0 if self.faulty => self.plan.longest_delay,
            1..10 if self.faulty => self.plan.long_delay,
            _ => Duration::from_millis(2),
        };
        self.random.time(bound)
    }

    /// Sends a request. From then on it may be executed, whatever the client does.
    pub fn send(
        &mut self,
        client: usize,
        master: usize,
        now: Instant,
        request: Request,
    ) -> Result<Connection, MasterError> {
        self.tally.calls += 1;
        let (delay, stopped) = (self.delay(), self.stopped[client]);
        let link = &mut self.links[client][master];
        if !link.up {
            return Err(MasterError::Unreachable("not connected".to_owned()));
        }
        let connection = Connection { client, master, number: link.connection, process: link.process };
        // A stopped process sends when it continues.
        link.last_arrival = (now.max(stopped) + link.slow + delay).max(link.last_arrival);
        let arrival = link.last_arrival;
        self.at(arrival, move |state, at| state.arrive(connection, at, request));
        Ok(connection)
    }

    fn arrive(&mut self, of: Connection, now: Instant, request: Request) {
        let link = &mut self.links[of.client][of.master];
        let (current, arrives) = (link.connection == of.number, link.arrives);
        if now < arrives {
            return self.at(arrives, move |state, at| state.arrive(of, at, request));
        }
        match link.requests {
            Path::Lost => link.torn |= current,
            Path::Held => link.held_back.push(Box::new(move |state, at| state.arrive(of, at, request))),
            Path::Open if current && link.torn => {}
            Path::Open => {
                let server = link.server;
                if self.servers[server].process == of.process && self.servers[server].up {
                    let deliver = request(&mut self.servers[server], of, now);
                    self.reply(of, now, move |state, at| {
                        let stands = state.stands(of);
                        if stands {
                            state.link(of).unanswered = 0;
                        }
                        // A stopped process receives it when it continues.
                        if at < state.stopped[of.client] {
                            state.when_running(of.client, at, move |_, _| deliver(stands));
                        } else {
                            deliver(stands);
                        }
                    });
                    self.apply_effects(server, now);
                } else {
                    self.reply(of, now, move |state, at| state.disconnect(of, at));
                }
            }
        }
    }

    /// Sends a message from the server to the client.
    fn reply(&mut self, of: Connection, now: Instant, arrives: impl FnOnce(&mut State, Instant) + Send + 'static) {
        let delay = self.delay();
        let link = self.link(of);
        let current = link.connection == of.number;
        let now = now.max(link.arrives);
        match link.replies {
            Path::Lost => link.torn |= current,
            Path::Held => link.held_back.push(Box::new(move |state, at| state.reply(of, at, arrives))),
            Path::Open if current && link.torn => {}
            Path::Open => {
                let mut at = now + link.slow + delay;
                if current {
                    at = at.max(link.last_reply);
                    link.last_reply = at;
                }
                self.at(at, arrives);
            }
        }
    }

    fn apply_effects(&mut self, server: usize, now: Instant) {
        let majority = self.plan.masters / 2 + 1;
        for effect in std::mem::take(&mut self.servers[server].effects) {
            match effect {
                Effect::Published { channel, news } => self.publish(server, &channel, &news, now),
                Effect::Voted { owner } => {
                    let votes = self.votes.entry(owner.clone()).or_default();
                    *votes += 1;
                    if *votes == majority {
                        let order = self.elected.len() as u64;
                        self.elected.insert(owner, order);
                    }
                }
                Effect::Set { owner, proven } => {
                    let known = self.proven.entry(owner).or_insert(proven);
                    *known = proven.max(*known);
                }
            }
        }
    }

    /// Sends a message to all connections that listen to that channel.
    fn publish(&mut self, server: usize, channel: &str, news: &News, now: Instant) {
        let mut listeners = std::mem::take(&mut self.servers[server].listeners);
        listeners
            .retain(|listener| self.links[listener.of.client][listener.of.master].connection == listener.of.number);
        let listening: Vec<_> = listeners.iter().filter(|l| l.channel == channel).map(|l| l.of).collect();
        self.servers[server].listeners = listeners;
        for of in listening {
            let (channel, news) = (channel.to_owned(), news.clone());
            self.reply(of, now, move |state, _| {
                if state.stands(of) {
                    state.wake(of, &news, |waiter| waiter.channel == channel);
                }
            });
        }
    }

    fn wake(&mut self, of: Connection, news: &News, whom: impl Fn(&Waiter) -> bool) {
        let waiters = &mut self.link(of).waiters;
        waiters.retain(|waiter| !waiter.wake.is_closed());
        for waiter in waiters.iter().filter(|waiter| whom(waiter)) {
            // A waiter may be dropped at any time.
            let _ = waiter.wake.send(Heard { master: waiter.index, news: news.clone() });
        }
    }

    /// A call timed out.
    pub fn timed_out(&mut self, of: Connection, now: Instant) {
        if self.stands(of) {
            let link = self.link(of);
            link.unanswered += 1;
            if link.unanswered >= TIMEOUTS_UNTIL_BROKEN {
                self.disconnect(of, now);
            }
        }
    }

    /// The client closes the connection, and makes another after a pause.
    fn disconnect(&mut self, of: Connection, now: Instant) {
        if self.stands(of) {
            let link = self.link(of);
            (link.up, link.admission) = (false, None);
            self.reconnect_later(of, now);
        }
    }

    /// Breaks the present connection.
    pub fn reset(&mut self, client: usize, master: usize, now: Instant) {
        let Link { connection, process, .. } = self.links[client][master];
        self.disconnect(Connection { client, master, number: connection, process }, now);
    }

    /// Makes the link that of a master of a client. A connection to another master's server ends.
    pub fn join(&mut self, client: usize, master: usize, member: Member) {
        let link = &mut self.links[client][master];
        (link.member, link.admission) = (Some(member), None);
        if link.up && !self.seek_admission(client, master) {
            self.reset(client, master, Instant::now());
        }
    }

    /// Whether the client lets this master have the vote of the server that its link leads to.
    fn seek_admission(&mut self, client: usize, master: usize) -> bool {
        let is_kept = self.plan.rules.broken != Some(Rule::OneServerOneVote);
        let link = &mut self.links[client][master];
        let Some(member) = link.member.as_ref().filter(|_| is_kept) else { return true };
        let server = format!("{} of m{}", self.servers[link.server].process, link.server);
        link.admission = member.voters.admit(member.index, &format!("m{master}"), &server).ok();
        link.admission.is_some()
    }

    /// Whether a client is connected to a master. Wakes whoever asks once it is.
    pub fn poll_reachable(&mut self, client: usize, master: usize, context: &mut Context<'_>) -> Poll<()> {
        let never = self.plan.rules.broken == Some(Rule::ReleasesAreKept);
        let link = &mut self.links[client][master];
        if link.up && !never {
            return Poll::Ready(());
        }
        link.waiting.push(context.waker().clone());
        Poll::Pending
    }

    fn reconnect_later(&mut self, of: Connection, now: Instant) {
        let pause = BACKOFF.0 + self.random.time(BACKOFF.1.saturating_sub(BACKOFF.0));
        self.at(now + pause, move |state, at| state.reconnect(of, at));
    }

    fn reconnect(&mut self, of: Connection, now: Instant) {
        let link = &self.links[of.client][of.master];
        let server = &self.servers[link.server];
        if !server.up || (link.requests, link.replies) != (Path::Open, Path::Open) {
            return self.reconnect_later(of, now);
        }
        if !self.seek_admission(of.client, of.master) {
            return self.reconnect_later(of, now);
        }
        self.connections += 1;
        self.tally.reconnects += 1;
        let link = &mut self.links[of.client][of.master];
        let process = self.servers[link.server].process;
        (link.connection, link.process, link.up, link.torn) = (self.connections, process, true, false);
        (link.unanswered, link.last_arrival, link.last_reply) = (0, now, now);
        self.note(now, || format!("process {} connects again to m{}", of.client, of.master));
        let of = Connection { number: self.connections, ..of };
        self.links[of.client][of.master].waiting.drain(..).for_each(Waker::wake);
        // It listens again. Releases meanwhile were missed.
        self.wake(of, &News::Gap, |_| true);
        let link = &self.links[of.client][of.master];
        let server = &mut self.servers[link.server];
        link.waiters.iter().for_each(|waiter| server.listen(&waiter.channel, of));
    }

    /// Sets what becomes of messages. Messages that were held back continue where they do not have to wait any more.
    pub fn set_path(&mut self, client: usize, master: usize, (requests, replies): (Path, Path), now: Instant) {
        let link = &mut self.links[client][master];
        (link.requests, link.replies) = (requests, replies);
        let held_back = std::mem::take(&mut link.held_back);
        if held_back.is_empty() {
            return;
        }
        // In their order. Messages of a direction that is still held are held back again.
        let at = now + self.delay();
        let link = &mut self.links[client][master];
        (link.arrives, link.last_arrival) = (link.arrives.max(at), link.last_arrival.max(at));
        for handler in held_back {
            self.at(at, handler);
        }
    }

    /// Breaks all connections to a server whose process has ended, as far as clients can be told.
    pub fn break_all(&mut self, server: usize, now: Instant) {
        for client in 0..self.links.len() {
            for master in 0..self.links[client].len() {
                let Link { server: other, connection, process, replies, .. } = self.links[client][master];
                if other == server && replies == Path::Open {
                    let of = Connection { client, master, number: connection, process };
                    let at = now + self.delay();
                    self.at(at, move |state, at| state.disconnect(of, at));
                }
            }
        }
    }
}
