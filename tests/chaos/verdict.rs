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
    /// Pairs of grants of which the later one has the smaller token.
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
    /// Judges `spans`, of a cluster whose quorum is `quorum`.
    pub(crate) fn of(spans: &[Span], quorum: usize) -> Self {
        let told = told(spans);
        let mut claims = told.clone();
        let majorities = majorities(spans, quorum);
        claims.extend(majorities.iter().cloned());
        claims.sort_by_key(|claim| claim.from);
        let distinct: BTreeSet<_> = claims.iter().map(|claim| (claim.lock, claim.grant.clone())).collect();
        Self {
            overlaps: overlaps(&claims),
            falls: falls(&told),
            seen: seen(spans),
            majorities: majorities.len(),
            grants: distinct.len(),
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
        count(|source| matches!(source, Source::Server(_))),
    ]
}

/// What sidecars told their applications, and other libraries their programs.
fn told(spans: &[Span]) -> Vec<Claim> {
    let told = spans.iter().filter(|span| !matches!(span.source, Source::Server(_)));
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

/// The times in which at least `quorum` servers certainly had the key of a grant.
fn majorities(spans: &[Span], quorum: usize) -> Vec<Claim> {
    let mut by_grant = BTreeMap::<(usize, &Grant), Vec<(Stamp, Stamp)>>::new();
    for span in spans.iter().filter(|span| matches!(span.source, Source::Server(_))) {
        if span.first_received <= span.last_sent {
            by_grant.entry((span.lock, &span.grant)).or_default().push((span.first_received, span.last_sent));
        }
    }
    let mut claims = Vec::new();
    for ((lock, grant), times) in by_grant {
        let mut edges: Vec<(Stamp, i32)> = times.iter().flat_map(|&(from, to)| [(from, 1), (to, -1)]).collect();
        // At one moment ends come first: what touches does not overlap.
        edges.sort_unstable();
        let (mut servers, mut since) = (0, None);
        for (at, change) in edges {
            servers += change;
            let is_majority = usize::try_from(servers).unwrap_or(0) >= quorum;
            match since {
                None if is_majority => since = Some(at),
                Some(from) if !is_majority => {
                    let by = format!("{quorum} servers");
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
                .filter(|earlier| earlier.grant != claim.grant && is_proof(earlier, claim))
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

/// The grants that were seen after another of the same lock was, and have a smaller token. Only those that somebody was told of: a
/// majority may have the key of an attempt that was not granted, just because its token is too small.
fn falls(claims: &[Claim]) -> Vec<(Claim, Claim)> {
    let (mut found, mut highest) = (Vec::new(), HashMap::<usize, &Claim>::new());
    for claim in claims.iter().filter(|claim| claim.grant.token().is_some()) {
        match highest.get(&claim.lock) {
            // Those that were seen at the same time are judged as an overlap.
            Some(before) if before.grant.token() > claim.grant.token() => {
                if before.to < claim.from {
                    found.push(((*before).clone(), claim.clone()));
                }
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
        if last.insert(claim.lock, &claim.grant).is_some_and(|before| *before != claim.grant) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::History;

    const QUORUM: usize = 3;

    fn at(ms: u64) -> Stamp {
        (ms * 1_000_000).to_string().parse().unwrap()
    }

    fn judged(history: &History) -> Verdict {
        Verdict::of(&history.spans(), QUORUM)
    }

    /// `source` says `token` at each of these times, in requests of 10 ms.
    fn says(history: &History, source: &Source, token: Option<u64>, times: &[u64]) {
        for &time in times {
            history.said(source, 0, token.map(Grant::Token), at(time), at(time + 10));
        }
    }

    fn sidecar(name: &str) -> Source {
        Source::Sidecar(name.to_owned())
    }

    #[test]
    fn two_who_certainly_lead_at_once_are_found() {
        let history = History::default();
        says(&history, &sidecar("a"), Some(1), &[0, 100, 200]);
        says(&history, &sidecar("b"), Some(2), &[150]);
        let verdict = judged(&history);
        assert_eq!((verdict.overlaps.len(), verdict.falls.len()), (1, 0));
        assert!(verdict.is_violated());
    }

    #[test]
    fn a_hand_over_is_no_overlap_even_where_words_are_on_their_way_at_once() {
        let history = History::default();
        says(&history, &sidecar("a"), Some(1), &[0, 100]);
        says(&history, &sidecar("b"), None, &[50]);
        // Asked while the last answer of the first was on its way.
        says(&history, &sidecar("b"), Some(2), &[105, 200]);
        says(&history, &sidecar("a"), None, &[150]);
        let verdict = judged(&history);
        assert!(!verdict.is_violated(), "{}", verdict.violations());
        assert_eq!((verdict.grants, verdict.hand_overs), (2, 1));
    }

    #[test]
    fn a_word_that_may_be_older_than_the_other_grant_proves_nothing() {
        let history = History::default();
        // Each may have led before the other.
        history.said(&sidecar("a"), 0, Some(Grant::Token(1)), at(0), at(100));
        history.said(&sidecar("b"), 0, Some(Grant::Token(2)), at(50), at(60));
        assert!(judged(&history).overlaps.is_empty());
    }

    #[test]
    fn a_gap_in_the_answers_is_no_proof_that_a_lock_was_given_up_and_a_loss_in_between_is() {
        let history = History::default();
        says(&history, &sidecar("a"), Some(1), &[0, 5000]);
        says(&history, &sidecar("b"), Some(2), &[2000, 2100]);
        assert_eq!(judged(&history).overlaps.len(), 1, "the same grant before and after");
        let history = History::default();
        says(&history, &sidecar("a"), Some(1), &[0]);
        says(&history, &sidecar("a"), None, &[1000]);
        says(&history, &sidecar("b"), Some(2), &[2000, 2100]);
        says(&history, &sidecar("a"), Some(3), &[5000]);
        assert!(!judged(&history).is_violated());
    }

    #[test]
    fn a_token_that_falls_is_found_and_one_of_a_library_without_tokens_is_none() {
        let history = History::default();
        says(&history, &sidecar("a"), Some(7), &[0, 100]);
        history.held(&Source::Library(0), 0, Grant::of("Zm9yZWlnbg"), at(300), at(400));
        says(&history, &sidecar("b"), Some(6), &[1000, 1100]);
        let verdict = judged(&history);
        assert_eq!((verdict.overlaps.len(), verdict.falls.len(), verdict.grants), (0, 1, 3));
        assert_eq!(verdict.refused_writes, 2, "the resource takes neither write of the smaller token");
    }

    #[test]
    fn the_claim_of_a_majority_of_servers_counts_and_a_minority_is_none() {
        let history = History::default();
        for server in 0..2 {
            says(&history, &Source::Server(server), Some(1), &[0, 500]);
        }
        says(&history, &sidecar("b"), Some(2), &[100, 200]);
        assert!(!judged(&history).is_violated());
        says(&history, &Source::Server(2), Some(1), &[0, 500]);
        assert_eq!(judged(&history).overlaps.len(), 1);
    }

    #[test]
    fn two_majorities_at_once_are_found_where_one_master_has_two_servers() {
        let history = History::default();
        for (server, token) in [(0, 1), (1, 1), (2, 1), (102, 2), (3, 2), (4, 2)] {
            says(&history, &Source::Server(server), Some(token), &[0, 500]);
        }
        assert_eq!(judged(&history).overlaps.len(), 1);
    }

    #[test]
    fn a_lock_that_nobody_claims_is_reported_with_the_time() {
        let history = History::default();
        says(&history, &sidecar("a"), Some(1), &[0, 100]);
        says(&history, &sidecar("b"), Some(2), &[2100, 2200]);
        assert_eq!(judged(&history).longest_gap, (Duration::from_millis(2010), 0));
    }
}
