//! The table of phases in `docs/lock.md` is what status shows.

use super::*;

const DOCS: &str = include_str!("../../../../docs/lock.md");
/// How the table begins.
const HEADER: &str = "| situation | `phase` | `Held` | reason |\n|---|---|---|---|\n";

/// What status shows in a situation, as a line of the table.
fn line(situation: &str, status: &DistributedLockStatus) -> String {
    let (truth, reason) = word(status, HELD);
    format!("| {situation} | `{:?}` | `{truth}` | `{reason}` |\n", status.phase.unwrap())
}

#[test]
fn the_documented_phases_are_those_of_the_code() {
    let now = now();
    let (new, lost) = (Case::new, |loss, answer| State::Contending { lost: Some(loss), answer });
    let was_held = || Case::new().after(&held(17, now, 300 * MS), Times::Fresh, now);
    let observed = || Case { lock: fixtures::observed_lock(), ..Case::new() };
    let shown = |case: Case, state: State| case.show(Some(&state), KEEP, now).status;
    let taken_by_another = || Refusal::Contended(Some("f3c1aa0e".to_owned()));
    let somebody = Sighting::Somebody {
        value: "pod-a@17.0000000000000001".to_owned(),
        renewed_at: now.mono,
        valid_until: Some(now.mono + 9_000 * MS),
        votes: 5,
    };
    let unconnected = Obstacle::Unconnected(Unconnected::SecretNotFound("quintet-auth".to_owned()));
    let too_long = Obstacle::TtlAboveMaximum { ttl: 90_000 * MS, max: 60_000 * MS };
    let table: String = [
        ("its cluster does not exist", new().obstructed(&Obstacle::ClusterNotFound, None)),
        ("its spec cannot be carried out, such as a `ttl` above `maxTTL`", new().obstructed(&too_long, None)),
        ("another holds it", shown(new(), State::Contending { lost: None, answer: Some(taken_by_another()) })),
        (
            "too few masters answer",
            shown(new(), State::Contending { lost: None, answer: Some(Refusal::Trouble(trouble(Reason::NoQuorum))) }),
        ),
        ("granted", was_held().base),
        (
            "held, and too few masters answer a new process of the operator",
            shown(was_held(), State::Adopting { owner: owner(17), trouble: Some(trouble(Reason::NoQuorum)) }),
        ),
        ("held, and a new process cannot connect to the cluster", was_held().obstructed(&unconnected, None)),
        ("not renewed in time", shown(was_held(), lost(Loss::Expired { last_failure: None }, None))),
        ("a majority of the masters does not hold it any more", shown(was_held(), lost(Loss::Taken, None))),
        ("lost, and another holds it", shown(was_held(), lost(Loss::Taken, Some(taken_by_another())))),
        ("lost with `onLost: Fail`", shown(was_held(), State::Stopped { loss: Loss::Taken, generation: Some(1) })),
        (
            "about to be released: deleted, refused, or for another `holder`",
            super::super::compute::releasing(&was_held().base, Some(1), now).unwrap(),
        ),
        ("`observe`: nobody holds it", shown(observed(), State::Observed(Sighting::Nobody))),
        ("`observe`: somebody holds it", shown(observed(), State::Observed(somebody))),
        (
            "`observe`: too few masters answer",
            shown(observed(), State::Observed(Sighting::Unknown(trouble(Reason::NoQuorum)))),
        ),
    ]
    .iter()
    .map(|(situation, status)| line(situation, status))
    .collect();
    let (_, documented) = DOCS.split_once(HEADER).expect("a table of phases");
    let documented: String = documented.split_inclusive('\n').take_while(|line| line.starts_with('|')).collect();
    assert_eq!(documented, table, "the table must be:\n{HEADER}{table}");
}
