//! What happened in a run: reports of contenders, faults, and what the masters had.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redlock_test_servers::stamp::Stamp;

use crate::protocol::{Report, Said};

/// A contender's process: each that is started has another number, and the identity `c<number>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Contender(pub u32);

/// What befalls a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MasterFault {
    /// Its process is stopped, then continued.
    Stop,
    /// It is killed, restarts empty, and is armed after the restart delay.
    Crash,
    /// Its data and its marker are deleted, and it is armed after the restart delay.
    Flush,
    /// Its connections are reset, and new ones for a while.
    Cut,
    /// Requests to it are held.
    HoldRequests,
    /// Its answers are held.
    HoldAnswers,
    /// Requests and answers are late.
    Late,
}

/// What befalls a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ContenderFault {
    /// Stopped for less than the shortest TTL.
    ShortStop,
    /// Stopped for about the TTL and longer.
    LongStop,
    /// Killed; another process is started.
    Kill,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Reported(Contender, Report),
    /// The process may run from now on. Its wall clock differs from the machine's by so many seconds.
    Started(Contender, i64),
    /// The process does not run from here at the latest: it is stopped or killed.
    Halted(Contender, ContenderFault),
    /// The process runs again.
    Continued(Contender),
    /// The process is dead, and all its reports are known.
    Dead(Contender),
    /// A master cannot vote from now on.
    Down(usize, MasterFault),
    /// A master is armed, reachable and not stopped again.
    Up(usize),
    /// The owner of a lock on a master has changed to this.
    Seen {
        master: usize,
        lock: usize,
        owner: Option<String>,
    },
    /// The test's own timer was late by so much: the machine was busy.
    Busy(Duration),
}

/// An event and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub at: Stamp,
    pub event: Event,
}

/// The history of a run, which many tasks write.
#[derive(Clone, Debug, Default)]
pub struct History(Arc<Mutex<Vec<Entry>>>);

impl MasterFault {
    pub const ALL: [Self; 7] =
        [Self::Stop, Self::Crash, Self::Flush, Self::Cut, Self::HoldRequests, Self::HoldAnswers, Self::Late];

    /// Whether the master loses its data.
    pub fn forgets(self) -> bool {
        matches!(self, Self::Crash | Self::Flush)
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}", self.0)
    }
}

impl Contender {
    /// The contender of this owner, `c<number>@<token>.<nonce>`.
    pub fn of(owner: &str) -> Option<Self> {
        owner.strip_prefix('c')?.split_once('@')?.0.parse().ok().map(Self)
    }
}

impl History {
    /// Adds what happens now.
    pub fn push(&self, event: Event) {
        self.push_at(Stamp::now(), event);
    }

    pub fn push_at(&self, at: Stamp, event: Event) {
        // A task that panicked has left it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Entry { at, event });
    }

    /// Who holds a lock now, by its latest report.
    pub fn holder(&self, lock: usize) -> Option<Contender> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().rev().find_map(|entry| match &entry.event {
            Event::Reported(by, Report { lock: reported, what, .. }) if *reported == lock => match what {
                Said::Start { .. } | Said::Extended { .. } => Some(Some(*by)),
                Said::End(_) => Some(None),
                _ => None,
            },
            _ => None,
        })?
    }

    /// All so far, by time.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        entries.sort_by_key(|entry| entry.at);
        entries
    }
}

/// The entries of this lock, and those of no lock, from `from` to `to`: a line each, in milliseconds after `from`.
pub fn excerpt(entries: &[Entry], lock: usize, from: Stamp, to: Stamp) -> String {
    let concerns = |event: &Event| match event {
        Event::Reported(_, report) => report.lock == lock,
        Event::Seen { lock: seen, .. } => *seen == lock,
        Event::Busy(late) => *late > Duration::from_millis(100),
        _ => true,
    };
    let within = entries.iter().filter(|entry| from <= entry.at && entry.at <= to && concerns(&entry.event));
    within.fold(String::new(), |text, Entry { at, event }| {
        let what = match event {
            Event::Reported(by, report) => {
                let mut said = format!("{:?}", report.what);
                if let Said::Start { until, .. } | Said::Extended { until } = report.what {
                    said = format!("{said}, valid until {} ms", (until - from).as_millis());
                }
                format!("{by} {said}")
            }
            other => format!("{other:?}"),
        };
        format!("{text}\n{:>7} {what}", (*at - from).as_millis())
    })
}
