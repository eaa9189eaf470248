//! What to do about one master, given its record, its pod and its server. No IO.
//!
//! # Invariants
//! They hold whatever fails, and whenever the operator stops.
//! 1. A pod is created only for a master that was never started, or when the restart delay has passed since the operator saw that
//!    the former pod was gone for certain: no pod object, or its container ended. That the master is being started is recorded
//!    before its first pod is created. The delay counts by the wall clock from the recorded time, so that it survives a restart
//!    of the operator. Within one operator process it counts by the monotonic clock as well, so that a wall clock that jumps
//!    cannot shorten it. Assumption: the clocks of the Kubernetes nodes on which the operator runs agree to within the restart
//!    delay less maxTTL.
//! 2. [`MasterState::Quarantined`] is recorded only for a pod that is gone for certain. A pod that is being deleted, or whose
//!    Kubernetes node does not answer, keeps its place until its object is gone.
//! 3. Only a server that is armed may have voted, and before a server is armed, the uid of its pod and its `run_id` are in the
//!    record. So a recorded server without its marker has lost its data; a pod that is not in the record was never armed; and one
//!    that vanished before it was recorded took nothing along.
//! 4. A lost record (a wiped status) never counts as a first start: the Service of the master tells that it was started before.
//!    Nor is it a first start when the cluster was created while another of the same name is still being removed: leases on that
//!    one may still be held.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::Rules;
use crate::api::cluster::{MasterState, MasterStatus};
use crate::cluster::observed::{Existing, ObservedMaster, ObservedPod, ObservedServer, Stage};
use crate::cluster::server::fitness::Facts;

/// What to do about a master, after its new record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MasterAction {
    /// Nothing. (The users and the cap of an armed server are kept up to date.)
    Nothing,
    /// Create its pod.
    Create,
    /// Delete its pod.
    Delete,
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
    /// When to reconcile again, if nothing happens before.
    pub(crate) wake: Option<Duration>,
}

/// Decides about one master.
pub(crate) fn decide_master(rules: &Rules, master: &ObservedMaster) -> MasterPlan {
    let mut plan = MasterPlan {
        row: master.row.clone().unwrap_or_else(|| MasterStatus::new(&master.name, MasterState::Starting)),
        action: MasterAction::Nothing,
        crashed: false,
        wake: None,
    };
    plan.row.address = Some(master.address.clone());
    match &master.pod {
        Existing::Ours(pod) => match pod.stage {
            Stage::Ended { deleting } => plan.ended(rules, master, pod, deleting),
            Stage::Doubtful { deleting } => plan.doubtful(pod, deleting),
            Stage::Pending | Stage::Running => plan.living(rules, master, pod),
        },
        Existing::Absent => plan.absent(rules, master, None),
        Existing::Orphan => plan.displaced(rules, master),
        Existing::Foreign(name) => {
            plan.absent(rules, master, Some(format!("{name} exists and does not belong to this cluster")));
        }
    }
    plan
}

/// What is left of a master's restart delay; `None` if it is over, or there is none.
fn delay_left(rules: &Rules, row: &MasterStatus, since_gone: Option<Duration>) -> Option<Duration> {
    let until = row.restart_not_before.as_ref()?.0;
    let by_wall_clock = Duration::try_from(until.duration_since(rules.now)).unwrap_or_default();
    let by_monotonic_clock = since_gone.map_or(Duration::ZERO, |since| rules.restart_delay.saturating_sub(since));
    Some(by_wall_clock.max(by_monotonic_clock)).filter(|left| !left.is_zero())
}

