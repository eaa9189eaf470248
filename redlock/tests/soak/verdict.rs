//! The verdict on a run: its figures, and what broke a promise, with the history around it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redlock_engine::Owner;
use redlock_test_servers::stamp::Stamp;

use crate::arena::{LOCKS, MASTERS};
use crate::exclusion::{Claim, Fall, claims, falls, overlaps};
use crate::history::{Entry, Event, excerpt};
use crate::idle::{Idle, idle_times, percentiles};
use crate::protocol::Said;

/// How much of the history is shown before and after a violation.
const BEFORE: Duration = Duration::from_secs(3);
const AFTER: Duration = Duration::from_millis(500);
/// Violations of a kind that are shown.
const SHOWN: usize = 3;

pub struct Verdict {
    entries: Vec<Entry>,
    pub grants: usize,
    pub overlaps: Vec<(Claim, Claim)>,
    pub falls: Vec<Fall>,
    pub idles: Vec<Idle>,
}

impl Verdict {
    /// Judges a history. Locks are expected not to be idle until `over`.
    pub fn of(entries: Vec<Entry>, over: Stamp) -> Self {
        let claims = claims(&entries);
        let mut idles: Vec<_> =
            (0..LOCKS.len()).flat_map(|lock| idle_times(&entries, &claims, lock, MASTERS)).collect();
        idles.retain(|idle| idle.from < over);
        for idle in &mut idles {
            idle.to = idle.to.min(over);
        }
        idles.sort_by_key(Idle::length);
        Self { grants: claims.len(), overlaps: overlaps(&claims), falls: falls(&claims, &entries), idles, entries }
    }

    /// Whether a promise was broken.
    pub fn is_violated(&self, idle_fails: bool) -> bool {
        !self.overlaps.is_empty() || self.token_falls() > 0 || idle_fails && self.too_long().next().is_some()
    }

    /// Falls of tokens that the documentation does not exclude.
    pub fn token_falls(&self) -> usize {
        self.falls.iter().filter(|fall| !fall.is_excluded).count()
    }

    /// The idle times that are too long, the longest first.
    pub fn too_long(&self) -> impl Iterator<Item = &Idle> {
        self.idles.iter().rev().filter(|idle| idle.is_too_long())
    }

    /// The violations, each with the history around it.
    pub fn violations(&self) -> String {
        let around = |lock, from: Stamp, to: Stamp| {
            let begins = self.entries.iter().map(|entry| entry.at).find(|at| from - *at <= BEFORE).unwrap_or(from);
            excerpt(&self.entries, lock, begins, to + AFTER)
        };
        let overlaps = self.overlaps.iter().map(|(one, other)| {
            let lock = one.lock;
            format!("overlap on {}: {one:?} and {other:?}{}", LOCKS[lock], around(lock, one.from, other.from))
        });
        let falls = self.falls.iter().filter(|fall| !fall.is_excluded).map(|Fall { earlier, later, .. }| {
            let lock = later.lock;
            format!(
                "token falls on {}: {earlier:?} and {later:?}{}",
                LOCKS[lock],
                around(lock, earlier.from, later.from)
            )
        });
        let idles = self.too_long().map(|idle| {
            let (lock, length, cause) = (idle.lock, idle.length(), idle.cause);
            format!("{} is free for {length:.1?}: {cause:?}{}", LOCKS[lock], around(lock, idle.from, idle.to))
        });
        let shown: Vec<_> = overlaps.take(SHOWN).chain(falls.take(SHOWN)).chain(idles.take(SHOWN)).collect();
        shown.join("\n\n")
    }
}

/// The token of a grant, in microseconds of the clock that drew it.
fn token_micros(event: &Event) -> Option<u64> {
    let Event::Reported(_, report) = event else { return None };
    let Said::Start { owner, .. } = &report.what else { return None };
    Some(owner.parse::<Owner>().ok()?.token().get())
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut faults, mut busy) = (BTreeMap::<String, usize>::new(), Duration::ZERO);
        for Entry { event, .. } in &self.entries {
            match event {
                Event::Halted(_, fault) => *faults.entry(format!("contender {fault:?}")).or_default() += 1,
                Event::Down(_, fault) => *faults.entry(format!("master {fault:?}")).or_default() += 1,
                Event::Started(_, offset) if *offset != 0 => {
                    *faults.entry(format!("contender on a clock {offset:+} s")).or_default() += 1;
                }
                Event::Busy(late) => busy = busy.max(*late),
                _ => {}
            }
        }
        let faults: Vec<_> = faults.iter().map(|(fault, count)| format!("{count} {fault}")).collect();
        let excluded: Vec<_> =
            self.falls.iter().filter(|fall| fall.is_excluded).map(|fall| fall.masters_lost).collect();
        let [half, most, longest] = percentiles(self.idles.iter().map(Idle::length).collect());
        let mut causes = BTreeMap::<_, (usize, Duration)>::new();
        for idle in self.too_long() {
            let (count, longest) = causes.entry(idle.cause).or_default();
            (*count, *longest) = (*count + 1, idle.length().max(*longest));
        }
        writeln!(f, "{} grants of {} locks; faults: {}", self.grants, LOCKS.len(), faults.join(", "))?;
        writeln!(
            f,
            "{} overlaps; {} token falls, and {} that the documentation excludes: clocks differ, and masters lost their data \
             between the two grants (how many: {excluded:?})",
            self.overlaps.len(),
            self.token_falls(),
            excluded.len()
        )?;
        writeln!(
            f,
            "idle time of a free lock: p50 {half:.1?}, p99 {most:.1?}, longest {longest:.1?}, of {} times; \
             the test's timer was late by {busy:.1?} at most",
            self.idles.len()
        )?;
        let ahead = self.entries.iter().filter_map(|entry| token_micros(&entry.event)).max().unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros());
        let ahead = Duration::from_micros(u128::from(ahead).saturating_sub(now).try_into().unwrap_or(u64::MAX));
        writeln!(f, "the largest token is {ahead:.0?} ahead of the right clock")?;
        write!(f, "too long: {}", self.too_long().count())?;
        for (cause, (count, longest)) in causes {
            write!(f, "; {count} {cause:?}, {longest:.1?} at most")?;
        }
        Ok(())
    }
}
