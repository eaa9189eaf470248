//! What to do about one master, given its record, its pod and its server. No IO.
//!
//! # What holds, whatever fails and whenever the operator stops
//! 1. A pod is created only for a master that was never started, or when the restart delay has passed since the operator saw that
//!    the former pod was surely gone: no pod object, or its container ended. That the master is being started is recorded before
//!    its first pod is created. The delay counts by wall clock from the recorded time, so that it survives an operator
//!    restart, and within one operator process also by the monotonic clock, so that a wall clock that jumps cannot shorten
//!    it. Assumption: clocks of the machines that the operator runs on agree to within the restart delay less maxTTL.
//! 2. [`MasterState::Quarantined`] is recorded only for a pod that is surely gone. A pod that is being deleted, or whose machine
//!    does not answer, keeps its place until its object is gone.
//! 3. Only a server that is armed may have voted, and before a server is armed its pod's uid and its `run_id` are in the record.
//!    So a recorded server without its marker has lost its data, a pod that is not in the record was never armed, and one that
//!    vanished before it was recorded took nothing along.
//! 4. A lost record (a wiped status) never counts as a first start: the master's Service tells that it was started before. Nor
//!    does a cluster that is created while one of the same name is still being removed: leases on that may still be held.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::snapshot::{Facts, PodFound, ServerFound, Slot, Stage};
use crate::api::cluster::{MasterState, MasterStatus};

/// What holds for all masters of a cluster at one moment.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The operator's wall clock.
    pub now: Timestamp,
    /// How long a master that went away is kept out.
    pub restart_delay: Duration,
    /// Longest lease that may be held.
    pub max_ttl: Duration,
}

/// What is known of one master.
#[derive(Clone, Debug)]
pub struct MasterFound {
    /// Its name.
    pub name: String,
    /// DNS name and port of its Service.
    pub address: String,
    /// Its record in the status.
    pub row: Option<MasterStatus>,
    /// Its Service says that it was started at some time.
    pub started_before: bool,
    /// Its pod.
    pub pod: Slot<PodFound>,
    /// Its server.
    pub server: ServerFound,
    /// Time since this operator process last saw that the master was gone, by its monotonic clock; `None` if it did not.
    pub since_gone: Option<Duration>,
}

/// What to do about a master, after its new record has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
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
pub struct Decision {
    /// Its new record. It must be written before `action` is carried out.
    pub row: MasterStatus,
    /// What to do then.
    pub action: Action,
    /// It was seen to have gone, or to have lost its data, just now.
    pub crashed: bool,
    /// When to look again, if nothing happens before.
    pub wake: Option<Duration>,
}

/// The wall clock in the precision that the API server keeps, so that what was written compares equal when it is read.
#[must_use]
pub fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}

/// Decides about one master.
#[must_use]
pub fn decide(rules: &Rules, master: &MasterFound) -> Decision {
    let mut decision = Decision {
        row: master.row.clone().unwrap_or_else(|| MasterStatus::new(&master.name, MasterState::Starting)),
        action: Action::Nothing,
        crashed: false,
        wake: None,
    };
    decision.row.address = Some(master.address.clone());
    match &master.pod {
        Slot::Ours(pod) => match pod.stage {
            Stage::Ended { deleting } => decision.ended(rules, master, pod, deleting),
            Stage::Doubtful { deleting } => decision.doubtful(pod, deleting),
            Stage::Pending | Stage::Running => decision.living(rules, master, pod),
        },
        Slot::Free => decision.absent(rules, master, None),
        Slot::Orphan => decision.displaced(rules, master),
        Slot::Foreign(name) => {
            decision.absent(rules, master, Some(format!("{name} exists and does not belong to this cluster")));
        }
    }
    decision
}

/// What is left of a master's delay; `None` when it is over, or was never imposed.
fn delay_left(rules: &Rules, row: &MasterStatus, since_gone: Option<Duration>) -> Option<Duration> {
    let until = row.restart_not_before.as_ref()?.0;
    let by_wall_clock = Duration::try_from(until.duration_since(rules.now)).unwrap_or_default();
    let by_monotonic_clock = since_gone.map_or(Duration::ZERO, |since| rules.restart_delay.saturating_sub(since));
    Some(by_wall_clock.max(by_monotonic_clock)).filter(|left| !left.is_zero())
}

/// `time` later by `duration`; the end of time if that is beyond it.
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

// === impl Decision ===

