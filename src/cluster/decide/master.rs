//! What to do about one master, given its record, its pod and its server. No IO.
//!
//! # Invariants
//! They hold whatever fails, and whenever the operator stops.
//! 1. A pod is created only for a master that was never armed, or when the restart delay has passed since the former server was
//!    gone for certain ([`MasterPlan::ended`], [`proof_of_end`]). That the master is being started is recorded before its first pod
//!    is created. The delay counts by the wall clock from the recorded time, so that it survives a restart of the operator. Within
//!    one operator process it counts by the monotonic clock as well, so that a wall clock that jumps cannot shorten it; where its clock differs from that of most masters, from when it
//!    learns of the delay. Assumption: otherwise the clocks of the Kubernetes nodes on which the operator runs agree to within the
//!    restart delay less maxTTL.
//! 2. "No object" proves nothing. A pod has a finalizer before its server is armed, which is removed only after its end was
//!    recorded. [`MasterState::Quarantined`] is recorded only for a server that is gone for certain: its kubelet reported that the
//!    container has ended, or the control plane declared the pod dead, or, where the object vanished all the same, its machine has
//!    ended. Until then the place of the master is kept.
//! 3. Only a server that is armed may have voted, and before a server is armed, the uid of its pod, its `run_id` and its machine
//!    are in the record. So a recorded server without its marker has lost its data; a pod that is recorded and was never armed took
//!    no vote along, and needs no delay.
//! 4. A lost record (a wiped status) never counts as a first start: the Service of the master tells that it was started before.
//!    A cluster that follows one of the same name begins with the records of that: its tombstone.

mod record;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::Rules;
use crate::api::cluster::{MasterState, MasterStatus};
use crate::cluster::observed::{Existing, ObservedMachine, ObservedMaster, ObservedPod, ObservedServer, Stage};
use crate::cluster::server::fitness::Facts;
pub(crate) use record::later;
use record::{delay_left, is_of, known_gone, never_armed, never_started, proof_of_end};

/// What to do about a master, after its new record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MasterAction {
    /// Nothing. (The users and the cap of an armed server are kept up to date.)
    Nothing,
    /// Give its pod the finalizer that it lacks.
    Protect,
    /// Create its pod.
    Create,
    /// Request the deletion of its pod.
    Delete,
    /// Delete its pod, and let the object go: its end is recorded.
    Release,
    /// Let its server vote.
    Arm,
}

/// What was decided about a master.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MasterPlan {
    /// Its new record. It must be written before `action` is carried out.
    pub(crate) row: MasterStatus,
    /// What to do then.
    pub(crate) action: MasterAction,
    /// It was seen gone, or without its data, just now.
    pub(crate) crashed: bool,
    /// Its pod has ended before its server was armed.
    pub(crate) failed_start: bool,
    /// When to reconcile again, if nothing happens before.
    pub(crate) wake: Option<Duration>,
}

/// Decides about one master.
pub(crate) fn decide_master(rules: &Rules, master: &ObservedMaster) -> MasterPlan {
    let mut plan = MasterPlan {
        row: master.row.clone().unwrap_or_else(|| MasterStatus::new(&master.name, MasterState::Starting)),
        action: MasterAction::Nothing,
        crashed: false,
        failed_start: false,
        wake: None,
    };
    plan.row.address = Some(master.address.clone());
    match &master.pod {
        Existing::Ours(pod) => match pod.stage {
            Stage::Ended | Stage::DeclaredDead => plan.ended(rules, master, pod),
            Stage::Doubtful => plan.doubtful(master, pod),
            Stage::Pending | Stage::Running => plan.living(rules, master, pod),
        },
        Existing::Absent => plan.absent(rules, master, None),
        Existing::Orphan(pod) => plan.displaced(rules, master, pod),
        Existing::Foreign(name) => {
            plan.absent(rules, master, Some(format!("{name} exists and does not belong to this cluster")));
        }
    }
    plan
}

/// How a pod is removed whose server may run: never without the finalizer, by which its end is seen.
fn removal_of(pod: &ObservedPod) -> MasterAction {
    match (pod.is_deleting, pod.is_protected()) {
        (true, _) => MasterAction::Nothing,
        (false, true) => MasterAction::Delete,
        (false, false) => MasterAction::Protect,
    }
}

