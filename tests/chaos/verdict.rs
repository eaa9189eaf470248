//! Judges what was seen: no two held a lock at once, and its tokens rose. An overlap is a proof, not a guess.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::time::Duration;

use redlock_test_servers::stamp::Stamp;

use crate::history::{Grant, Source, Span};

/// A time in which a grant certainly held a lock, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) lock: usize,
    pub(crate) grant: Grant,
    pub(crate) from: Stamp,
    pub(crate) to: Stamp,
    /// Whether it held for all of this time. A single word was true at an unknown moment of it.
    pub(crate) is_certain: bool,
    pub(crate) by: String,
}

/// What a run has shown.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// Pairs of claims to one lock by different grants that certainly overlap.
    pub(crate) overlaps: Vec<(Claim, Claim)>,
    /// Pairs of grants of which the later one does not have the larger token.
    pub(crate) falls: Vec<(Claim, Claim)>,
    /// Spans of sidecars, of other libraries, and of servers: of which each observer has seen something.
    pub(crate) seen: [usize; 3],
    /// Times in which a majority of servers had one grant.
    pub(crate) majorities: usize,
    /// Distinct grants that were seen.
    pub(crate) grants: usize,
    /// How often a lock was seen with another grant than before.
    pub(crate) hand_overs: usize,
    /// Writes with a token that was seen to be outdated: the resource refused them.
    pub(crate) refused_writes: usize,
    /// For how long no claim to a lock was seen, at the longest, and which lock.
    pub(crate) longest_gap: (Duration, usize),
}

// === impl Verdict ===

impl Verdict {
    /// Judges `spans`, of a cluster whose quorum is `quorum` and whose longest TTL is `max_ttl`.
    pub(crate) fn of(spans: &[Span], quorum: usize, max_ttl: Duration) -> Self {
        let told = told(spans);
        let mut claims = told.clone();
        let majorities = majorities(spans, quorum);
        claims.extend(majorities.iter().cloned());
        claims.sort_by_key(|claim| claim.from);
        let distinct: BTreeSet<_> = claims.iter().map(|claim| (claim.lock, claim.grant.holder())).collect();
        let grants = distinct.len();
        // Nobody renews what was not granted, so a key that outlives its longest TTL is that of a grant.
        let was_renewed = |claim: &&Claim| claim.to - claim.from > max_ttl;
        let mut granted: Vec<_> = told.iter().chain(majorities.iter().filter(was_renewed)).collect();
        granted.sort_by_key(|claim| claim.from);
        Self {
            overlaps: overlaps(&claims),
            falls: falls(&granted),
            seen: seen(spans),
            majorities: majorities.len(),
            grants,
            hand_overs: hand_overs(&claims),
            refused_writes: refused_writes(spans),
            longest_gap: longest_gap(&claims),
        }
    }

    /// Whether a promise was broken.
    pub(crate) fn is_violated(&self) -> bool {
        !self.overlaps.is_empty() || !self.falls.is_empty()
    }

    /// The violations, a line each.
    pub(crate) fn violations(&self) -> String {
        let mut text = String::new();
        for (what, pairs) in [("held by two", &self.overlaps), ("a token fell", &self.falls)] {
            for (earlier, later) in pairs {
                let _ = writeln!(text, "lock {}: {what}: {earlier:?} and {later:?}", earlier.lock);
            }
        }
        text
    }
}

fn seen(spans: &[Span]) -> [usize; 3] {
    let count = |is_it: fn(&Source) -> bool| spans.iter().filter(|span| is_it(&span.source)).count();
    [
        count(|source| matches!(source, Source::Sidecar(_))),
        count(|source| matches!(source, Source::Library(_))),
        count(|source| matches!(source, Source::Server { .. })),
    ]
}

/// What sidecars told their applications, and other libraries their programs.
fn told(spans: &[Span]) -> Vec<Claim> {
    let told = spans.iter().filter(|span| !matches!(span.source, Source::Server { .. }));
    let told = told.map(|span| Claim {
        lock: span.lock,
        grant: span.grant.clone(),
        is_certain: span.first_received <= span.last_sent,
        from: span.first_received.min(span.last_sent),
        to: span.last_sent.max(span.first_received),
        by: format!("{:?}", span.source),
    });
    let mut told: Vec<_> = told.collect();
    told.sort_by_key(|claim| claim.from);
    told
}

