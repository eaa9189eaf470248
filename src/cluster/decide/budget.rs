//! How many masters must stay armed while Kubernetes nodes are drained. No IO.
//!
//! # Invariants
//! 1. No eviction takes the quorum.
//! 2. While every master is armed, or is expected back soon, one at a time is evicted: the next only after the former is armed again.
//! 3. A master that does not come back holds no drain up for ever, as far as the first permits. So while one is out for longer than a
//!    restart takes, the quorum is enough. That lasts until all are armed: an operator that has just started does not know how long a
//!    master has been out, and asks for no more than the one before it.

use std::time::Duration;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use redlock_engine::quorum::Quorum;

use super::Rules;
use super::master::MasterPlan;
use super::objects::ObjectPlan;
use crate::api::cluster::MasterState;
use crate::cluster::build;
use crate::cluster::observed::{Existing, Snapshot};

/// How long the pod of a master may take to start, after its restart delay, before the master counts as broken.
const START: Duration = Duration::from_secs(30);

/// What to do about the budget of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BudgetPlan {
    /// How many masters must stay armed.
    pub(crate) min_available: i32,
    /// What to do about the object.
    pub(crate) object: ObjectPlan<PodDisruptionBudget>,
    /// When a master that is out will count as broken, if it does not come back before.
    pub(crate) wake: Option<Duration>,
}

/// Decides about the budget, given what was decided about the masters.
pub(crate) fn plan_budget(rules: &Rules, snapshot: &Snapshot, plans: &[MasterPlan]) -> BudgetPlan {
    let out = snapshot.masters.iter().zip(plans).filter(|(_, plan)| plan.row.state != MasterState::Armed);
    let longest = out.map(|(master, _)| master.out_for.unwrap_or_default()).max();
    let patience = rules.restart_delay.saturating_add(START);
    let lowered = snapshot.budget.ours().and_then(min_available) == Some(quorum(plans.len()));
    let min_available = match longest {
        Some(longest) if lowered || longest >= patience => quorum(plans.len()),
        _ => i32::try_from(plans.len().saturating_sub(1)).unwrap_or(i32::MAX),
    };
    let object = match &snapshot.budget {
        // A single master has nothing that could be kept: a drain takes it.
        _ if plans.len() < 2 => ObjectPlan::Leave,
        Existing::Absent => ObjectPlan::Create,
        Existing::Ours(live) => ObjectPlan::applying(live, build::budget(&snapshot.cluster, min_available)),
        Existing::Orphan(live) => ObjectPlan::taking_over(live),
        Existing::Foreign(_) => ObjectPlan::Leave,
    };
    let wake = longest.map(|longest| patience.saturating_sub(longest)).filter(|left| !left.is_zero() && !lowered);
    BudgetPlan { min_available, object, wake }
}

fn quorum(masters: usize) -> i32 {
    i32::try_from(Quorum::of(masters).votes_needed()).unwrap_or(i32::MAX)
}

fn min_available(budget: &PodDisruptionBudget) -> Option<i32> {
    match budget.spec.as_ref()?.min_available.as_ref()? {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(_) => None,
    }
}

#[cfg(test)]
mod tests;