// === impl MasterPlan ===

impl MasterPlan {
    /// No pod of ours exists. `blocked`: why no pod can be created now.
    fn absent(&mut self, rules: &Rules, master: &ObservedMaster, blocked: Option<String>) {
        let first = master.row.as_ref().map_or(!master.started_before, never_started);
        let is_harmless = first || master.row.as_ref().is_some_and(|row| never_armed(row) || known_gone(row));
        if !is_harmless {
            let why = match &master.row {
                None => "its record was lost",
                // A record that names no pod is that of a place which was never filled.
                Some(row) if row.pod_uid.is_none() => "its pod is gone",
                Some(row) => match proof_of_end(row, master) {
                    Some(proof) => proof,
                    None => return self.vanished(),
                },
            };
            self.crash(rules, Some(why.to_owned()));
            self.row.state = MasterState::Quarantined;
        }
        if !first {
            // By the present spec, if that is longer: it holds also for masters that are waiting already.
            if let Some(crashed) = &self.row.last_crash_time
                && let Some(until) = &mut self.row.restart_not_before
            {
                until.0 = until.0.max(later(crashed.0, rules.restart_delay));
            }
            let since_gone = if self.crashed { Some(Duration::ZERO) } else { master.since_gone };
            self.wake = delay_left(rules, &self.row, since_gone);
        }
        if self.wake.is_some() {
            return;
        }
        if self.row.state != MasterState::Quarantined {
            self.row.state = MasterState::Starting;
        }
        if blocked.is_some() {
            self.row.message = blocked;
        } else if let Some(left) = master.backoff {
            // Its record keeps the reason.
            self.wake = Some(left);
        } else {
            self.action = MasterAction::Create;
        }
    }

    /// The object of its pod is gone although nothing was recorded: somebody took off the finalizer. Its server may still vote.
    fn vanished(&mut self) {
        let (uid, machine) = (self.row.pod_uid.clone().unwrap_or_default(), self.row.node_name.as_ref());
        let machine = machine.map_or("its Kubernetes node".to_owned(), |name| format!("the Kubernetes node {name}"));
        self.row.message = Some(format!(
            "its pod's object vanished, and nothing proves that its server has ended. Its place is kept until {machine} is \
             deleted, is tainted out-of-service or has restarted, or this cluster's annotation redlock.dev/gone names the \
             pod: {uid}"
        ));
        self.row.state = MasterState::Vanished;
        self.row.armed_since = None;
    }

    /// The pod of a former cluster of the same name is in its place, or a restored one. It may have voted, and is replaced: the
    /// delay counts from when it is gone.
    fn displaced(&mut self, rules: &Rules, master: &ObservedMaster, pod: &ObservedPod) {
        let is_recorded = master.row.as_ref().is_some_and(|row| is_of(row, pod));
        if is_recorded && master.row.as_ref().is_some_and(known_gone) {
            // It was stripped of its votes: its tombstone says when.
            self.wake = delay_left(rules, &self.row, master.since_gone);
            self.action = MasterAction::Release;
            return;
        }
        if !is_recorded {
            let why = "a pod of a former cluster of this name is in its place, and is being removed";
            self.crash(rules, Some(why.to_owned()));
            self.row.pod_uid = Some(pod.uid.clone());
            self.row.run_id = None;
            self.record_machine(pod, &master.machine);
        }
        if matches!(pod.stage, Stage::Ended | Stage::DeclaredDead) {
            self.row.state = MasterState::Terminating;
            self.crash(rules, None);
            self.row.state = MasterState::Quarantined;
            self.action = MasterAction::Release;
        } else {
            self.row.state = MasterState::Terminating;
            self.action = removal_of(pod);
        }
    }

