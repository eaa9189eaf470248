//! Judges what contenders reported: no two held the lock at once, and our fencing tokens rose.
//!
//! All stamps are of one clock. A contender claims a section from when its library's call has returned until just before
//! the call that releases the lock, but only as long as the library says that the lock is held. So a claim lies within
//! what the library promised, and claims that overlap are a broken promise.

use std::collections::HashMap;
use std::fmt;

use redlock_engine::{Owner, Token};

use crate::protocol::{Report, Stamp};

/// The library by which a contender acquires the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// Go: go-redsync/redsync.
    Redsync,
    /// Node.js: redlock 4.
    Redlock4,
    /// Node.js: redlock 5.
    Redlock5,
    /// Our engine.
    Ours,
}

/// A contender of a test: each process that is started has another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Contender {
    pub library: Library,
    pub number: u32,
}

/// An entry of the history of a run, which is in the order in which the test learned of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A contender's report.
    Reported(Contender, Report),
    /// Its process was dead at that moment, and all its reports are known.
    Dead(Contender, Stamp),
}

/// A time for which a contender claims the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub by: Contender,
    pub value: String,
    pub start: Stamp,
    /// Until when its library says that the lock is held.
    pub valid_until: Stamp,
    /// When the contender ended it, or had died.
    end: Option<Stamp>,
}

impl Library {
    pub const ALL: [Self; 4] = [Self::Redsync, Self::Redlock4, Self::Redlock5, Self::Ours];
    pub const OTHERS: [Self; 3] = [Self::Redsync, Self::Redlock4, Self::Redlock5];
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Redsync => "redsync",
            Self::Redlock4 => "node-redlock 4",
            Self::Redlock5 => "node-redlock 5",
            Self::Ours => "ours",
        })
    }
}

impl Section {
    /// Until when it is claimed.
    fn claimed_until(&self) -> Stamp {
        self.end.map_or(self.valid_until, |end| end.min(self.valid_until))
    }
}

/// The claims of a run, in order of their start. A section that began after its validity is no claim.
pub fn sections(history: &[Entry]) -> Vec<Section> {
    let (mut sections, mut open) = (Vec::<Section>::new(), HashMap::new());
    for entry in history {
        match entry {
            Entry::Reported(by, Report::Start { at, until, value }) => {
                let started = Section { by: *by, value: value.clone(), start: *at, valid_until: *until, end: None };
                assert_eq!(open.insert(*by, sections.len()), None, "{by:?} is in two sections");
                sections.push(started);
            }
            Entry::Reported(by, Report::Extended { at, until }) => {
                let section = &mut sections[open[by]];
                // A lock that was lost is not held again, whatever the library says.
                if *at < section.valid_until {
                    section.valid_until = *until;
                }
            }
            Entry::Reported(by, Report::End(at)) => {
                let ended = open.remove(by).unwrap_or_else(|| panic!("{by:?} ends no section"));
                sections[ended].end = Some(*at);
            }
            Entry::Dead(by, at) => {
                if let Some(cut) = open.remove(by) {
                    sections[cut].end = Some(*at);
                }
            }
            Entry::Reported(..) => {}
        }
    }
    sections.retain(|section| section.start < section.claimed_until());
    sections.sort_by_key(|section| section.start);
    sections
}

/// Pairs of claims of which the second began while the first lasted.
pub fn overlaps(sections: &[Section]) -> Vec<(Section, Section)> {
    let mut found = Vec::new();
    let mut longest: Option<&Section> = None;
    for section in sections {
        match longest {
            Some(earlier) if section.start < earlier.claimed_until() => {
                found.push((earlier.clone(), section.clone()));
                if section.claimed_until() > earlier.claimed_until() {
                    longest = Some(section);
                }
            }
            _ => longest = Some(section),
        }
    }
    found
}

