//! Writes the status of a lock, if it changes. The only place that writes it.

use serde_json::json;
use tracing::warn;

use super::compute::{self, Computed, Now, Times, View};
use crate::api::DistributedLock;
use crate::api::condition::retain_own;
use crate::lock::act::Outcome;
use crate::lock::decide::Obstacle;
use crate::lock::keeper::state::State;
use crate::lock::look_up::Snapshot;
use crate::lock::reconciler::Reconciler;
use crate::lock::subject::Subject;
use crate::operator::api_server::{Category, Error};
use crate::operator::error_chain;

impl Reconciler {
    /// Writes the status that follows from `outcome` and `state` (as of after the outcome) at `now`, if the API server has
    /// another.
    pub(crate) async fn write_status(
        &self,
        snapshot: &Snapshot,
        outcome: &Outcome,
        state: Option<&State>,
        now: Now,
    ) -> Result<(), Error> {
        let (Ok(lock), Some((obstacle, name_conflict))) = (snapshot.lock(), reported(outcome)) else { return Ok(()) };
        let (subject, schedule) = (&snapshot.subject, &self.schedule);
        let version = lock.metadata.resource_version.clone();
        let base = schedule.current(&subject.uid, version.as_deref(), lock.status.as_ref());
        let view = View { lock, base: &base, obstacle, name_conflict, state };
        let masters = snapshot.cluster.as_ref().map_or(0, |c| usize::try_from(c.spec.masters).unwrap_or(0));
        let kept = compute::compute(&view, masters, Times::KeepUntil(schedule.deadline(&subject.uid)), now);
        let is_transition = kept.status != base;
        let has_times = matches!(state, Some(State::Held { .. } | State::Observed(_)));
        let is_refreshed =
            schedule.take_turn(&subject.uid) || (is_transition && has_times && schedule.take_spare(now.mono));
        if is_transition && has_times && !is_refreshed {
            // Written without times now, and with times when its turn comes.
            schedule.renewed(subject);
        }
        let computed = if is_refreshed { compute::compute(&view, masters, Times::Fresh, now) } else { kept };
        if computed.status == base {
            return Ok(());
        }
        if !is_refreshed {
            schedule.spend(now.mono);
        }
        self.apply(subject, version, computed).await
    }

    /// Shows a held lock as not held before it is released: afterwards another may hold it. A failure is logged only, since the release
    /// must not wait for a status.
    pub(crate) async fn show_release(&self, snapshot: &Snapshot, now: Now) {
        let Ok(lock) = snapshot.lock() else { return };
        let (subject, version) = (&snapshot.subject, lock.metadata.resource_version.clone());
        let base = self.schedule.current(&subject.uid, version.as_deref(), lock.status.as_ref());
        let Some(status) = compute::releasing(&base, lock.metadata.generation, now) else { return };
        if let Err(error) = self.apply(subject, version, Computed { status, deadline: None }).await {
            let (namespace, name, error) = (&subject.namespace, &subject.name, error_chain(&error));
            warn!(namespace, name, error, "a lock is released although its status still shows it as held");
        }
    }

    /// Writes a status over the version that was read.
    async fn apply(&self, subject: &Subject, version: Option<String>, computed: Computed) -> Result<(), Error> {
        self.ctx.api.require_leadership()?;
        // With its uid: another object of the same name is refused.
        let guard = json!({"uid": subject.uid});
        let (namespace, name, mut status) = (&subject.namespace, &subject.name, computed.status.clone());
        retain_own(&mut status.conditions);
        match self.ctx.api.apply_status::<DistributedLock>(namespace, name, guard, &status).await {
            Ok(written) => {
                let made = written.metadata.resource_version;
                self.schedule.record_write(subject, version, made, computed.status, computed.deadline);
                Ok(())
            }
            Err(error) if error.category() == Category::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// What status shows of an outcome: an obstacle, and why the Secret for clients is not written. `None` if this process does
/// not report the outcome.
fn reported(outcome: &Outcome) -> Option<(Option<&Obstacle>, Option<&str>)> {
    match outcome {
        Outcome::Settled | Outcome::Followed => None,
        Outcome::Obstructed(obstacle) => Some((Some(obstacle), None)),
        Outcome::Assigned { obstacle, client_secret } => {
            Some((obstacle.as_ref(), client_secret.as_ref().ok().and_then(Option::as_deref)))
        }
    }
}
