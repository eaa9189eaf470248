//! The state of the modelled world: masters, clients, requests and answers under way. Packed, so that it is found fast.

/// Masters. Two of them are a majority.
pub const MASTERS: usize = 3;
/// Processes that contend for the one lock.
pub const CLIENTS: usize = 2;
/// Largest token; each attempt has its own.
pub const TOKENS: u8 = 5;
/// [`Master::out`] of an armed master that has restarted and not voted since.
pub const FRESH: u8 = 7;

/// A fencing token, which also identifies the owner: no two attempts have the same.
pub type Token = u8;

/// A kind of request to a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Acquire,
    Renew,
    Seed,
    Release,
    Adopt,
}

pub const KINDS: [Kind; 5] = [Kind::Acquire, Kind::Renew, Kind::Seed, Kind::Release, Kind::Adopt];

/// A master's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    Yes,
    /// It does not have the key.
    Missing,
    /// Another has the key, the token is stale, or the master is not armed.
    No,
}

/// The state of a master's answer to a client's present request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    #[default]
    None,
    /// The master has executed it; its reply is under way.
    SlowYes,
    Yes,
    Missing,
    No,
}

const ANSWERS: [Answer; 5] = [Answer::None, Answer::SlowYes, Answer::Yes, Answer::Missing, Answer::No];

/// A master, with the requests that are under way to it and its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Master {
    /// The owner of its key; 0 if it has no key.
    pub owner: Token,
    /// Ticks until the key expires.
    pub left: u8,
    /// The largest token proposed here.
    pub fence: Token,
    /// 0 or [`FRESH`]: armed. Otherwise one more than the ticks until it may be armed.
    pub out: u8,
    /// A bit for each kind and token.
    pub requests: u32,
    pub answers: [Answer; CLIENTS],
}

/// The bit of a request.
pub fn request(kind: Kind, token: Token) -> u32 {
    1 << (kind as u8 * TOKENS + token - 1)
}

/// The bits of all requests of a token.
pub fn requests_of(token: Token) -> u32 {
    if token == 0 { 0 } else { 0b1_00001_00001_00001_00001 << (token - 1) }
}

impl Master {
    /// Whether it may vote.
    pub fn is_armed(&self) -> bool {
        self.out == 0 || self.out == FRESH
    }

    fn pack(&self) -> u64 {
        u64::from(self.owner)
            | u64::from(self.left) << 3
            | u64::from(self.fence) << 6
            | u64::from(self.out) << 9
            | (self.answers[0] as u64) << 12
            | (self.answers[1] as u64) << 15
            | u64::from(self.requests) << 18
    }

    fn unpack(packed: u64) -> Self {
        Self {
            owner: bits(packed, 0),
            left: bits(packed, 3),
            fence: bits(packed, 6),
            out: bits(packed, 9),
            answers: [ANSWERS[usize::from(bits(packed, 12))], ANSWERS[usize::from(bits(packed, 15))]],
            requests: (packed >> 18) as u32,
        }
    }
}

/// What a client is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    #[default]
    Idle,
    /// It has drawn a token, but not asked yet.
    Drawn,
    /// It has asked for the lock.
    Asking,
    /// It was granted the lock. Its validity may have ended without its notice.
    Holding,
    /// Its process has died or is paused, and a successor knows its owner.
    Orphaned,
    /// The successor has asked to adopt the grant.
    Adopting,
    /// Its process has died for good.
    Dead,
}

const PHASES: [Phase; 7] =
    [Phase::Idle, Phase::Drawn, Phase::Asking, Phase::Holding, Phase::Orphaned, Phase::Adopting, Phase::Dead];

/// A process that contends for the lock, and its successor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Client {
    pub phase: Phase,
    /// Token of its present attempt or grant.
    pub token: Token,
    /// The rest of its validity by its own count.
    pub left: u8,
    /// The validity that a majority's yes would give it now: the TTL counted from when it asked.
    pub window: u8,
    /// Whether it has asked for a renewal.
    pub round: bool,
    pub attempts_left: u8,
    pub rounds_left: u8,
    pub writes_left: u8,
    /// The number of its grant, counted from 1.
    pub grant: u8,
    /// A write that it has begun: the token, and the number of the grant.
    pub writing: Token,
    pub writing_grant: u8,
}

impl Client {
    /// Whether it holds the lock by its own validity.
    pub fn holds(&self) -> bool {
        self.phase == Phase::Holding && self.left > 0
    }

    /// The token of its draw, claim or lease.
    pub fn current(&self) -> Token {
        match self.phase {
            Phase::Drawn | Phase::Asking | Phase::Holding | Phase::Adopting => self.token,
            Phase::Idle | Phase::Orphaned | Phase::Dead => 0,
        }
    }