/// `time` plus `duration`, or the latest time that can be written.
fn later(time: Timestamp, duration: Duration) -> Timestamp {
    let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

/// Whether the record says that the master is being started for the first time and has no pod yet.
fn never_started(row: &MasterStatus) -> bool {
    row.state == MasterState::Starting && row.pod_uid.is_none() && row.last_crash_time.is_none()
}

/// Whether the record says that the master's pod is gone.
fn known_gone(row: &MasterStatus) -> bool {
    row.state == MasterState::Quarantined && row.restart_not_before.is_some()
}

// === impl MasterPlan ===

impl MasterPlan {
    /// No pod of ours exists. When this is seen for the first time, it is a crash. `blocked`: why no pod can be created now.
    fn absent(&mut self, rules: &Rules, master: &ObservedMaster, blocked: Option<String>) {
        let first = master.row.as_ref().map_or(!master.started_before, never_started);
        if !first && !master.row.as_ref().is_some_and(known_gone) {
            let why = match &master.row {
                None => "its record was lost, or a former cluster of this name was removed just now",
                Some(row) if row.state == MasterState::Terminating => "its pod was deleted",
                Some(_) => "its pod is gone",
            };
            self.crash(rules, Some(why.to_owned()));
            self.row.state = MasterState::Quarantined;
        }
        if !first {
            // By the present spec: a longer delay holds also for masters that are waiting already.
            if let Some(crashed) = &self.row.last_crash_time {
                self.row.restart_not_before = Some(MicroTime(later(crashed.0, rules.restart_delay)));
            }
            let since_gone = if self.crashed { Some(Duration::ZERO) } else { master.since_gone };
            self.wake = delay_left(rules, &self.row, since_gone);
        }
        if self.wake.is_none() {
            self.action = if blocked.is_none() { MasterAction::Create } else { MasterAction::Nothing };
            self.row.message = blocked;
        }
    }

    /// The pod of a former cluster of the same name is in its place (an orphan, which the garbage collector deletes). Leases on it
    /// may still be held, so the delay counts from when it is gone.
    fn displaced(&mut self, rules: &Rules, master: &ObservedMaster) {
        let why = "the pod of a former cluster of this name is being removed".to_owned();
        if master.row.as_ref().is_none_or(|row| never_started(row) || row.state == MasterState::Terminating) {
            self.row.state = MasterState::Terminating;
            self.row.message = Some(why);
        } else {
            self.absent(rules, master, Some(why));
        }
    }

    /// Its container has ended: the crash is recorded, then the object is deleted to free the name.
    fn ended(&mut self, rules: &Rules, master: &ObservedMaster, pod: &ObservedPod, deleting: bool) {
        let recorded = master.row.as_ref().is_some_and(known_gone) && self.row.pod_uid.as_ref() == Some(&pod.uid);
        if !recorded {
            self.crash(rules, pod.note.clone().or_else(|| Some("its container ended".to_owned())));
            self.row.state = MasterState::Quarantined;
            self.row.pod_uid = Some(pod.uid.clone());
        }
        self.wake = delay_left(rules, &self.row, master.since_gone);
        self.action = if deleting { MasterAction::Nothing } else { MasterAction::Delete };
    }

    /// Its pod is being deleted or was declared failed, but its container may still run. So its place is kept, and the delay
    /// counts from when it is gone.
    fn doubtful(&mut self, pod: &ObservedPod, deleting: bool) {
        if self.row.state != MasterState::Terminating {
            self.row.message =
                Some("its pod is being deleted: its place is kept until its Kubernetes node confirms that".to_owned());
        }
        self.row.state = MasterState::Terminating;
        self.row.pod_uid = Some(pod.uid.clone());
        self.row.armed_since = None;
        self.action = if deleting { MasterAction::Nothing } else { MasterAction::Delete };
    }

    /// Its pod is starting or running.
    fn living(&mut self, rules: &Rules, master: &ObservedMaster, pod: &ObservedPod) {
        if self.row.state == MasterState::Terminating && self.row.restart_not_before.is_some() {
            // It has lost its data, and its pod is not deleted yet.
            self.action = MasterAction::Delete;
            return;
        }
        let same_pod = self.row.pod_uid.as_ref() == Some(&pod.uid);
        if !same_pod {
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
        if facts.is_armed() {
            let same_process = self.row.run_id.as_ref() == Some(&facts.run_id);
            if !same_process || self.row.armed_since.is_none() {
                self.row.armed_since = Some(MicroTime(rules.now));
            }
            self.row.state = MasterState::Armed;
            self.row.run_id = Some(facts.run_id.clone());
            self.row.restart_not_before = None;
            self.row.message = None;
        } else if self.row.run_id.is_some() {
            self.crash(rules, Some("it lost its data: its server has no armed marker any more".to_owned()));
            self.row.state = MasterState::Terminating;
            self.action = MasterAction::Delete;
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