    /// Its server is gone for certain: that is recorded, then the object is let go, which frees the name.
    fn ended(&mut self, rules: &Rules, master: &ObservedMaster, pod: &ObservedPod) {
        self.action = MasterAction::Release;
        let row = master.row.as_ref().filter(|row| is_of(row, pod));
        if row.is_some_and(never_armed) {
            self.never_voted(pod.note.clone().unwrap_or_else(|| "its container ended".to_owned()));
            return;
        }
        if !row.is_some_and(known_gone) {
            let why = match pod.stage {
                Stage::DeclaredDead => "its Kubernetes node was deleted, or tainted out-of-service".to_owned(),
                _ => pod.note.clone().unwrap_or_else(|| "its container ended".to_owned()),
            };
            self.crash(rules, Some(why));
            self.row.state = MasterState::Quarantined;
            self.row.pod_uid = Some(pod.uid.clone());
        }
        self.wake = delay_left(rules, &self.row, if self.crashed { Some(Duration::ZERO) } else { master.since_gone });
    }

    /// Its pod is being deleted or was declared failed, but its container may still run. So its place is kept, and the delay
    /// counts from when it is gone.
    fn doubtful(&mut self, master: &ObservedMaster, pod: &ObservedPod) {
        if master.row.as_ref().is_some_and(|row| is_of(row, pod) && never_armed(row)) {
            // Nobody arms a pod that is being deleted, and without that its server has no vote, however long it runs.
            self.action = MasterAction::Release;
            self.never_voted("its pod was deleted".to_owned());
            return;
        }
        if self.row.state != MasterState::Terminating {
            self.row.message = Some(
                "its pod is being deleted: its place is kept until its Kubernetes node confirms that, or the control plane \
                 declares the pod dead"
                    .to_owned(),
            );
        }
        if !is_of(&self.row, pod) {
            self.record_machine(pod, &master.machine);
        }
        self.row.state = MasterState::Terminating;
        self.row.pod_uid = Some(pod.uid.clone());
        self.row.armed_since = None;
        self.action = removal_of(pod);
    }

    /// Its pod ended before its server was armed. It took no vote along, so there is no delay for it.
    fn never_voted(&mut self, why: String) {
        self.row.state = MasterState::Starting;
        self.row.message = Some(why);
        self.failed_start = true;
    }

    /// Records on which machine its pod runs, and since when that runs.
    fn record_machine(&mut self, pod: &ObservedPod, machine: &ObservedMachine) {
        self.row.node_name.clone_from(&pod.node_name);
        self.row.boot_id = machine.boot_id().cloned();
    }

    /// Its pod is starting or running.
    fn living(&mut self, rules: &Rules, master: &ObservedMaster, pod: &ObservedPod) {
        if !pod.is_protected() {
            self.action = MasterAction::Protect;
        }
        if is_of(&self.row, pod) && self.row.state == MasterState::Terminating && self.row.restart_not_before.is_some()
        {
            // It has lost its data, and its pod is not deleted yet.
            self.action = removal_of(pod);
            return;
        }
        if !is_of(&self.row, pod) {
            let expected = master.row.as_ref().is_some_and(|row| never_started(row) || known_gone(row));
            let adopted =
                master.row.is_none() && matches!(&master.server, ObservedServer::Up(facts) if facts.is_armed());
            if adopted {
                // The record was lost, but the marker proves that this server process has all its data.
            } else if !expected {
                // Nobody saw how its predecessor went. The pod that exists now waits for the delay instead.
                self.crash(rules, Some("its record was lost, or its pod was replaced by another".to_owned()));
            } else if delay_left(rules, &self.row, master.since_gone).is_none() {
                self.row.restart_not_before = None;
            }
            self.row.pod_uid = Some(pod.uid.clone());
            self.row.run_id = None;
            self.row.armed_since = None;
            self.row.state = MasterState::Starting;
        }
        if self.row.boot_id.is_none() || self.row.run_id.is_none() {
            self.record_machine(pod, &master.machine);
        }
        let since_gone = if self.crashed { Some(Duration::ZERO) } else { master.since_gone };
        match &master.server {
            ObservedServer::Up(facts) => self.answering(rules, facts, since_gone),
            ObservedServer::Refused(why) => {
                self.row.state = MasterState::Misconfigured;
                self.row.message = Some(why.clone());
            }
            // It cannot be asked. Its pod runs, and its process never comes back once it has ended: it is as it was.
            ObservedServer::KeyLost if self.row.state == MasterState::Armed => {}
            ObservedServer::KeyLost => {
                self.row.message = Some("it cannot be asked: the cluster's root key is lost".to_owned());
            }
            ObservedServer::Stuck(why) => self.lose(rules, why.clone()),
            ObservedServer::Unreachable(_) | ObservedServer::NotAsked => {
                let voted = self.row.run_id.is_some();
                self.row.state = if voted { MasterState::Unreachable } else { MasterState::Starting };
                let why = match &master.server {
                    ObservedServer::Unreachable(why) => Some(why.clone()),
                    _ => pod.note.clone(),
                };
                self.row.message = why;
            }
        }
    }