    fn pack(&self) -> u64 {
        self.phase as u64
            | u64::from(self.token) << 3
            | u64::from(self.left) << 6
            | u64::from(self.window) << 9
            | u64::from(self.round) << 12
            | u64::from(self.attempts_left) << 16
            | u64::from(self.rounds_left) << 18
            | u64::from(self.writes_left) << 20
            | u64::from(self.grant) << 21
            | u64::from(self.writing) << 24
            | u64::from(self.writing_grant) << 27
    }

    fn unpack(packed: u64) -> Self {
        Self {
            phase: PHASES[usize::from(bits(packed, 0))],
            token: bits(packed, 3),
            left: bits(packed, 6),
            window: bits(packed, 9),
            round: packed >> 12 & 1 == 1,
            attempts_left: bits(packed, 16) & 3,
            rounds_left: bits(packed, 18) & 3,
            writes_left: bits(packed, 20) & 1,
            grant: bits(packed, 21),
            writing: bits(packed, 24),
            writing_grant: bits(packed, 27),
        }
    }
}

/// A promise that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// No two clients hold the lock at the same time, each by its own validity.
    Exclusive,
    /// The holder of the lock has the largest token that was ever granted.
    TokensRise,
    /// A validity that has ended never begins again.
    NothingRevived,
    /// The guarded resource takes no write of an earlier grant after one of a later grant.
    NoWriteAfterLater,
    /// The guarded resource takes no write of an earlier grant once there is a later one.
    NoWriteAfterGrant,
}

const PROMISES: [Promise; 5] = [
    Promise::Exclusive,
    Promise::TokensRise,
    Promise::NothingRevived,
    Promise::NoWriteAfterLater,
    Promise::NoWriteAfterGrant,
];

/// The whole world at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub masters: [Master; MASTERS],
    pub clients: [Client; CLIENTS],
    /// A bit for each token that was proposed.
    pub proposed: u8,
    /// The largest token that was granted.
    pub granted: Token,
    /// How many grants there were, where writes are modelled.
    pub grants: u8,
    pub crashes_left: u8,
    pub deaths_left: u8,
    pub successions_left: u8,
    /// The grant of the process that had a successor.
    pub inherited: Token,
    /// Ticks until that process, if it is merely paused, finds that its lease has ended.
    pub former_left: u8,
    /// The guarded resource: the largest token that it has seen, and the latest grant.
    pub seen_token: Token,
    pub seen_grant: u8,
    pub broken: Option<Promise>,
}

/// A packed state. States that differ only by the names of masters or clients are packed the same.
pub type Packed = [u64; MASTERS + 2];

impl State {
    /// Packs it. Unpacked, it is the same up to names.
    pub fn pack(mut self) -> Packed {
        let (mut first, mut second) = (self.clients[0].pack(), self.clients[1].pack());
        if first > second {
            (first, second) = (second, first);
            for master in &mut self.masters {
                master.answers = [master.answers[1], master.answers[0]];
            }
        }
        let [mut a, mut b, mut c] = [self.masters[0].pack(), self.masters[1].pack(), self.masters[2].pack()];
        if a > b {
            (a, b) = (b, a);
        }
        if b > c {
            (b, c) = (c, b);
        }
        if a > b {
            (a, b) = (b, a);
        }
        let rest = u64::from(self.proposed)
            | u64::from(self.granted) << 8
            | u64::from(self.grants) << 11
            | u64::from(self.crashes_left) << 14
            | u64::from(self.deaths_left) << 17
            | u64::from(self.successions_left) << 20
            | u64::from(self.seen_token) << 23
            | u64::from(self.seen_grant) << 26
            | u64::from(self.inherited) << 32
            | u64::from(self.former_left) << 35
            | self.broken.map_or(0, |promise| promise as u64 + 1) << 29;
        [a, b, c, first | second << 32, rest]
    }

    /// The state that was packed.
    pub fn unpack([a, b, c, clients, rest]: Packed) -> Self {
        let broken = usize::from(bits(rest, 29));
        Self {
            masters: [Master::unpack(a), Master::unpack(b), Master::unpack(c)],
            clients: [Client::unpack(clients & 0xffff_ffff), Client::unpack(clients >> 32)],
            proposed: (rest & 0xff) as u8,
            granted: bits(rest, 8),
            grants: bits(rest, 11),
            crashes_left: bits(rest, 14),
            deaths_left: bits(rest, 17),
            successions_left: bits(rest, 20),
            seen_token: bits(rest, 23),
            seen_grant: bits(rest, 26),
            inherited: bits(rest, 32),
            former_left: bits(rest, 35),
            broken: (broken > 0).then(|| PROMISES[broken - 1]),
        }
    }
}

/// Three bits.
fn bits(packed: u64, at: u8) -> u8 {
    (packed >> at & 7) as u8
}
