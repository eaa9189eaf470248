//! What the record of a master says by itself: whether it was started, was armed, is gone, and for how long it is kept out. No IO.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::api::cluster::{MasterState, MasterStatus};
use crate::cluster::decide::Rules;
use crate::cluster::observed::{ObservedMachine, ObservedMaster, ObservedPod};

/// What is left of a master's restart delay; `None` if it is over, or there is none.
pub(super) fn delay_left(rules: &Rules, row: &MasterStatus, since_gone: Option<Duration>) -> Option<Duration> {
    let until = row.restart_not_before.as_ref()?.0;
    let by_wall_clock = Duration::try_from(until.duration_since(rules.now)).unwrap_or_default();
    let by_monotonic_clock = since_gone.map_or(Duration::ZERO, |since| rules.restart_delay.saturating_sub(since));
    Some(by_wall_clock.max(by_monotonic_clock)).filter(|left| !left.is_zero())
}

/// `time` plus `duration`, or the latest time that can be written.
pub(crate) fn later(time: Timestamp, duration: Duration) -> Timestamp {
    let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

/// Whether the record says that the master is being started for the first time and has no pod yet.
pub(super) fn never_started(row: &MasterStatus) -> bool {
    row.state == MasterState::Starting && row.pod_uid.is_none() && row.last_crash_time.is_none()
}

/// Whether the record says that the master's server is gone.
pub(super) fn known_gone(row: &MasterStatus) -> bool {
    row.state == MasterState::Quarantined && row.restart_not_before.is_some()
}

/// Whether the record says that the server of its pod was never armed. Where a pod was not of this record's making, or has lost its
/// data, the end of its delay is recorded.
pub(super) fn never_armed(row: &MasterStatus) -> bool {
    row.pod_uid.is_some() && row.run_id.is_none() && row.restart_not_before.is_none()
}

/// Whether the record is about this pod.
pub(super) fn is_of(row: &MasterStatus, pod: &ObservedPod) -> bool {
    row.pod_uid.as_ref() == Some(&pod.uid)
}

/// What proves that the recorded server has ended although the object of its pod is gone; `None` if nothing does.
pub(super) fn proof_of_end(row: &MasterStatus, master: &ObservedMaster) -> Option<&'static str> {
    match &master.machine {
        _ if master.is_vouched_gone => {
            Some("its pod's object vanished, and an administrator vouches that its server has ended")
        }
        ObservedMachine::Deleted if row.node_name.is_some() => {
            Some("its pod's object vanished, and its Kubernetes node was deleted")
        }
        ObservedMachine::Present { is_out_of_service: true, .. } => {
            Some("its pod's object vanished, and its Kubernetes node is tainted out-of-service")
        }
        ObservedMachine::Present { boot_id: Some(now), .. } if row.boot_id.as_ref().is_some_and(|then| then != now) => {
            Some("its pod's object vanished, and its machine has restarted since")
        }
        ObservedMachine::Deleted | ObservedMachine::Present { .. } | ObservedMachine::Unknown => None,
    }
}
