//! Orders to a contender and its reports, a line each on its standard input and output, with one clock for all.

use std::fmt;
use std::str::FromStr;

pub use redlock_test_servers::stamp::{NotUnderstood, Stamp};

/// An order to a contender. It ends when its input ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Report the time of the clock.
    Clock,
    /// From now on acquire the lock again and again, each time for a short section.
    Contend,
    /// Keep the lock in the next section until told to release it.
    Keep,
    /// Make one attempt, and keep the lock if it is granted.
    Try,
    /// Extend the lock that is kept. Our contender renews by itself and ignores this.
    Extend,
    /// Release the lock that is kept.
    Release,
}

/// A report of a contender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The time of the clock.
    Clock(Stamp),
    /// A section begins. Its library says that it holds the lock until `until`, by this value of the key.
    Start { at: Stamp, until: Stamp, value: String },
    /// The section that has just begun lasts until the order to release.
    Kept,
    /// Its library says that the lock is now held until `until`.
    Extended { at: Stamp, until: Stamp },
    /// Its library refused or failed to extend the lock.
    NotExtended,
    /// The section ends. The release is sent after that.
    End(Stamp),
    /// Whether the library says that it released a lock that it still held.
    Released(bool),
    /// The attempt was not granted.
    Denied,
}

// === impl Order ===

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clock => "clock",
            Self::Contend => "contend",
            Self::Keep => "keep",
            Self::Try => "try",
            Self::Extend => "extend",
            Self::Release => "release",
        })
    }
}

impl FromStr for Order {
    type Err = NotUnderstood;

    fn from_str(line: &str) -> Result<Self, NotUnderstood> {
        let all = [Self::Clock, Self::Contend, Self::Keep, Self::Try, Self::Extend, Self::Release];
        all.into_iter().find(|order| order.to_string() == line).ok_or(NotUnderstood)
    }
}

// === impl Report ===

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clock(now) => write!(f, "clock {now}"),
            Self::Start { at, until, value } => write!(f, "start {at} {until} {value}"),
            Self::Kept => f.write_str("kept"),
            Self::Extended { at, until } => write!(f, "extended {at} {until}"),
            Self::NotExtended => f.write_str("not-extended"),
            Self::End(at) => write!(f, "end {at}"),
            Self::Released(held) => write!(f, "released {held}"),
            Self::Denied => f.write_str("denied"),
        }
    }
}

impl FromStr for Report {
    type Err = NotUnderstood;

    fn from_str(line: &str) -> Result<Self, NotUnderstood> {
        Ok(match line.split(' ').collect::<Vec<_>>()[..] {
            ["clock", now] => Self::Clock(now.parse()?),
            ["start", at, until, value] => {
                Self::Start { at: at.parse()?, until: until.parse()?, value: value.to_owned() }
            }
            ["kept"] => Self::Kept,
            ["extended", at, until] => Self::Extended { at: at.parse()?, until: until.parse()? },
            ["not-extended"] => Self::NotExtended,
            ["end", at] => Self::End(at.parse()?),
            ["released", held] => Self::Released(held.parse().map_err(|_| NotUnderstood)?),
            ["denied"] => Self::Denied,
            _ => return Err(NotUnderstood),
        })
    }
}
