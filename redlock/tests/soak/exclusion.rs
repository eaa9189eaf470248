//! Judges the claims of a run: no two contenders held a lock at once, and its fencing tokens rose.
//!
//! A contender claims the lock from when its lease was granted until just before it releases it or dies, but only as long
//! as the lease itself says that it is held: so also while its process is stopped.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use redlock_engine::{Owner, Token};
use redlock_test_servers::stamp::Stamp;

use crate::history::{Contender, Entry, Event};
use crate::protocol::Said;

/// At most so long before the report of a grant was its vote.
const VOTE: Duration = Duration::from_secs(1);

/// A time for which a contender claims a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub by: Contender,
    pub lock: usize,
    pub owner: String,
    pub from: Stamp,
    /// The earlier of the end of validity and the reported end.
    pub to: Stamp,
}

/// A token that was not larger than that of the grant before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fall {
    pub earlier: Claim,
    pub later: Claim,
    /// Whether the documentation excludes it: a master lost its data meanwhile, and clocks of contenders differ.
    pub is_excluded: bool,
    /// How many masters lost their data between the two.
    pub masters_lost: usize,
}

/// All claims by their beginning. A claim that began after its validity is none.
pub fn claims(entries: &[Entry]) -> Vec<Claim> {
    let (mut claims, mut open) = (Vec::<Claim>::new(), HashMap::<(Contender, usize), usize>::new());
    for Entry { at, event } in entries {
        match event {
            Event::Reported(by, report) => match &report.what {
                Said::Start { until, owner, .. } => {
                    open.insert((*by, report.lock), claims.len());
                    claims.push(Claim { by: *by, lock: report.lock, owner: owner.clone(), from: *at, to: *until });
                }
                Said::Extended { until } => {
                    if let Some(&claim) = open.get(&(*by, report.lock)) {
                        // What was lost is not held again, whatever is reported.
                        let claim = &mut claims[claim];
                        claim.to = if *at < claim.to { *until } else { claim.to };
                    }
                }
                Said::End(_) => end(&mut claims, open.remove(&(*by, report.lock)), *at),
                Said::Waits | Said::GaveUp | Said::Released { .. } => {}
            },
            Event::Dead(by) => {
                let dead: Vec<_> = open.extract_if(|(contender, _), _| contender == by).collect();
                for (_, claim) in dead {
                    end(&mut claims, Some(claim), *at);
                }
            }
            _ => {}
        }
    }
    claims.retain(|claim| claim.from < claim.to);
    claims
}

fn end(claims: &mut [Claim], claim: Option<usize>, at: Stamp) {
    if let Some(claim) = claim {
        claims[claim].to = claims[claim].to.min(at);
    }
}

/// Pairs of claims to one lock of which the second began while the first lasted.
pub fn overlaps(claims: &[Claim]) -> Vec<(Claim, Claim)> {
    let (mut found, mut last) = (Vec::new(), HashMap::<usize, &Claim>::new());
    for claim in claims {
        let longest = last.entry(claim.lock).or_insert(claim);
        if *longest != claim && claim.from < longest.to {
            found.push((longest.clone(), claim.clone()));
        }
        if claim.to > longest.to {
            *longest = claim;
        }
    }
    found
}

/// The grants whose token was not larger than that of the grant before.
pub fn falls(claims: &[Claim], entries: &[Entry]) -> Vec<Fall> {
    let wrong_clock = entries.iter().find(|entry| matches!(entry.event, Event::Started(_, offset) if offset != 0));
    let lost = |entry: &Entry| match entry.event {
        Event::Down(master, fault) if fault.forgets() => Some((entry.at, master)),
        _ => None,
    };
    let losses: Vec<_> = entries.iter().filter_map(lost).collect();
    let (mut found, mut last) = (Vec::new(), HashMap::<usize, &Claim>::new());
    for claim in claims {
        if let Some(earlier) = last.insert(claim.lock, claim)
            && token(claim) <= token(earlier)
        {
            // The vote came before the report of it.
            let meanwhile = losses.iter().filter(|(at, _)| *at < claim.from && *at + VOTE > earlier.from);
            let masters_lost = meanwhile.map(|(_, master)| *master).collect::<HashSet<_>>().len();
            let is_excluded = masters_lost > 0 && wrong_clock.is_some_and(|entry| entry.at < claim.from);
            found.push(Fall { earlier: earlier.clone(), later: claim.clone(), is_excluded, masters_lost });
        }
    }
    found
}

/// The token of a claim; none of a claim without a grant.
fn token(claim: &Claim) -> Option<Token> {
    claim.owner.parse::<Owner>().ok().map(|owner| owner.token())
}
