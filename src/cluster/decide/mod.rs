//! Second step: decides what to do about a cluster, given what was looked up and the time. No IO, and no clock of its own.
//!
//! # Layout
//! - [`master`]: what to do about one master; **the four invariants of this controller**. Here a crash time becomes
//!   `restartNotBefore`
//! - [`roll`]: a changed spec reaches the pods, one master at a time
//! - [`validate`]: what a person has to change before the spec can be carried out
//! - [`clients`]: which clients may log in, and how their passwords are replaced
//! - [`spread`]: whether masters must be on different Kubernetes nodes, or only should
//! - [`refusal`]: what is recorded of a pod that the API server refuses
//! - [`budget`]: how many masters evictions must leave armed; [`gate`]: which of them count
//! - [`objects`]: whether the Secret and the Services are as they should be
//!
//! This file puts them together, and adds what concerns more than one of them: a problem of the whole cluster stops everything,
//! and a master gets no pod before it has its Service.

pub(crate) mod budget;
pub(crate) mod clients;
pub(crate) mod gate;
pub(crate) mod master;
pub(crate) mod objects;
pub(crate) mod refusal;
pub(crate) mod roll;
pub(crate) mod spread;
#[cfg(test)]
mod tests;
pub(crate) mod validate;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Secret, Service};

use super::build;
use super::observed::{Existing, Snapshot};
use crate::api::RedisLockCluster;
use crate::api::cluster::MasterStatus;
use budget::{BudgetPlan, plan_budget};
use clients::{ClientPlan, plan_clients};
use master::{MasterAction, MasterPlan, decide_master};
use objects::{ObjectPlan, plan_secret, plan_service};
use roll::replace_outdated;
use validate::{Problem, problems};

/// What holds for all masters of a cluster at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// The operator's wall clock.
    pub(crate) now: Timestamp,
    /// How long a master that was gone is kept out.
    pub(crate) restart_delay: Duration,
    /// Longest lease that may be held.
    pub(crate) max_ttl: Duration,
    /// Image of the masters of a cluster that names none.
    pub(crate) default_image: String,
}

/// What to do about a cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClusterPlan {
    /// What a person has to change.
    pub(crate) problems: Vec<Problem>,
    /// A problem concerns the whole cluster: the records are written, and nothing else is done.
    pub(crate) is_blocked: bool,
    /// About its Secret.
    pub(crate) secret: ObjectPlan<Secret>,
    /// About the Service of each master, in order. Services come before pods: a Service tells later that its master was started.
    pub(crate) services: Vec<ObjectPlan<Service>>,
    /// About its `PodDisruptionBudget`.
    pub(crate) budget: BudgetPlan,
    /// About each master, in order.
    pub(crate) masters: Vec<MasterPlan>,
    /// About clients.
    pub(crate) clients: ClientPlan,
}

/// Decides about a cluster.
pub(crate) fn decide(snapshot: &Snapshot, rules: &Rules) -> ClusterPlan {
    let problems = problems(snapshot);
    let is_blocked = problems.iter().any(|problem| problem.blocks_all);
    let mut masters: Vec<_> = snapshot.masters.iter().map(|master| decide_master(rules, master)).collect();
    if !is_blocked {
        let wanted = build::spec_hash(&snapshot.cluster, &rules.default_image);
        replace_outdated(rules, &snapshot.masters, &mut masters, &wanted);
    }
    for (plan, master) in masters.iter_mut().zip(&snapshot.masters) {
        let unaddressed = matches!(master.service, Existing::Foreign(_));
        if plan.action == MasterAction::Create && (is_blocked || unaddressed) {
            plan.action = MasterAction::Nothing;
            plan.row.message =
                master.service.foreign().map(|name| format!("{name} exists and does not belong to this cluster"));
        }
    }
    let services = snapshot.masters.iter().map(|master| plan_service(rules, &snapshot.cluster, master));
    let (secret, services, clients) = (plan_secret(snapshot), services.collect(), plan_clients(snapshot, rules));
    let budget = plan_budget(rules, snapshot, &masters);
    ClusterPlan { problems, is_blocked, secret, services, budget, masters, clients }
}

// === impl Rules ===

impl Rules {
    /// The rules of `cluster` at `now`.
    pub(crate) fn of(cluster: &RedisLockCluster, now: Timestamp, default_image: &str) -> Self {
        let max_ttl = cluster.spec.max_ttl();
        // Two may hold a lock at once: this shows that the checker of the storm finds it. No image has the feature.
        let restart_delay = if crate::IS_UNSAFE { Duration::ZERO } else { cluster.spec.restart_delay() };
        Self { now, restart_delay, max_ttl, default_image: default_image.to_owned() }
    }
}

// === impl ClusterPlan ===

impl ClusterPlan {
    /// The new records of the masters. They must be written before anything is done.
    pub(crate) fn rows(&self) -> Vec<MasterStatus> {
        self.masters.iter().map(|plan| plan.row.clone()).collect()
    }

    /// The masters that were seen gone, or without their data, just now.
    pub(crate) fn crashed(&self) -> impl Iterator<Item = &str> {
        self.masters.iter().filter(|plan| plan.crashed).map(|plan| plan.row.name.as_str())
    }

    /// When to reconcile again, if nothing happens before.
    pub(crate) fn wake(&self) -> Option<Duration> {
        let others = [self.clients.wake, self.budget.wake].into_iter().flatten();
        self.masters.iter().filter_map(|plan| plan.wake).chain(others).min()
    }
}
