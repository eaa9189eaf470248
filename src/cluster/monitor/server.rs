//! One monitored server: what a poll finds, and what is done about it at once.
//!
//! Only what takes votes away, or keeps the server usable, is done here: a server that must not vote is disarmed, a client's endless
//! script is ended, scripts that were lost are loaded again. All else is left to the reconcile.

use std::time::Duration;

use tokio::time::Instant;

use super::{Finding, MAX_FAILURES, MonitorTarget};
use crate::api::cluster::ClientScripts;
use crate::cluster::server::clock::{ClockFault, ClockReading};
use crate::cluster::server::fitness::Facts;
use crate::cluster::server::{Admin, AdminError};
use crate::operator::leadership::Leadership;

/// A server that was silent, or busy with one script, for so long is stuck: it counts as crashed.
pub(super) const STUCK_AFTER: Duration = Duration::from_secs(5);

/// What is kept of a server between two polls.
#[derive(Default)]
pub(super) struct MonitoredServer {
    pub(super) pod_uid: String,
    admin: Option<Admin>,
    failures: u32,
    /// The last answer on this connection: the process, and its clock.
    clock: Option<(String, ClockReading)>,
    /// Since when it has been silent or busy, at each poll.
    stuck_since: Option<Instant>,
}

/// Why a server that is found like this must be disarmed; `None` if it need not.
fn why_disarm(expected: &Finding, facts: &Facts, fault: Option<ClockFault>) -> Option<String> {
    if facts.is_armed() {
        facts.unfit.clone().or_else(|| fault.map(|fault| fault.to_string()))
    } else if *expected == Finding::Armed(facts.run_id.clone()) {
        let lost = || "it lost its data: its armed marker is gone".to_owned();
        Some(facts.unfit.clone().unwrap_or_else(lost))
    } else {
        None
    }
}

// === impl MonitoredServer ===

impl MonitoredServer {
    /// A server of this pod that was not polled yet.
    pub(super) fn of(pod_uid: &str) -> Self {
        Self { pod_uid: pod_uid.to_owned(), ..Self::default() }
    }

    /// How the server is now, after what had to be done at once; `None` while that is uncertain.
    pub(super) async fn check(&mut self, target: &MonitorTarget, leadership: &Leadership) -> Option<Finding> {
        let began = Instant::now();
        match self.poll(target, leadership).await {
            Ok(finding) => {
                self.failures = 0;
                self.stuck_since = None;
                finding
            }
            Err(error @ (AdminError::Busy | AdminError::Silent)) => {
                if error == AdminError::Silent {
                    self.disconnect();
                }
                let since = *self.stuck_since.get_or_insert(began);
                if since.elapsed() >= STUCK_AFTER {
                    return Some(Finding::Stuck { answers: error == AdminError::Busy });
                }
                self.note_failure()
            }
            Err(AdminError::Unreachable(_)) => {
                // A connection that broke, or timed out, tells nothing of the server yet: the next one does.
                if self.admin.is_none() {
                    self.stuck_since = None;
                }
                self.disconnect();
                self.note_failure()
            }
            Err(AdminError::Login | AdminError::Refused(_)) => {
                self.disconnect();
                Some(Finding::Refused)
            }
        }
    }

    fn note_failure(&mut self) -> Option<Finding> {
        self.failures = self.failures.saturating_add(1);
        (self.failures >= MAX_FAILURES).then_some(Finding::Unreachable)
    }

    fn disconnect(&mut self) {
        (self.admin, self.clock) = (None, None);
    }

    /// How the server answers; `None` if it is busy with one script after the other, each of which is ended.
    async fn poll(&mut self, target: &MonitorTarget, leadership: &Leadership) -> Result<Option<Finding>, AdminError> {
        let MonitorTarget { master, host, port, pod_uid, password, .. } = target;
        if self.admin.is_none() {
            let mut admin = Admin::connect(host, *port, password).await?;
            if let Err(error) = admin.require_pod(pod_uid).await {
                // A server that is busy cannot say whose it is. Its script is ended all the same: that harms no lock.
                end_script(&mut admin, error, master, leadership).await?;
                return Ok(None);
            }
            self.admin = Some(admin);
        }
        let Some(admin) = &mut self.admin else { return Ok(None) };
        let facts = match admin.poll().await {
            Ok(facts) => facts,
            Err(error) => {
                end_script(admin, error, master, leadership).await?;
                return Ok(None);
            }
        };
        let former = self.clock.replace((facts.run_id.clone(), facts.clock));
        let fault =
            former.filter(|(run_id, _)| *run_id == facts.run_id).and_then(|(_, at)| facts.clock.fault_since(&at));
        let run_id = facts.run_id.clone();
        if let Some(why) = why_disarm(&target.expected, &facts, fault)
            && leadership.is_leader()
        {
            tracing::warn!(master, why, "disarmed a master");
            admin.disarm(&why).await?;
            return Ok(Some(Finding::NotArmed(run_id)));
        }
        if !facts.is_armed() {
            return Ok(Some(Finding::NotArmed(run_id)));
        }
        if !facts.has_scripts && target.scripts == ClientScripts::Builtin && leadership.is_leader() {
            admin.load_scripts().await?;
        }
        Ok(Some(Finding::Armed(run_id)))
    }
}

/// Ends the script with which the server is busy, if that is the error. Fails where it is not, or cannot be ended.
async fn end_script(
    admin: &mut Admin,
    error: AdminError,
    master: &str,
    leadership: &Leadership,
) -> Result<(), AdminError> {
    if error != AdminError::Busy || !leadership.is_leader() {
        return Err(error);
    }
    admin.kill_script().await?;
    tracing::warn!(master, "ended a client's script that ran for too long");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fixtures::facts;

    #[test]
    fn a_server_is_disarmed_when_it_lost_its_marker_or_may_not_keep_its_vote() {
        let expected = Finding::Armed("run-1".to_owned());
        let unfit = |marker| Facts { unfit: Some("its role is slave".to_owned()), ..facts(marker) };
        let armed = facts(Some("run-1"));
        assert_eq!(why_disarm(&expected, &armed, None), None);
        assert_eq!(why_disarm(&Finding::Unreachable, &armed, None), None);
        let why = why_disarm(&expected, &armed, Some(ClockFault::Stopped));
        assert!(why.unwrap().starts_with("ClockFault: "));
        assert!(why_disarm(&expected, &facts(None), None).unwrap().contains("lost its data"));
        for (expected, facts) in [(&expected, unfit(None)), (&Finding::Refused, unfit(Some("run-1")))] {
            assert_eq!(why_disarm(expected, &facts, None).as_deref(), Some("its role is slave"));
        }
        // Nobody has armed these.
        for expected in
            [Finding::NotArmed("run-1".to_owned()), Finding::Armed("run-0".to_owned()), Finding::Unreachable]
        {
            assert_eq!(why_disarm(&expected, &unfit(None), Some(ClockFault::Jumped)), None, "{expected:?}");
        }
    }
}
