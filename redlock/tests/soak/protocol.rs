//! What contenders report: a line each on their standard output, with the time on the one clock of the machine.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use redlock_test_servers::stamp::{NotUnderstood, Stamp};

/// A report of a contender on one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The lock, by its index.
    pub lock: usize,
    pub at: Stamp,
    pub what: Said,
}

/// What a contender says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It waits for the lock from now on.
    Waits,
    /// It does not wait any more, and has not got the lock.
    GaveUp,
    /// It holds the lock until `until`, as its lease says, by this owner. Masters keep the lock for `ttl` at a time.
    Start { until: Stamp, ttl: Duration, owner: String },
    /// Its lease says that the lock is held until `until` now.
    Extended { until: Stamp },
    /// It does not hold the lock any more. What it does about that on the masters, it does after this.
    End(Ending),
    /// Enough masters have confirmed the release of this owner.
    Released { owner: String },
}

/// How a contender ends a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It releases the lock, and waits for that.
    Release,
    /// It drops the lease, and does not wait for the release.
    Drop,
    /// It leaves the lock on the masters, as a process that crashes does.
    Abandon,
    /// The lease has told it that it is lost.
    Lost,
}

// === impl Report ===

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.lock, self.at)?;
        match &self.what {
            Said::Waits => f.write_str("waits"),
            Said::GaveUp => f.write_str("gave-up"),
            Said::Start { until, ttl, owner } => write!(f, "start {until} {} {owner}", ttl.as_millis()),
            Said::Extended { until } => write!(f, "extended {until}"),
            Said::End(ending) => write!(f, "end {ending}"),
            Said::Released { owner } => write!(f, "released {owner}"),
        }
    }
}

impl FromStr for Report {
    type Err = NotUnderstood;

    fn from_str(line: &str) -> Result<Self, NotUnderstood> {
        let words: Vec<_> = line.split(' ').collect();
        let [lock, at, said @ ..] = &words[..] else { return Err(NotUnderstood) };
        let what = match *said {
            ["waits"] => Said::Waits,
            ["gave-up"] => Said::GaveUp,
            ["start", until, ttl, owner] => {
                let ttl = Duration::from_millis(ttl.parse().map_err(|_| NotUnderstood)?);
                Said::Start { until: until.parse()?, ttl, owner: owner.to_owned() }
            }
            ["extended", until] => Said::Extended { until: until.parse()? },
            ["end", ending] => Said::End(ending.parse()?),
            ["released", owner] => Said::Released { owner: owner.to_owned() },
            _ => return Err(NotUnderstood),
        };
        Ok(Self { lock: lock.parse().map_err(|_| NotUnderstood)?, at: at.parse()?, what })
    }
}

// === impl Ending ===

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Release => "release",
            Self::Drop => "drop",
            Self::Abandon => "abandon",
            Self::Lost => "lost",
        })
    }
}

impl FromStr for Ending {
    type Err = NotUnderstood;

    fn from_str(word: &str) -> Result<Self, NotUnderstood> {
        let all = [Self::Release, Self::Drop, Self::Abandon, Self::Lost];
        all.into_iter().find(|ending| ending.to_string() == word).ok_or(NotUnderstood)
    }
}
