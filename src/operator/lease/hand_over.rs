//! How a leader that reaches no master gives the Lease to a follower that does: by annotations of the record. Pure.
//!
//! 1. A leader that has reached no majority of any cluster for a while *asks*, by a number that is new each time.
//! 2. A follower that reaches a majority now *offers*, naming that number and itself.
//! 3. The leader stops leading, and then writes the follower's name into the record. The follower finds the record to be its
//!    own, and leads.
//!
//! # It does not go to and fro
//! The Lease moves only to a process that has reached a majority *after* the leader asked, and only from one that did not for
//! a while before. A process that reaches none makes no offer: where nobody reaches any, the Lease stays where it is. Whoever
//! gets it asks only after it has reached none for as long itself.
//!
//! No clock is compared: the number says that an offer is newer than the question. Each step is a compare-and-swap. If the
//! leader dies in between, or the follower does, the record expires as ever.

use k8s_openapi::api::coordination::v1::Lease;

/// Annotation: the leader's question.
const ASKS: &str = "redlock.dev/asks";
/// Annotation: the number of the question, and the identity of the follower that answers it.
const OFFERS: &str = "redlock.dev/offers";

/// What the leader does about its record, beside renewing it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LeaderStep {
    /// Nothing is wrong: no question is left.
    Keep,
    /// Ask, or go on asking, with this number.
    Ask(String),
    /// Give the record to this process.
    GiveTo(String),
}

/// The leader's step. `asked`: the number of its own question, if it has asked; `fresh`: a number for a new one.
pub(super) fn leader_step(lease: &Lease, is_cut_off: bool, asked: Option<&str>, fresh: String) -> LeaderStep {
    if !is_cut_off {
        return LeaderStep::Keep;
    }
    let Some(asked) = asked else { return LeaderStep::Ask(fresh) };
    let offer = annotation(lease, OFFERS).and_then(|offer| offer.split_once(' '));
    match offer {
        Some((number, follower)) if number == asked && !follower.is_empty() => LeaderStep::GiveTo(follower.to_owned()),
        _ => LeaderStep::Ask(asked.to_owned()),
    }
}

/// The record with an offer of this process; `None` if it has none to make.
pub(super) fn offered(lease: &Lease, has_majority: bool, identity: &str) -> Option<Lease> {
    let number = annotation(lease, ASKS).filter(|_| has_majority)?;
    let is_offered = annotation(lease, OFFERS).is_some_and(|offer| offer.split(' ').next() == Some(number));
    let offer = format!("{number} {identity}");
    // The first that offers gets it.
    (!is_offered).then(|| with(lease.clone(), Some(number.to_owned()), Some(offer)))
}

/// The record with this question, and with the offer that answers it; without, with neither.
pub(super) fn asking(lease: Lease, number: Option<String>) -> Lease {
    let offer = annotation(&lease, OFFERS).map(str::to_owned).filter(|_| number.is_some());
    with(lease, number, offer)
}

/// Whether the leader asks.
pub(super) fn is_asked(lease: &Lease) -> bool {
    annotation(lease, ASKS).is_some()
}

fn annotation<'a>(lease: &'a Lease, key: &str) -> Option<&'a str> {
    lease.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn with(mut lease: Lease, question: Option<String>, offer: Option<String>) -> Lease {
    let annotations = lease.metadata.annotations.get_or_insert_default();
    for (key, value) in [(ASKS, question), (OFFERS, offer)] {
        match value {
            Some(value) => drop(annotations.insert(key.to_owned(), value)),
            None => drop(annotations.remove(key)),
        }
    }
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(lease: &Lease, is_cut_off: bool, asked: Option<&str>) -> LeaderStep {
        leader_step(lease, is_cut_off, asked, "new".to_owned())
    }

    #[test]
    fn the_lease_goes_to_who_answers_this_very_question() {
        let plain = Lease::default();
        assert_eq!(step(&plain, false, None), LeaderStep::Keep);
        assert_eq!(step(&plain, true, None), LeaderStep::Ask("new".to_owned()));
        let asked = asking(plain.clone(), Some("7".to_owned()));
        assert!(is_asked(&asked) && !is_asked(&plain));
        assert_eq!(step(&asked, true, Some("7")), LeaderStep::Ask("7".to_owned()));

        assert_eq!(offered(&plain, true, "b"), None, "nobody asks");
        assert_eq!(offered(&asked, false, "b"), None, "it reaches none either");
        let answered = offered(&asked, true, "b").expect("an offer");
        assert_eq!(offered(&answered, true, "c"), None, "one is enough");
        assert_eq!(step(&answered, true, Some("7")), LeaderStep::GiveTo("b".to_owned()));
        assert_eq!(step(&answered, false, Some("7")), LeaderStep::Keep, "it reaches them again");
        assert_eq!(step(&answered, true, Some("8")), LeaderStep::Ask("8".to_owned()), "of an earlier question");
        assert_eq!(step(&answered, true, None), LeaderStep::Ask("new".to_owned()), "of another leader's question");
        let again = asking(answered.clone(), Some("8".to_owned()));
        assert!(offered(&again, true, "b").is_some(), "an old offer answers no new question");
        let none = asking(answered, None);
        assert_eq!(none.metadata.annotations, Some([].into()));
    }
}
