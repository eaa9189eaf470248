//! A changed spec is carried to the pods one at a time. No IO.
//!
//! A replaced master is empty: leases that were granted before it came back are not on it. So the next one is taken down only
//! when every master has been armed for maxTTL, and each lease has either ended or been renewed, which seeds it again. A pod
//! that never voted is replaced at once.

use std::time::Duration;

use super::decide::{Action, Decision, MasterFound, Rules};
use super::snapshot::Stage;
use crate::api::cluster::MasterState;

/// Turns the decision about an outdated pod, made from something other than `wanted`, into its deletion if its time has come.
pub fn replace_outdated(rules: &Rules, masters: &[MasterFound], decisions: &mut [Decision], wanted: &str) {
    let outdated = |master: &MasterFound| {
        let alive = master.pod.ours().filter(|pod| matches!(pod.stage, Stage::Pending | Stage::Running));
        alive.is_some_and(|pod| pod.hash.as_deref() != Some(wanted))
    };
    let settle = longest_wait(rules, decisions);
    let mut taken_down = false;
    for (master, decision) in masters.iter().zip(decisions) {
        if !outdated(master) {
            continue;
        }
        // A record without a run_id is of a pod whose server was never armed; about to be armed is not yet.
        let never_voted = decision.row.run_id.is_none() || decision.action == Action::Arm;
        match settle {
            _ if never_voted => take_down(decision),
            Some(Duration::ZERO) if !taken_down => {
                take_down(decision);
                taken_down = true;
            }
            Some(wait) if !wait.is_zero() => decision.wake = Some(decision.wake.map_or(wait, |wake| wake.min(wait))),
            _ => {}
        }
    }
}

/// How long until every master has been armed for maxTTL; `None` while one is not armed.
fn longest_wait(rules: &Rules, decisions: &[Decision]) -> Option<Duration> {
    let waits = decisions.iter().map(|decision| {
        let armed = decision.row.state == MasterState::Armed && decision.action == Action::Nothing;
        let since = decision.row.armed_since.as_ref().filter(|_| armed)?;
        let elapsed = Duration::try_from(rules.now.duration_since(since.0)).unwrap_or_default();
        Some(rules.max_ttl.saturating_sub(elapsed))
    });
    waits.collect::<Option<Vec<_>>>()?.into_iter().max()
}

fn take_down(decision: &mut Decision) {
    decision.action = Action::Delete;
    decision.row.state = MasterState::Terminating;
    decision.row.armed_since = None;
    decision.row.message = Some("its pod is replaced: the spec has changed".to_owned());
}

#[cfg(test)]
#[path = "roll_tests.rs"]
mod tests;