impl Decision {
    /// There is no pod of ours. `blocked`: why none can be created now.
    fn absent(&mut self, rules: &Rules, master: &MasterFound, blocked: Option<String>) {
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
            // Follows the spec: a longer delay holds for those that wait already.
            if let Some(crashed) = &self.row.last_crash_time {
                self.row.restart_not_before = Some(MicroTime(later(crashed.0, rules.restart_delay)));
            }
            let since_gone = if self.crashed { Some(Duration::ZERO) } else { master.since_gone };
            self.wake = delay_left(rules, &self.row, since_gone);
        }
        if self.wake.is_none() {
            self.action = if blocked.is_none() { Action::Create } else { Action::Nothing };
            self.row.message = blocked;
        }
    }

    /// The pod of a former cluster of the same name has its place. What it keeps may still be held by somebody, so the delay
    /// counts from when it is gone.
    fn displaced(&mut self, rules: &Rules, master: &MasterFound) {
        let why = "the pod of a former cluster of this name is being removed".to_owned();
        if master.row.as_ref().is_none_or(|row| never_started(row) || row.state == MasterState::Terminating) {
            self.row.state = MasterState::Terminating;
            self.row.message = Some(why);
        } else {
            self.absent(rules, master, Some(why));
        }
    }

    /// Its container has ended: the crash is recorded, then the object is deleted to make room.
    fn ended(&mut self, rules: &Rules, master: &MasterFound, pod: &PodFound, deleting: bool) {
        let recorded = master.row.as_ref().is_some_and(known_gone) && self.row.pod_uid.as_ref() == Some(&pod.uid);
        if !recorded {
            self.crash(rules, pod.note.clone().or_else(|| Some("its container ended".to_owned())));
            self.row.state = MasterState::Quarantined;
            self.row.pod_uid = Some(pod.uid.clone());
        }
        self.wake = delay_left(rules, &self.row, master.since_gone);
        self.action = if deleting { Action::Nothing } else { Action::Delete };
    }

    /// It is to go, but its container may still run: its place is kept, and the delay counts from when it is gone.
    fn doubtful(&mut self, pod: &PodFound, deleting: bool) {
        if self.row.state != MasterState::Terminating {
            self.row.message =
                Some("its pod is being deleted: its place is kept until its machine confirms that".to_owned());
        }
        self.row.state = MasterState::Terminating;
        self.row.pod_uid = Some(pod.uid.clone());
        self.row.armed_since = None;
        self.action = if deleting { Action::Nothing } else { Action::Delete };
    }

    /// Its pod is starting, or runs.
    fn living(&mut self, rules: &Rules, master: &MasterFound, pod: &PodFound) {
        if self.row.state == MasterState::Terminating && self.row.restart_not_before.is_some() {
            // It had lost its data, and the deletion has not come about yet.
            self.action = Action::Delete;
            return;
        }
        let same_pod = self.row.pod_uid.as_ref() == Some(&pod.uid);
        if !same_pod {
            let expected = master.row.as_ref().is_some_and(|row| never_started(row) || known_gone(row));
            let adopted = master.row.is_none() && matches!(&master.server, ServerFound::Up(facts) if facts.is_armed());
            if adopted {
                // The record was lost, but the marker proves that this very process lost nothing.
            } else if !expected {
                // Its predecessor went without being seen to. The pod that is there waits out the delay in its stead.
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
            ServerFound::Up(facts) => self.answering(rules, facts, since_gone),
            ServerFound::Refused(why) => {
                self.row.state = MasterState::Misconfigured;
                self.row.message = Some(why.clone());
            }
            ServerFound::Unreachable(_) | ServerFound::NotAsked => {
                let voted = self.row.run_id.is_some();
                self.row.state = if voted { MasterState::Unreachable } else { MasterState::Starting };
                let why = match &master.server {
                    ServerFound::Unreachable(why) => Some(why.clone()),
                    _ => pod.note.clone(),
                };
                self.row.message = why;
            }
        }
    }

    /// Its server answers.
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
            self.action = Action::Delete;
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
            self.action = Action::Arm;
        }
    }

    /// Records that the master went away, or lost its data, now. One that had lost its data and then goes counts once.
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
    pub(super) fn created(&mut self, pod_uid: String) {
        self.row.state = MasterState::Starting;
        self.row.pod_uid = Some(pod_uid);
        self.row.run_id = None;
        self.row.restart_not_before = None;
        self.row.message = None;
    }

    /// Its record after its server was armed.
    pub(super) fn armed(&mut self, now: Timestamp) {
        self.row.state = MasterState::Armed;
        self.row.restart_not_before = None;
        self.row.armed_since = Some(MicroTime(now));
        self.row.message = None;
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