    /// Its server replies.
    fn answering(&mut self, rules: &Rules, facts: &Facts, since_gone: Option<Duration>) {
        if let Some(unfit) = facts.unfit.as_ref().filter(|_| facts.is_armed()) {
            // It may have forgotten leases, or given them to another server. It votes until it is disarmed.
            self.lose(rules, unfit.clone());
        } else if facts.is_armed() {
            let same_process = self.row.run_id.as_ref() == Some(&facts.run_id);
            if !same_process || self.row.armed_since.is_none() {
                self.row.armed_since = Some(MicroTime(rules.now));
            }
            self.row.state = MasterState::Armed;
            self.row.run_id = Some(facts.run_id.clone());
            self.row.restart_not_before = None;
            self.row.message = None;
        } else if self.row.run_id.is_some() {
            let lost = || "it lost its data: its server has no armed marker any more".to_owned();
            self.lose(rules, facts.unfit.clone().unwrap_or_else(lost));
        } else if self.action == MasterAction::Protect {
            // Only the end of a pod that has it is sure to be seen.
            self.row.state = MasterState::Starting;
        } else if let Some(left) = delay_left(rules, &self.row, since_gone) {
            self.row.state = MasterState::Starting;
            self.wake = Some(left);
        } else if let Some(unfit) = &facts.unfit {
            self.row.state = MasterState::Misconfigured;
            self.row.message = Some(unfit.clone());
        } else {
            self.row.state = MasterState::Starting;
            self.row.run_id = Some(facts.run_id.clone());
            self.row.message = None;
            self.action = MasterAction::Arm;
        }
    }

    /// Its server must not vote any more, and its pod is deleted (not by force: its kubelet ends it).
    fn lose(&mut self, rules: &Rules, why: String) {
        self.crash(rules, Some(why));
        self.row.state = MasterState::Terminating;
        // Without the finalizer the next pass deletes it.
        if self.action != MasterAction::Protect {
            self.action = MasterAction::Delete;
        }
    }

    /// Records that the master is gone, or has lost its data, as of now. **Here the time of a crash becomes `restartNotBefore`.**
    /// A master that lost its data and is then deleted counts once.
    fn crash(&mut self, rules: &Rules, why: Option<String>) {
        let counted = self.row.state == MasterState::Terminating && self.row.restart_not_before.is_some();
        if !counted {
            self.row.crashes += 1;
            self.row.message = why;
        }
        self.row.last_crash_time = Some(MicroTime(rules.now));
        self.row.restart_not_before = Some(MicroTime(later(rules.now, rules.restart_delay)));
        self.row.armed_since = None;
        self.crashed = true;
        self.wake = Some(rules.restart_delay);
    }

    /// Its record after its pod was created.
    pub(crate) fn created(&mut self, pod_uid: String) {
        self.row.state = MasterState::Starting;
        self.row.pod_uid = Some(pod_uid);
        (self.row.node_name, self.row.boot_id) = (None, None);
        self.row.run_id = None;
        self.row.restart_not_before = None;
        self.row.message = None;
    }

    /// Its record after its server was armed.
    pub(crate) fn armed(&mut self, now: Timestamp) {
        self.row.state = MasterState::Armed;
        self.row.restart_not_before = None;
        self.row.armed_since = Some(MicroTime(now));
        self.row.message = None;
    }
}

#[cfg(test)]
mod tests;
