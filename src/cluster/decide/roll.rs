//! Rolling change: a changed spec reaches the pods one master at a time. No IO.
//!
//! A replaced master is empty: it lacks the leases that were granted before it came back. So the next master is taken down only
//! when every master has been armed for maxTTL. By then each of these leases has ended, or was renewed, and a renewal writes the
//! lease to masters that lack it. A pod that never voted is replaced at once.

use std::time::Duration;

use super::Rules;
use super::master::{MasterAction, MasterPlan};
use crate::api::cluster::MasterState;
use crate::cluster::observed::{ObservedMaster, Stage};

/// Plans the deletion of outdated pods (made from something other than `wanted`) whose turn has come.
pub(crate) fn replace_outdated(rules: &Rules, masters: &[ObservedMaster], plans: &mut [MasterPlan], wanted: &str) {
    let outdated = |master: &ObservedMaster| {
        let alive = master.pod.ours().filter(|pod| matches!(pod.stage, Stage::Pending | Stage::Running));
        alive.is_some_and(|pod| pod.hash.as_deref() != Some(wanted))
    };
    let wait = longest_wait(rules, plans);
    let mut taken_down = false;
    for (master, plan) in masters.iter().zip(plans) {
        if !outdated(master) {
            continue;
        }
        // Without a run_id in its record the server was never armed. One that is about to be armed is not armed yet.
        let never_voted = plan.row.run_id.is_none() || plan.action == MasterAction::Arm;
        match wait {
            _ if never_voted => take_down(plan),
            Some(Duration::ZERO) if !taken_down => {
                take_down(plan);
                taken_down = true;
            }
            Some(wait) if !wait.is_zero() => plan.wake = Some(plan.wake.map_or(wait, |wake| wake.min(wait))),
            _ => {}
        }
    }
}

/// How long until every master has been armed for maxTTL; `None` while one is not armed.
fn longest_wait(rules: &Rules, plans: &[MasterPlan]) -> Option<Duration> {
    let waits = plans.iter().map(|plan| {
        let armed = plan.row.state == MasterState::Armed && plan.action == MasterAction::Nothing;
        let since = plan.row.armed_since.as_ref().filter(|_| armed)?;
        let elapsed = Duration::try_from(rules.now.duration_since(since.0)).unwrap_or_default();
        Some(rules.max_ttl.saturating_sub(elapsed))
    });
    waits.collect::<Option<Vec<_>>>()?.into_iter().max()
}

fn take_down(plan: &mut MasterPlan) {
    plan.action = MasterAction::Delete;
    plan.row.state = MasterState::Terminating;
    plan.row.armed_since = None;
    plan.row.message = Some("its pod is replaced: the spec has changed".to_owned());
}

#[cfg(test)]
mod tests;
