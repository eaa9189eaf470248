//! The parameters of a schedule, drawn from its seed: each has another combination of faults.

use std::time::Duration;

use crate::random::Random;
use crate::rules::{Rule, Rules};
use crate::world::State;

/// Longest lease that masters grant. All times are those of a real deployment, a hundred times shorter.
pub const LONGEST_TTL: Duration = Duration::from_millis(200);
/// Longest lease in schedules in which nothing of a lease may stay behind. No master forgets there, so that it may be
/// longer than the restart delay.
pub const LONG_TTL: Duration = Duration::from_secs(30);
/// How long a lock that somebody waits for may be free once no fault is left: a contender that heard nothing checks it
/// within a second, and its attempt may split the votes with others once.
pub const LONGEST_FREE: Duration = Duration::from_millis(1200);
/// Longest pause of a process, or of one of its tasks; some requests take as long.
pub const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// Time from a master's crash until its next process is armed.
pub const RESTART_DELAY: Duration = Duration::from_millis(210);
/// Call timeout.
pub const CALL_TIMEOUT: Duration = Duration::from_millis(10);
/// Consecutive timeouts after which a connection is closed.
pub const TIMEOUTS_UNTIL_BROKEN: u32 = 3;
/// Bounds of the pause before a connection is made again.
pub const BACKOFF: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(20));
/// How long there are faults.
pub const FAULTS: Duration = Duration::from_millis(500);
/// How long contenders continue after the faults: meanwhile masters come back.
pub const CALM: Duration = Duration::from_millis(300);
/// Wall clocks differ by less than the restart delay.
const WALL_CLOCKS: Duration = Duration::from_millis(200);

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A master crashes.
    Crash,
    /// A master is flushed.
    Flush,
    /// A client is cut off from a minority of masters.
    CutMinority,
    /// A client is cut off from random masters, one way or both.
    CutAny,
    /// A link gets slow.
    Slow,
    /// A connection is reset.
    Reset,
    /// A master's clock is set.
    SetClock,
    /// A process stops for a while.
    Stop,
    /// A process shuts its client down and makes another.
    ShutDown,
}

/// Faults that end no master's data and no client: after these nothing of a lease that was released may stay.
const OF_NETWORK: [Fault; 5] = [Fault::CutMinority, Fault::CutAny, Fault::Slow, Fault::Reset, Fault::Stop];

const ALL: [Fault; 9] = [
    Fault::Crash,
    Fault::Flush,
    Fault::CutMinority,
    Fault::CutAny,
    Fault::Slow,
    Fault::Reset,
    Fault::SetClock,
    Fault::Stop,
    Fault::ShutDown,
];

/// The parameters of a schedule.
#[derive(Clone, Debug)]
pub struct Plan {
    pub rules: Rules,
    pub masters: usize,
    /// Processes with a client each.
    pub clients: usize,
    /// Contenders of each process.
    pub contenders: usize,
    pub locks: usize,
    pub faults: Vec<Fault>,
    /// Mean time between two faults.
    pub pace: Duration,
    /// One in this number of grants is followed at once by a fault.
    pub after_grant: u64,
    /// Processes stop at one in this number of calls and polls; 0 for none.
    pub pauses: u64,
    /// The delay of slow messages, and of the slowest.
    pub long_delay: Duration,
    pub longest_delay: Duration,
    /// Whether the first address of every other client leads to the last server.
    pub wrong_address: bool,
    /// Whether leases last for many seconds, and are released by everybody who had one: then a key that stays behind
    /// keeps a lock from all far longer than any pause does.
    pub long_leases: bool,
    /// By how much wall clocks differ.
    pub wall_clocks: Duration,
    pub longest_ttl: Duration,
    /// For how long a holder works at most.
    pub longest_work: Duration,
    /// For how long there are faults.
    pub faulty_for: Duration,
}

impl Plan {
    pub fn draw(seed: u64, rules: Rules, random: &mut Random) -> Self {
        let needed = match rules.broken {
            Some(Rule::RestartDelay | Rule::LongestTtl | Rule::WallClocks | Rule::RenewalsCarryTokens) => {
                Some(Fault::Crash)
            }
            Some(Rule::ClockJumps) => Some(Fault::SetClock),
            Some(Rule::OneCopy | Rule::SameMasters | Rule::OneServerOneVote) => Some(Fault::CutMinority),
            Some(Rule::ReleasesAreKept) => Some(Fault::Reset),
            None if rules.rolling => Some(Fault::Crash),
            _ => None,
        };
        let long_leases = match rules.broken {
            None => !rules.rolling && random.once_in(4),
            Some(rule) => rule == Rule::ReleasesAreKept,
        };
        let kinds = if long_leases { &OF_NETWORK[..] } else { &ALL };
        let faults = kinds.iter().copied().filter(|fault| random.once_in(2) || needed == Some(*fault)).collect();
        let masters = [1, 3, 3, 5, 5][usize::try_from(seed % 5).expect("small")];
        let broken = |rule| rules.broken == Some(rule);
        Self {
            rules,
            masters,
            // One master less may be missed then.
            wrong_address: masters > 1
                && (broken(Rule::OneServerOneVote) || rules.broken.is_none() && random.once_in(16)),
            clients: 2 + random.index(3),
            contenders: 1 + random.index(4) / 2,
            // Where masters restart under a holder, each lock must have one.
            locks: if rules.rolling { 1 } else { 1 + random.index(3) },
            faults,
            pace: Duration::from_millis(10 + random.below(60)),
            after_grant: 2 + random.below(8),
            pauses: if random.once_in(3) { 0 } else { 100 + random.below(400) },
            long_delay: [CALL_TIMEOUT / 2, CALL_TIMEOUT * 3 / 2][random.index(2)],
            longest_delay: [CALL_TIMEOUT, LONGEST_PAUSE][random.index(2)],
            wall_clocks: WALL_CLOCKS * if broken(Rule::WallClocks) || rules.rolling { 20 } else { 1 },
            longest_ttl: match rules.broken {
                _ if long_leases => LONG_TTL,
                Some(Rule::LongestTtl) => 4 * LONGEST_TTL,
                _ => LONGEST_TTL,
            },
            long_leases,
            // Masters restart one after the other under one holder.
            longest_work: if rules.rolling { 3 * RESTART_DELAY } else { 3 * LONGEST_TTL / 2 },
            faulty_for: if rules.rolling { 3 * FAULTS } else { FAULTS },
        }
    }
}

/// How long a contender waits at most when there are no faults any more: each other contender goes first once, and is
/// followed after its release, or a second later at the latest.
pub fn longest_wait(plan: &Plan) -> Duration {
    let others = u32::try_from(plan.clients * plan.contenders - 1).expect("a few");
    let (longest_lease, each) = if plan.rules.rolling {
        (plan.longest_work, plan.longest_work + Duration::from_secs(1))
    } else {
        // A long lease is released in time.
        (if plan.long_leases { LONGEST_FREE } else { LONGEST_TTL }, Duration::from_secs(1))
    };
    longest_lease + each * others
}

impl State {
    /// The longest lease of this schedule, and whether none of them may stay behind.
    pub fn longest_ttl(&self) -> (Duration, bool) {
        (self.plan.longest_ttl, self.plan.long_leases)
    }
}
