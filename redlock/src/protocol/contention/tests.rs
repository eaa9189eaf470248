//! How the masters' answers and messages are interpreted for a waiting contender.

use super::*;

fn majority_of_five() -> Quorum {
    Quorum::of(5)
}

fn shown(owners: &[Option<(&str, u64)>]) -> Vec<Result<Queued, MasterError>> {
    let reading = |o: &Option<(&str, u64)>| Reading {
        owner: o.map(|(owner, _)| owner.to_owned()),
        remaining: o.map(|(_, left)| Duration::from_millis(left)),
        fence: None,
    };
    owners.iter().map(|o| Ok(Queued { reading: reading(o), ahead: 0 })).collect()
}

/// A master where the holder has so many milliseconds left.
#[allow(clippy::unnecessary_wraps)] // In the form of what a master shows.
fn a(left: u64) -> Option<(&'static str, u64)> {
    Some(("a@1", left))
}

fn token(value: u64) -> Token {
    Token::new(value).unwrap()
}

#[test]
fn a_held_lock_is_tried_again_when_a_majority_of_its_keys_has_expired() {
    let seen = Contention::of(majority_of_five(), &shown(&[a(500), a(100), a(300), None, None]));
    assert_eq!(seen.holder.as_deref(), Some("a@1"));
    assert_eq!((seen.standing, seen.needed), (Standing::Held(Duration::from_millis(101)), 1));
    let seen = Contention::of(majority_of_five(), &shown(&[a(500), a(100), a(300), a(200), a(400)]));
    assert_eq!((seen.standing, seen.needed), (Standing::Held(Duration::from_millis(301)), 3));
}

#[test]
fn a_split_vote_has_no_holder_to_wait_for() {
    let b = Some(("b@2", 500));
    let seen = Contention::of(majority_of_five(), &shown(&[a(500), a(500), b, b, None]));
    assert_eq!((seen.standing, seen.is_decided), (Standing::Split, false));
}

#[test]
fn a_silent_master_may_be_the_holders() {
    let mut answers = shown(&[a(500), a(500), None, None]);
    answers.push(Err(MasterError::Timeout));
    let seen = Contention::of(majority_of_five(), &answers);
    assert_eq!(seen.standing, Standing::Held(Duration::from_millis(501)));
}

#[test]
fn the_standing_is_decided_when_a_majority_shows_the_same() {
    let silent = || Err(MasterError::Timeout);
    for (owners, standing, is_decided) in [
        (vec![a(500), a(500), a(500)], Standing::Held(Duration::from_millis(501)), true),
        (vec![None, None, None], Standing::Free, true),
        (vec![a(500), a(500), None], Standing::Held(Duration::from_millis(501)), false),
        (vec![None, None], Standing::Unknown, false),
    ] {
        let mut answers = shown(&owners);
        answers.resize_with(5, silent);
        let seen = Contention::of(majority_of_five(), &answers);
        assert_eq!((seen.standing, seen.is_decided), (standing, is_decided), "{owners:?}");
    }
}

#[test]
fn the_place_in_the_queue_is_the_median_of_what_masters_say() {
    let ahead = |ahead: &[usize]| {
        let answers: Vec<_> = ahead.iter().map(|&ahead| Ok(Queued { ahead, ..Queued::default() })).collect();
        Contention::of(majority_of_five(), &answers).ahead
    };
    assert_eq!(ahead(&[9, 0, 2, 1, 2]), 2);
    assert_eq!(ahead(&[usize::MAX; 5]), 1000, "bounded, since it is a factor of times");
    assert_eq!(ahead(&[]), 0);
}

#[test]
fn a_contender_whose_time_is_over_learns_who_held_the_lock() {
    let error = |owners: &[Option<(&str, u64)>]| Contention::of(majority_of_five(), &shown(owners)).to_error();
    let contended = |holder: &str, remaining: Option<u64>| Error::Contended {
        holder: Some(holder.to_owned()),
        remaining: remaining.map(Duration::from_millis),
    };
    assert_eq!(error(&[a(500), a(500), a(500), None, None]), contended("a@1", Some(501)));
    assert_eq!(error(&[a(500), None, None, None, None]), Error::Split);
    assert_eq!(error(&[None; 5]), Error::Split);
}

#[test]
fn a_key_that_never_expires_on_a_majority_is_waited_for_without_an_end_in_sight() {
    let endless = || {
        let reading = Reading { owner: Some("6f1c".to_owned()), ..Reading::default() };
        Ok(Queued { reading, ahead: 0 })
    };
    let contention = Contention::of(Quorum::of(3), &[endless(), endless(), Ok(Queued::default())]);
    assert_eq!(contention.standing, Standing::Held(ENDLESS));
    let held = Error::Contended { holder: Some("6f1c".to_owned()), remaining: None };
    assert_eq!(contention.to_error(), held);
    // On a minority it is in nobody's way.
    let contention = Contention::of(Quorum::of(3), &[endless(), Ok(Queued::default()), Ok(Queued::default())]);
    assert_eq!(contention.standing, Standing::Free);
}

#[test]
fn the_contender_that_most_masters_name_goes_first_and_all_who_hear_the_same_agree() {
    let turn = |named: &[&str]| {
        ["a@1", "b@2", "c@3"].map(|place| {
            let mut messages = ReleaseMessages::new(None, 5);
            for (master, next) in named.iter().enumerate() {
                messages.hear(master, token(5), Box::from(*next), place);
            }
            messages.next_turn(place) == NextTurn::Ours
        })
    };
    assert_eq!(turn(&["b@2", "b@2", "a@1"]), [false, true, false]);
    assert_eq!(turn(&["b@2", "a@1", "c@3"]), [true, false, false]);
    assert_eq!(turn(&["d@4"]), [false, false, false]);
}

#[test]
fn a_release_is_heard_when_enough_masters_told_of_it_and_late_messages_do_not_count() {
    use MessageVerdict::{Decided, First, Further, Late};
    let mut messages = ReleaseMessages::new(Some(token(5)), 3);
    assert_eq!(messages.next_turn("a@1"), NextTurn::Nobody);
    for (master, of, verdict) in [
        (0, 4, Late),
        (0, 5, First),
        (0, 5, Further),
        (1, 5, Further),
        // A newer release: what was heard of the former is void.
        (2, 7, First),
        (3, 5, Late),
        (1, 7, Further),
        (0, 7, Decided(NextTurn::Another(token(7)))),
    ] {
        assert_eq!(messages.hear(master, token(of), "b@2".into(), "a@1"), verdict, "master {master}, token {of}");
    }
    assert_eq!(messages.next_turn("b@2"), NextTurn::Ours);
    assert_eq!(ReleaseMessages::new(None, 1).hear(0, token(1), "b@2".into(), "b@2"), Decided(NextTurn::Ours));
}
