//! Carries out a plan: on the masters, by the lock's actor, and on the API server. Status is written later, from the outcome.

use std::sync::Arc;
use std::time::Duration;

use kube::{Resource as _, ResourceExt as _};
use redlock_engine::LockKey;
use tokio::time::timeout;
use tracing::warn;

use super::client_secret::Binding;
use super::clock::now;
use super::decide::{FINALIZER, Obstacle, Plan, Recorded};
use super::events::LockEvent;
use super::finalize;
use super::keeper::assignment::{Assignment, LockTarget};
use super::keeper::state::{Ending, State};
use super::look_up::Snapshot;
use super::reconciler::Reconciler;
use crate::api::DistributedLock;
use crate::operator::api_server::Error;
use crate::operator::error_chain;

/// How long the release of a grant without an actor may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(4);

/// The result of a plan.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Nothing to report, and nothing to do until something changes.
    Settled,
    /// An actor renews the leader's grant. The leader reports it.
    Followed,
    /// The lock cannot be acquired or observed.
    Obstructed(Obstacle),
    /// An actor holds or observes the lock.
    Assigned {
        /// What is wrong with the spec although the lock is kept.
        obstacle: Option<Obstacle>,
        /// Whether the Secret for clients is written: `Ok(Some(why))` if a foreign Secret has its name.
        client_secret: Result<Option<String>, Error>,
    },
}

impl Reconciler {
    /// Carries out `plan`.
    pub(crate) async fn act(&self, snapshot: &Snapshot, plan: Plan) -> Result<Outcome, Error> {
        let subject = &snapshot.subject;
        match plan {
            Plan::Nothing => Ok(Outcome::Settled),
            Plan::Abandon => {
                self.keeper.abandon(&subject.uid).await;
                Ok(Outcome::Settled)
            }
            Plan::Follow { key, options, owner } => {
                if let Some(engine) = snapshot.engine() {
                    let target = LockTarget { engine: Arc::clone(engine), key };
                    self.keeper.assign(subject, target, Assignment::Follow { options, owner });
                }
                Ok(Outcome::Followed)
            }
            Plan::ReportUnreadable(why) => {
                self.events.send(&subject.reference, LockEvent::Unreadable(format!("cannot be read: {why}")));
                Ok(Outcome::Settled)
            }
            Plan::Finalize { recorded } => self.finalize(snapshot, recorded).await,
            Plan::Wait(obstacle) => {
                // A lease, or a grant that may stand, is left to the actor: the masters may work without what is missing.
                if !matches!(snapshot.state, None | Some(State::Held { .. } | State::Adopting { .. })) {
                    self.keeper.release(&subject.uid, None).await;
                }
                Ok(Outcome::Obstructed(obstacle))
            }
            Plan::Refuse { obstacle, recorded } => {
                let ending = self.release(snapshot, recorded).await?;
                self.report_end(snapshot, ending, false);
                Ok(Outcome::Obstructed(obstacle))
            }
            Plan::Rest => {
                // It holds nothing. After a change of spec it starts anew.
                self.keeper.release(&subject.uid, None).await;
                Ok(Outcome::Settled)
            }
            Plan::Hold { key, options, adopt, former, when_lost, obstacle } => {
                if let Some(owner) = former {
                    // Released before the new holder contends: its grant is a new one, with a larger token.
                    let ending = self.release(snapshot, Some((key.clone(), owner))).await?;
                    self.report_end(snapshot, ending, true);
                }
                let term = self.ctx.leadership.term();
                self.assign(snapshot, key, Assignment::Hold { term, options, adopt, when_lost }, obstacle).await
            }
            Plan::Observe { key } => self.assign(snapshot, key, Assignment::Observe, None).await,
        }
    }

    /// Assigns the lock to its actor, between the finalizer and the Secret for clients.
    async fn assign(
        &self,
        snapshot: &Snapshot,
        key: LockKey,
        assignment: Assignment,
        obstacle: Option<Obstacle>,
    ) -> Result<Outcome, Error> {
        let (Ok(lock), Some(cluster), Some(engine), Some(namespace)) =
            (snapshot.lock(), &snapshot.cluster, snapshot.engine(), &snapshot.namespace)
        else {
            return Err(Error::Internal(
                "a lock is assigned only when its cluster is connected and its namespace is known",
            ));
        };
        let subject = &snapshot.subject;
        self.ctx.api.require_leadership()?;
        // Before anything is acquired that has to be released.
        self.finalizers.add::<DistributedLock>(&self.ctx.api, snapshot.object.meta(), FINALIZER).await?;
        self.keeper.assign(subject, LockTarget { engine: Arc::clone(engine), key }, assignment);

        let uid = namespace.uid().unwrap_or_default();
        let (binding, password) = (Binding::of(lock), engine.client_password(cluster, &subject.namespace, &uid));
        // A failure is kept until the status is written: the Secret must not delay what is known of the lock.
        let client_secret = self.client_secrets.ensure(&binding, binding.secret(cluster, &password)).await;
        Ok(Outcome::Assigned { obstacle, client_secret })
    }

    /// Releases what the lock holds: its actor's lease, or without an actor the grant that status records.
    async fn release(&self, snapshot: &Snapshot, recorded: Option<Recorded>) -> Result<Option<Ending>, Error> {
        self.ctx.api.require_leadership()?;
        self.show_release(snapshot, now()).await;
        let owner = recorded.as_ref().map(|(_, owner)| owner.clone());
        let ending = self.keeper.release(&snapshot.subject.uid, owner).await;
        let (Some(engine), Some((key, owner)), None) = (snapshot.engine(), recorded, ending) else { return Ok(ending) };
        let release = async {
            engine.settled().await;
            engine.client().release(&key, &owner).await
        };
        Ok(timeout(RELEASE_TIMEOUT, release).await.ok().map(Ending::Released))
    }

    /// Releases the deleted lock, then the Secret for clients, then the finalizer.
    async fn finalize(&self, snapshot: &Snapshot, recorded: Option<Recorded>) -> Result<Outcome, Error> {
        // Nobody knows what an object holds that cannot be read.
        let may_be_held = recorded.is_some() || snapshot.lock().is_err();
        let ending = self.release(snapshot, recorded).await?;
        self.report_end(snapshot, ending, may_be_held);
        if let Ok(lock) = snapshot.lock() {
            self.release_client_secret(snapshot, lock).await;
        }
        finalize::remove(&self.ctx.api, &snapshot.object).await?;
        self.forget(&snapshot.subject);
        Ok(Outcome::Settled)
    }

    /// Deletes the Secret for clients together with the last lock that needs it. One that cannot be deleted holds no lock up: it is
    /// tried again later.
    async fn release_client_secret(&self, snapshot: &Snapshot, lock: &DistributedLock) {
        let (subject, binding) = (&snapshot.subject, Binding::of(lock));
        if !binding.is_named() {
            return;
        }
        let cluster = binding.cluster_ref();
        let is_needed = || self.ctx.watches.lock_index.is_needed(&subject.namespace, &cluster, &subject.uid);
        if let Err(error) = self.client_secrets.delete_unless(&binding, is_needed).await {
            let (namespace, error) = (&subject.namespace, error_chain(&error));
            warn!(namespace, error, "a Secret for clients is left behind for now");
        }
    }

    fn report_end(&self, snapshot: &Snapshot, ending: Option<Ending>, may_be_held: bool) {
        if let Some(event) = finalize::event(ending, may_be_held) {
            self.events.send(&snapshot.subject.reference, event);
        }
    }
}