/// The fencing tokens of our sections, in their order.
pub fn tokens(sections: &[Section]) -> Vec<Token> {
    let ours = sections.iter().filter(|s| s.by.library == Library::Ours);
    ours.map(|s| s.value.parse::<Owner>().unwrap_or_else(|e| panic!("{}: {e}", s.value)).token()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const A: Contender = Contender { library: Library::Redsync, number: 1 };
    const B: Contender = Contender { library: Library::Ours, number: 2 };
    const C: Contender = Contender { library: Library::Redlock4, number: 3 };

    fn at(millis: u64) -> Stamp {
        format!("{}", Duration::from_millis(millis).as_nanos()).parse().unwrap()
    }

    fn start(by: Contender, from: u64, until: u64) -> Entry {
        Entry::Reported(by, Report::Start { at: at(from), until: at(until), value: "x".to_owned() })
    }

    fn end(by: Contender, when: u64) -> Entry {
        Entry::Reported(by, Report::End(at(when)))
    }

    fn extended(by: Contender, when: u64, until: u64) -> Entry {
        Entry::Reported(by, Report::Extended { at: at(when), until: at(until) })
    }

    /// Who overlapped with whom.
    fn found(history: &[Entry]) -> Vec<(Contender, Contender)> {
        overlaps(&sections(history)).into_iter().map(|(a, b)| (a.by, b.by)).collect()
    }

    #[test]
    fn sections_that_overlap_are_found() {
        assert_eq!(found(&[start(A, 0, 100), end(A, 50), start(B, 49, 100), end(B, 60)]), [(A, B)]);
        // Whatever the order in which the test learned of them.
        assert_eq!(found(&[start(B, 49, 100), end(B, 60), start(A, 0, 100), end(A, 50)]), [(A, B)]);
        // A short one within a long one does not hide what comes after it.
        let within = [start(A, 0, 100), start(B, 10, 90), end(B, 20), start(C, 30, 90), end(C, 40), end(A, 50)];
        assert_eq!(found(&within), [(A, B), (A, C)]);
        let staggered = [start(A, 0, 100), start(B, 10, 90), end(A, 20), start(C, 30, 90), end(C, 40), end(B, 50)];
        assert_eq!(found(&staggered), [(A, B), (B, C)]);
    }

    #[test]
    fn sections_one_after_the_other_do_not_overlap() {
        assert_eq!(found(&[start(A, 0, 100), end(A, 50), start(B, 50, 100), end(B, 60), start(A, 70, 90)]), []);
    }

    #[test]
    fn nothing_is_claimed_beyond_validity() {
        // Paused past it, and ended late.
        assert_eq!(found(&[start(A, 0, 100), start(B, 100, 200), end(B, 150), end(A, 160)]), []);
        assert_eq!(found(&[start(A, 0, 100), start(B, 99, 200), end(B, 150), end(A, 160)]), [(A, B)]);
        // Granted, and paused past it before the section began.
        assert_eq!(found(&[start(A, 0, 100), end(A, 50), start(B, 20, 20), end(B, 40)]), []);
    }

    #[test]
    fn an_extension_in_time_extends_the_claim() {
        assert_eq!(found(&[start(A, 0, 100), extended(A, 50, 150), start(B, 120, 200), end(A, 140)]), [(A, B)]);
        assert_eq!(found(&[start(A, 0, 100), extended(A, 110, 210), start(B, 120, 200), end(A, 140)]), []);
    }

    #[test]
    fn a_dead_process_claims_until_its_death_and_within_its_validity() {
        let dies = |when| [start(A, 0, 100), Entry::Dead(A, at(when)), start(B, 60, 200)];
        assert_eq!(found(&dies(50)), []);
        assert_eq!(found(&dies(70)), [(A, B)]);
        assert_eq!(found(&[start(A, 0, 100), Entry::Dead(A, at(300)), start(B, 100, 200)]), []);
    }

    #[test]
    fn a_section_that_goes_on_is_claimed_until_its_validity_ends() {
        assert_eq!(found(&[start(A, 0, 100), start(B, 99, 200)]), [(A, B)]);
        assert_eq!(found(&[start(A, 0, 100), start(B, 100, 200)]), []);
    }
}
