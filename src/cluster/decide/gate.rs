//! The readiness gate of a master's pod: whether it is ready, which a `PodDisruptionBudget` counts. No IO.
//!
//! # Invariant
//! A pod becomes ready only when its master is armed, and is not ready any more once that is known to have lost its vote. A server
//! that cannot be asked keeps the answer that it had: an operator that reaches none would otherwise permit that all of them are
//! evicted, and they may all hold locks.

use crate::api::cluster::{MasterState, MasterStatus};
use crate::cluster::observed::{ObservedMaster, ObservedServer, Stage};

/// What to set the gate of the master's pod to, after what was done left this record; `None`: it is as it should be.
pub(crate) fn gate(master: &ObservedMaster, row: &MasterStatus) -> Option<bool> {
    // One that is on its way out does not count.
    let living = |stage| matches!(stage, Stage::Pending | Stage::Running);
    let pod = master.pod.ours().filter(|pod| !pod.is_deleting && living(pod.stage))?;
    let votes = match (row.state, &master.server) {
        (MasterState::Armed, _) => true,
        (MasterState::Unreachable, _) | (_, ObservedServer::Unreachable(_) | ObservedServer::Refused(_)) => {
            return None;
        }
        _ => false,
    };
    // A gate that was never set is closed.
    (pod.gate.unwrap_or(false) != votes).then_some(votes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fixtures::{armed, going, master, observed_pod, row, unreachable, up};
    use crate::cluster::observed::{Existing, ObservedPod};

    fn with_gate(gate: Option<bool>, server: ObservedServer) -> ObservedMaster {
        let pod = ObservedPod { gate, ..observed_pod("pod-1", Stage::Running) };
        master(Some(armed()), Existing::Ours(pod), server)
    }

    #[test]
    fn a_pod_is_ready_only_while_its_master_votes_and_nothing_is_written_twice() {
        for (before, server, state, change) in [
            (None, up(None), MasterState::Starting, None),
            (None, up(None), MasterState::Armed, Some(true)),
            (Some(false), up(Some("run-1")), MasterState::Armed, Some(true)),
            (Some(true), up(Some("run-1")), MasterState::Armed, None),
            (Some(true), up(None), MasterState::Terminating, Some(false)),
            (Some(true), ObservedServer::Stuck("silent".to_owned()), MasterState::Terminating, Some(false)),
            (Some(false), up(None), MasterState::Misconfigured, None),
        ] {
            assert_eq!(gate(&with_gate(before, server), &row(state)), change, "{before:?} {state:?}");
        }
    }

    #[test]
    fn an_operator_that_reaches_no_master_does_not_make_all_of_them_evictable() {
        assert_eq!(gate(&with_gate(Some(true), unreachable()), &row(MasterState::Unreachable)), None);
        let refused = ObservedServer::Refused("WRONGPASS".to_owned());
        assert_eq!(gate(&with_gate(Some(true), refused), &row(MasterState::Misconfigured)), None);
    }

    #[test]
    fn a_pod_on_its_way_out_is_left_alone() {
        for pod in [going("pod-1", Stage::Doubtful), Existing::Absent, Existing::Foreign("Pod votes-0".to_owned())] {
            assert_eq!(gate(&master(Some(armed()), pod, up(Some("run-1"))), &row(MasterState::Armed)), None);
        }
    }
}
