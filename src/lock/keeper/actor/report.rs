//! What an actor reports: to metrics, to the log, and as Events.

use redlock_engine::{Error, Loss};
use tracing::{debug, info, warn};

use super::Actor;
use crate::lock::events::LockEvent;
use crate::lock::identity::Holder;
use crate::lock::keeper::assignment::LockTarget;
use crate::lock::keeper::state::{Refusal, State};

impl Actor {
    pub(super) fn report_grant(&self) {
        let Some(holding) = &self.holding else { return };
        let owner = holding.lease.owner();
        info!(namespace = self.subject.namespace, name = self.subject.name, %owner, "acquired");
        self.context.metrics.acquisition("Acquired");
        self.send(LockEvent::Acquired(Holder::of(owner).name, owner.token()));
    }

    pub(super) fn report_loss(&self, loss: Loss) -> Loss {
        let reason = loss.as_str();
        warn!(namespace = self.subject.namespace, name = self.subject.name, reason, %loss, "lost");
        self.context.metrics.lost(reason);
        self.set_held(false);
        self.send(LockEvent::Lost(loss.clone()));
        loss
    }

    pub(super) fn report_refusal(&mut self, target: &LockTarget, lost: Option<&Loss>, error: &Error) {
        target.report_refused_credentials(error);
        let answer = Refusal::from(error);
        if let Refusal::Contended(Some(value)) | Refusal::Endless(value) = &answer
            && self.announced.as_deref() != Some(identity_in(value))
        {
            self.announced = Some(identity_in(value).to_owned());
            let holder = Holder::of_value(value).name;
            self.send(match &answer {
                Refusal::Endless(_) => LockEvent::NeverExpires(holder, target.key.redis_key().to_owned()),
                _ => LockEvent::Contended(holder),
            });
        }
        let state = State::Contending { lost: lost.cloned(), answer: Some(answer) };
        if !self.states.current().shows_same_as(&state) {
            self.context.metrics.acquisition(error.reason().as_str());
        }
        debug!(namespace = self.subject.namespace, name = self.subject.name, %error, "not granted");
        self.states.publish(state);
    }

    pub(super) fn send(&self, event: LockEvent) {
        self.context.events.send(&self.subject.reference, event);
    }

    pub(super) fn set_held(&self, is_held: bool) {
        self.context.metrics.set_held(&self.subject.namespace, &self.subject.name, is_held);
    }
}

/// The identity in a key's value: the same for all grants of one holder, so that each holder is announced once.
fn identity_in(value: &str) -> &str {
    value.rsplit_once('@').map_or(value, |(identity, _)| identity)
}
