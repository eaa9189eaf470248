//! What all reconciles of locks share.

use std::fmt;
use std::sync::Arc;

use super::client_secret::ClientSecrets;
use super::connections::Connections;
use super::events::EventSender;
use super::keeper::Keeper;
use super::keeper::context::KeeperContext;
use super::status::schedule::StatusSchedule;
use super::subject::Subject;
use crate::operator::Context;
use crate::operator::finalizer::AddedFinalizers;

/// What all reconciles of locks share.
pub(crate) struct Reconciler {
    /// API server, watches, leadership and metrics.
    pub(crate) ctx: Context,
    /// Sends Events.
    pub(crate) events: EventSender,
    /// The actors.
    pub(crate) keeper: Keeper,
    /// Schedules status writes.
    pub(crate) schedule: Arc<StatusSchedule>,
    /// The finalizers that were added.
    pub(crate) finalizers: AddedFinalizers,
    /// The connections to clusters.
    pub(crate) connections: Connections,
    /// The Secrets for clients.
    pub(crate) client_secrets: ClientSecrets,
    /// Names of the locks over which reconciles panic.
    #[cfg(test)]
    pub(crate) broken: std::sync::Mutex<Vec<String>>,
}

impl Reconciler {
    /// A reconciler without actors and connections.
    pub(crate) fn new(ctx: &Context, events: EventSender, schedule: Arc<StatusSchedule>) -> Self {
        let context =
            KeeperContext::new(ctx.leadership.clone(), ctx.metrics.clone(), events.clone(), Arc::clone(&schedule));
        Self {
            ctx: ctx.clone(),
            events,
            keeper: Keeper::new(Arc::new(context)),
            schedule,
            finalizers: AddedFinalizers::default(),
            connections: Connections::new(ctx.api.clone(), ctx.metrics.clone()),
            client_secrets: ClientSecrets::new(ctx.api.clone()),
            #[cfg(test)]
            broken: std::sync::Mutex::default(),
        }
    }

    /// Forgets a lock that is gone.
    pub(crate) fn forget(&self, subject: &Subject) {
        self.schedule.forget(&subject.uid);
        self.finalizers.forget(&subject.uid);
        self.ctx.metrics.forget_lock(&subject.namespace, &subject.name);
    }
}

impl fmt::Debug for Reconciler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconciler").finish_non_exhaustive()
    }
}
