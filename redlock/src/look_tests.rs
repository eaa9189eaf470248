//! How one that waits judges what it sees and hears.

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

#[test]
fn a_held_lock_is_tried_again_when_a_majority_of_its_keys_has_expired() {
    let look = Look::judge(majority_of_five(), &shown(&[a(500), a(100), a(300), None, None]));
    assert_eq!(look.holder.as_deref(), Some("a@1"));
    assert_eq!((look.lock, look.needed), (Lock::Held(Duration::from_millis(101)), 1));
    let look = Look::judge(majority_of_five(), &shown(&[a(500), a(100), a(300), a(200), a(400)]));
    assert_eq!((look.lock, look.needed), (Lock::Held(Duration::from_millis(301)), 3));
}

#[test]
fn a_split_vote_has_no_holder_to_wait_for() {
    let b = Some(("b@2", 500));
    let look = Look::judge(majority_of_five(), &shown(&[a(500), a(500), b, b, None]));
    assert_eq!((look.lock, look.is_plain), (Lock::Split, false));
}

#[test]
fn a_silent_master_may_be_the_holders() {
    let mut seen = shown(&[a(500), a(500), None, None]);
    seen.push(Err(MasterError::Timeout));
    assert_eq!(Look::judge(majority_of_five(), &seen).lock, Lock::Held(Duration::from_millis(501)));
}

#[test]
fn a_look_is_over_when_a_majority_shows_the_same() {
    let silent = || Err(MasterError::Timeout);
    for (owners, lock, is_plain) in [
        (vec![a(500), a(500), a(500)], Lock::Held(Duration::from_millis(501)), true),
        (vec![None, None, None], Lock::Free, true),
        (vec![a(500), a(500), None], Lock::Held(Duration::from_millis(501)), false),
        (vec![None, None], Lock::Unknown, false),
    ] {
        let mut seen = shown(&owners);
        seen.resize_with(5, silent);
        let look = Look::judge(majority_of_five(), &seen);
        assert_eq!((look.lock, look.is_plain), (lock, is_plain), "{owners:?}");
    }
}

#[test]
fn whom_most_masters_name_goes_first_and_all_who_hear_the_same_agree() {
    let token = Token::new(5).unwrap();
    let turn = |named: &[&str]| {
        let mut release = Release::of(token);
        for (master, next) in named.iter().enumerate() {
            release.hear(master, Box::from(*next));
        }
        ["a@1", "b@2", "c@3"].map(|waiter| release.call(waiter) == Call::Mine)
    };
    assert_eq!(turn(&["b@2", "b@2", "a@1"]), [false, true, false]);
    assert_eq!(turn(&["b@2", "a@1", "c@3"]), [true, false, false]);
    assert_eq!(turn(&["d@4"]), [false, false, false]);
}
