//! What a schedule is like: drawn from its seed, each time other kinds of faults together.

use std::time::Duration;

use crate::random::Random;
use crate::rules::{Rule, Rules};

/// Longest lease that masters give. Times are those of a real deployment, a hundred times shorter.
pub const LONGEST_TTL: Duration = Duration::from_millis(200);
/// Longest pause of a process, or of one of its tasks; some requests take as long.
pub const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// Between a master's crash and the process that votes again.
pub const RESTART_DELAY: Duration = Duration::from_millis(210);
/// Limit on a call.
pub const CALL_TIMEOUT: Duration = Duration::from_millis(10);
/// Calls in a row without an answer after which a connection is given up.
pub const TIMEOUTS_UNTIL_BROKEN: u32 = 3;
/// Bounds of the pause before a connection is made again.
pub const BACKOFF: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(20));
/// How long faults go on.
pub const FAULTS: Duration = Duration::from_millis(500);
/// How long contenders ask again and again after that: meanwhile masters come back.
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

/// What a schedule is like.
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
    /// One in so many grants is followed at once by a fault.
    pub after_grant: u64,
    /// One in so many calls, and polls, is where processes stop; 0 for none.
    pub pauses: u64,
    /// What takes long, and what takes as long as a lease.
    pub long_delay: Duration,
    pub longest_delay: Duration,
    /// By how much wall clocks differ.
    pub wall_clocks: Duration,
    pub longest_ttl: Duration,
}

impl Plan {
    pub fn draw(seed: u64, rules: Rules, random: &mut Random) -> Self {
        let needed = match rules.broken {
            Some(Rule::RestartDelay | Rule::LongestTtl | Rule::WallClocks | Rule::RenewalsCarryTokens) => {
                Some(Fault::Crash)
            }
            Some(Rule::ClockJumps) => Some(Fault::SetClock),
            Some(Rule::OneCopy | Rule::SameMasters) => Some(Fault::CutMinority),
            None if rules.rolling => Some(Fault::Crash),
            _ => None,
        };
        let faults = ALL.into_iter().filter(|fault| random.once_in(2) || needed == Some(*fault)).collect();
        let broken = |rule| rules.broken == Some(rule);
        Self {
            rules,
            masters: [1, 3, 3, 5, 5][usize::try_from(seed % 5).expect("small")],
            clients: 2 + random.index(3),
            contenders: 1 + random.index(4) / 2,
            locks: 1 + random.index(3),
            faults,
            pace: Duration::from_millis(10 + random.below(60)),
            after_grant: 2 + random.below(8),
            pauses: if random.once_in(3) { 0 } else { 100 + random.below(400) },
            long_delay: [CALL_TIMEOUT / 2, CALL_TIMEOUT * 3 / 2][random.index(2)],
            longest_delay: [CALL_TIMEOUT, LONGEST_PAUSE][random.index(2)],
            wall_clocks: WALL_CLOCKS * if broken(Rule::WallClocks) || rules.rolling { 20 } else { 1 },
            longest_ttl: LONGEST_TTL * if broken(Rule::LongestTtl) { 4 } else { 1 },
        }
    }
}

/// How long a contender waits at most once nothing goes wrong any more, each other contender going first once: until it
/// hears of a release, or a second at the latest.
pub fn longest_wait(plan: &Plan) -> Duration {
    let others = u32::try_from(plan.clients * plan.contenders - 1).expect("a few");
    LONGEST_TTL + Duration::from_secs(1) * others
}