/// The times in which servers of at least `quorum` masters certainly had the key of a grant.
fn majorities(spans: &[Span], quorum: usize) -> Vec<Claim> {
    let mut by_grant = BTreeMap::<(usize, &Grant), Vec<(&str, Stamp, Stamp)>>::new();
    for span in spans {
        if let Source::Server { master, .. } = &span.source
            && span.first_received <= span.last_sent
        {
            by_grant.entry((span.lock, &span.grant)).or_default().push((master, span.first_received, span.last_sent));
        }
    }
    let mut claims = Vec::new();
    for ((lock, grant), times) in by_grant {
        let mut edges: Vec<(Stamp, i32, &str)> =
            times.iter().flat_map(|&(master, from, to)| [(from, 1, master), (to, -1, master)]).collect();
        // At one moment ends come first: what touches does not overlap.
        edges.sort_unstable();
        // Two servers of one master are one vote.
        let (mut servers, mut since) = (BTreeMap::<&str, i32>::new(), None);
        for (at, change, master) in edges {
            *servers.entry(master).or_default() += change;
            let is_majority = servers.values().filter(|count| **count > 0).count() >= quorum;
            match since {
                None if is_majority => since = Some(at),
                Some(from) if !is_majority => {
                    let by = format!("{quorum} masters");
                    claims.push(Claim { lock, grant: grant.clone(), from, to: at, is_certain: true, by });
                    since = None;
                }
                _ => {}
            }
        }
    }
    claims
}

fn overlaps(claims: &[Claim]) -> Vec<(Claim, Claim)> {
    let (mut found, mut last) = (Vec::new(), HashMap::<usize, Vec<&Claim>>::new());
    for claim in claims {
        let open = last.entry(claim.lock).or_default();
        open.retain(|earlier| earlier.to > claim.from);
        found.extend(
            open.iter()
                .filter(|earlier| earlier.grant.is_another(&claim.grant) && is_proof(earlier, claim))
                .map(|earlier| ((*earlier).clone(), claim.clone())),
        );
        open.push(claim);
    }
    found
}

/// Whether two claims certainly overlap. The unknown moment of a single word must be within the time of the other, whenever it was.
fn is_proof(one: &Claim, other: &Claim) -> bool {
    let is_within = |inner: &Claim, outer: &Claim| outer.from <= inner.from && inner.to <= outer.to;
    match (one.is_certain, other.is_certain) {
        (true, true) => one.from < other.to && other.from < one.to,
        (true, false) => is_within(other, one),
        (false, true) => is_within(one, other),
        (false, false) => false,
    }
}

/// The grants that came after another of the same lock, and do not have a larger token. Only grants that somebody was told of, or that
/// were renewed: a majority may have the key of an attempt that was not granted, just because its token is too small.
fn falls(claims: &[&Claim]) -> Vec<(Claim, Claim)> {
    let (mut found, mut highest) = (Vec::new(), HashMap::<usize, &Claim>::new());
    for claim in claims.iter().filter(|claim| claim.grant.token().is_some()) {
        match highest.get(&claim.lock) {
            // Those that were seen at the same time are judged as an overlap; one token of two grants is wrong at any time.
            Some(before) if before.grant.token() > claim.grant.token() => {
                if before.to < claim.from {
                    found.push(((*before).clone(), (*claim).clone()));
                }
            }
            Some(before) if before.grant.token() == claim.grant.token() && before.grant.is_another(&claim.grant) => {
                found.push(((*before).clone(), (*claim).clone()));
            }
            _ => drop(highest.insert(claim.lock, claim)),
        }
    }
    found
}

/// A resource that each sidecar's application writes to with the token that it was told: how many writes it refuses because it has
/// seen a larger one.
fn refused_writes(spans: &[Span]) -> usize {
    let mut highest = HashMap::<usize, u64>::new();
    let mut writes: Vec<_> = spans
        .iter()
        .filter(|span| matches!(span.source, Source::Sidecar(_)))
        .flat_map(|span| [(span.first_received, span), (span.last_received, span)])
        .collect();
    writes.sort_by_key(|(at, _)| *at);
    let mut refused = 0;
    for (_, span) in writes {
        let Some(token) = span.grant.token() else { continue };
        let highest = highest.entry(span.lock).or_insert(token);
        if token < *highest {
            refused += 1;
        }
        *highest = token.max(*highest);
    }
    refused
}

fn hand_overs(claims: &[Claim]) -> usize {
    let (mut count, mut last) = (0, HashMap::<usize, &Grant>::new());
    for claim in claims {
        if last.insert(claim.lock, &claim.grant).is_some_and(|before| before.holder() != claim.grant.holder()) {
            count += 1;
        }
    }
    count
}

fn longest_gap(claims: &[Claim]) -> (Duration, usize) {
    let (mut longest, mut ends) = ((Duration::ZERO, 0), HashMap::<usize, Stamp>::new());
    for claim in claims {
        let end = ends.entry(claim.lock).or_insert(claim.to);
        if claim.from > *end && claim.from - *end > longest.0 {
            longest = (claim.from - *end, claim.lock);
        }
        *end = claim.to.max(*end);
    }
    longest
}

/// How long after `since` it took until a lock was certainly held; zero if it was held then. `None`: it was not seen to be.
pub(crate) fn held_after(spans: &[Span], quorum: usize, lock: usize, since: Stamp) -> Option<Duration> {
    let mut claims = told(spans);
    claims.extend(majorities(spans, quorum));
    let later = claims.iter().filter(|claim| claim.lock == lock && claim.is_certain && claim.to >= since);
    later.map(|claim| claim.from.max(since) - since).min()
}

#[cfg(test)]
mod tests;
