//! What is recorded of a pod that the API server refuses, until it is accepted. No IO.
//!
//! # Invariant
//! A refusal that is repeated changes nothing in the record, though its numbers differ: those of a quota count what others use.

use super::validate::Problem;
use crate::api::cluster::MasterStatus;
use crate::operator::events::shorten;

/// What the record of a master with a refused pod begins with.
const REFUSED: &str = "its pod cannot be created: ";
/// Reason of the condition `ConfigValid`.
const POD_REFUSED: &str = "PodRefused";
/// How much of what the API server said is kept. A message of seven masters fits into a condition.
const MAX_BYTES: usize = 600;

/// The message of a record whose pod is refused in these words. `before`: the message of the last refusal, if it was not the first.
pub(crate) fn message(before: Option<&str>, words: &str) -> String {
    let message = format!("{REFUSED}{}", shorten(words, MAX_BYTES));
    match before {
        Some(before) if without_numbers(before) == without_numbers(&message) => before.to_owned(),
        _ => message,
    }
}

/// The problems of the masters whose pods are refused.
pub(crate) fn problems(rows: &[MasterStatus]) -> impl Iterator<Item = Problem> {
    rows.iter().filter_map(|row| {
        let words = row.message.as_ref()?.strip_prefix(REFUSED)?;
        let message = format!("the API server refuses the pod of {}: {words}", row.name);
        Some(Problem { reason: POD_REFUSED, message, blocks_all: false })
    })
}

/// The text with a sign for each word that has a digit.
fn without_numbers(text: &str) -> String {
    let words = text.split_inclusive(|c: char| !c.is_alphanumeric());
    words.map(|word| if word.contains(|c: char| c.is_ascii_digit()) { "#" } else { word }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cluster::MasterState;

    fn quota(used: u32) -> String {
        format!(
            "pods \"votes-0\" is forbidden: exceeded quota: small, requested: pods=1, used: pods={used}, limited: pods=9"
        )
    }

    #[test]
    fn a_refusal_that_is_repeated_with_other_numbers_stays_as_it_was_recorded() {
        let first = message(None, &quota(9));
        assert_eq!(first, format!("its pod cannot be created: {}", quota(9)));
        assert_eq!(message(Some(&first), &quota(11)), first);
        let webhook = |id: &str| format!("admission webhook \"a.b\" denied the request {id} after 1.5s: no");
        let told = message(None, &webhook("5f1c-77ab"));
        assert_eq!(message(Some(&told), &webhook("0d2e-4c19")), told);
        assert_eq!(message(Some(&first), &webhook("1-1")), message(None, &webhook("1-1")), "another refusal");
        assert_eq!(message(Some("its container ended"), &quota(9)), first);
    }

    #[test]
    fn what_is_kept_of_a_refusal_is_bounded() {
        assert!(message(None, &"no ".repeat(10_000)).len() < 700);
    }

    #[test]
    fn a_refused_pod_is_a_problem_until_its_record_says_something_else() {
        let mut rows =
            [MasterStatus::new("votes-0", MasterState::Starting), MasterStatus::new("votes-1", MasterState::Armed)];
        rows[0].message = Some(message(None, &quota(9)));
        let problem = problems(&rows).next().unwrap();
        assert_eq!((problem.reason, problem.blocks_all), ("PodRefused", false));
        assert_eq!(problem.message, format!("the API server refuses the pod of votes-0: {}", quota(9)));
        rows[0].message = None;
        assert_eq!(problems(&rows).count(), 0);
    }
}
