//! Made histories: what is a proof, and what is none.

use super::*;
use crate::history::History;

const QUORUM: usize = 3;
const MAX_TTL: Duration = Duration::from_secs(5);

fn at(ms: u64) -> Stamp {
    (ms * 1_000_000).to_string().parse().unwrap()
}

fn judged(history: &History) -> Verdict {
    Verdict::of(&history.spans(), QUORUM, MAX_TTL)
}

/// `source` says `token` at each of these times, in requests of 10 ms.
fn says(history: &History, source: &Source, token: Option<u64>, times: &[u64]) {
    for &time in times {
        history.said(source, 0, token.map(|token| granted(source, token)), at(time), at(time + 10));
    }
}

fn sidecar(name: &str) -> Source {
    Source::Sidecar(name.to_owned())
}

fn server(master: u32, process: i32) -> Source {
    Source::Server { master: format!("main-{master}"), process: (process, 0) }
}

/// The grant with this token of a sidecar; on servers, of the first attempt of "a" for 1, of "b" for 2.
fn granted(source: &Source, token: u64) -> Grant {
    match source {
        Source::Sidecar(name) => Grant::told(name, token),
        _ => value(if token == 1 { "a" } else { "b" }, token, 7),
    }
}

fn value(identity: &str, token: u64, nonce: u64) -> Grant {
    Grant::of(&format!("{identity}@{token}.{nonce:016x}"))
}

/// Servers of these masters have a grant at each of these times.
fn have(history: &History, masters: std::ops::Range<u32>, grant: Option<&Grant>, times: &[u64]) {
    for master in masters {
        for &time in times {
            history.said(&server(master, 0), 0, grant.cloned(), at(time), at(time + 10));
        }
    }
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
    history.said(&sidecar("a"), 0, Some(Grant::told("a", 1)), at(0), at(100));
    history.said(&sidecar("b"), 0, Some(Grant::told("b", 2)), at(50), at(60));
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
    have(&history, 0..2, Some(&value("a", 1, 7)), &[0, 500]);
    says(&history, &sidecar("b"), Some(2), &[100, 200]);
    assert!(!judged(&history).is_violated());
    have(&history, 2..3, Some(&value("a", 1, 7)), &[0, 500]);
    assert_eq!(judged(&history).overlaps.len(), 1);
}

#[test]
fn two_majorities_at_once_are_found_where_one_master_has_two_servers() {
    let history = History::default();
    for (master, process, token) in [(0, 0, 1), (1, 0, 1), (2, 0, 1), (2, 1, 2), (3, 0, 2), (4, 0, 2)] {
        says(&history, &server(master, process), Some(token), &[0, 500]);
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

#[test]
fn two_who_lead_at_once_with_the_same_token_are_found() {
    let history = History::default();
    says(&history, &sidecar("a"), Some(4), &[0, 100, 200]);
    says(&history, &sidecar("b"), Some(4), &[50, 150]);
    assert_eq!(judged(&history).overlaps.len(), 1);
}

#[test]
fn a_token_that_two_have_one_after_the_other_is_found() {
    let history = History::default();
    says(&history, &sidecar("a"), Some(4), &[0, 100]);
    says(&history, &sidecar("a"), None, &[200]);
    says(&history, &sidecar("b"), Some(4), &[1000, 1100]);
    let verdict = judged(&history);
    assert_eq!((verdict.overlaps.len(), verdict.falls.len(), verdict.grants), (0, 1, 2));
}

#[test]
fn a_leader_whose_key_a_majority_has_is_one_grant() {
    let history = History::default();
    have(&history, 0..5, Some(&value("a", 1, 7)), &[0, 500]);
    says(&history, &sidecar("a"), Some(1), &[100, 200]);
    let verdict = judged(&history);
    assert!(!verdict.is_violated(), "{}", verdict.violations());
    assert_eq!(verdict.grants, 1);
}

#[test]
fn two_servers_of_one_master_are_one_vote() {
    let history = History::default();
    for (master, process) in [(0, 0), (0, 1), (1, 0)] {
        says(&history, &server(master, process), Some(1), &[0, 500]);
    }
    have(&history, 2..5, Some(&value("b", 2, 7)), &[0, 500]);
    let verdict = judged(&history);
    assert_eq!((verdict.overlaps.len(), verdict.majorities), (0, 1), "two of five masters are no majority");
}

#[test]
fn keys_of_two_attempts_make_no_majority() {
    let history = History::default();
    have(&history, 0..2, Some(&value("a", 1, 7)), &[0, 500]);
    have(&history, 2..3, Some(&value("a", 1, 8)), &[0, 500]);
    assert_eq!(judged(&history).majorities, 0);
}

#[test]
fn a_section_that_begins_when_its_validity_is_over_is_no_claim() {
    let history = History::default();
    says(&history, &sidecar("a"), Some(1), &[0, 1000]);
    // The library's program was not run between the grant and its section.
    history.held(&Source::Library(0), 0, Grant::of("Zm9yZWlnbg"), at(500), at(400));
    assert!(!judged(&history).is_violated());
}

#[test]
fn a_token_smaller_than_that_of_a_renewed_lease_is_found_and_an_attempt_alone_proves_no_grant() {
    let history = History::default();
    // No sidecar tells of it: a `DistributedLock` has it. It is there for longer than the longest TTL.
    have(&history, 0..3, Some(&value("job/c", 9, 7)), &[0, 7000]);
    have(&history, 0..3, None, &[7500]);
    says(&history, &sidecar("a"), Some(8), &[8000, 8100]);
    assert_eq!(judged(&history).falls.len(), 1);
    let history = History::default();
    have(&history, 0..3, Some(&value("job/c", 9, 7)), &[0, 3000]);
    have(&history, 0..3, None, &[7500]);
    says(&history, &sidecar("a"), Some(8), &[8000, 8100]);
    assert!(judged(&history).falls.is_empty());
}

#[test]
fn it_is_told_how_long_after_the_storm_a_lock_was_held() {
    let history = History::default();
    says(&history, &sidecar("a"), Some(1), &[0, 100]);
    let after = |history: &History, since| held_after(&history.spans(), QUORUM, 0, at(since));
    assert_eq!(after(&history, 50), Some(Duration::ZERO));
    assert_eq!(after(&history, 1000), None);
    says(&history, &sidecar("b"), Some(2), &[2090, 2200]);
    assert_eq!(after(&history, 1000), Some(Duration::from_millis(1100)));
}
