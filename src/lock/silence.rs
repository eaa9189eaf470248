//! How long leases are renewed while the API server says nothing.
//!
//! # Invariant
//! A process that does not lead renews only what it knows is wanted: its knowledge of the locks is at most
//! [`Context::renew_without_api_server`](crate::operator::Context) old, by its own monotonic clock, counted from when it was last told
//! anything by the watch of locks. A lock that was deleted meanwhile is not kept for longer than that and its TTL. If this task sleeps
//! past that moment, so does the process, and with it the renewals.
//!
//! A leader has no such bound: it hears of the API server each few seconds, or does not lead.

use std::time::Duration;

use futures::Stream;
use futures::channel::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::reconciler::Reconciler;
use crate::operator::Context;

/// How often the silence is measured.
const PERIOD: Duration = Duration::from_secs(1);
/// What is watched, in the path of its requests.
const LOCKS: &str = "distributedlocks";

/// Ends the renewals in time, and asks for reconciles when the API server is heard again.
#[derive(Debug)]
pub(crate) struct Silence {
    heard_again: mpsc::UnboundedSender<()>,
}

/// Whether this process must not renew what it holds: it does not lead, and has not been told of locks for too long.
pub(crate) fn is_too_long(ctx: &Context) -> bool {
    let silence = ctx.pulses.silence(LOCKS);
    !ctx.leadership.is_leader() && silence.is_some_and(|silence| silence > ctx.renew_without_api_server)
}

impl Silence {
    /// Also the stream on which all locks are to be reconciled.
    pub(crate) fn new() -> (Self, impl Stream<Item = ()> + Send + 'static) {
        let (heard_again, reconciles) = mpsc::unbounded();
        (Self { heard_again }, reconciles)
    }

    /// Measures the silence, for ever.
    pub(crate) async fn run(&self, reconciler: &Reconciler) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut was_too_long = false;
        loop {
            ticks.tick().await;
            let is_too_long = is_too_long(&reconciler.ctx);
            if is_too_long {
                if !was_too_long {
                    let limit = reconciler.ctx.renew_without_api_server;
                    warn!(
                        ?limit,
                        "the API server says nothing of locks any more: held locks are not renewed from now on"
                    );
                }
                // Each time: a reconcile that had looked before may have begun to renew another.
                reconciler.keeper.abandon_all().await;
            } else if was_too_long {
                info!("the API server is heard again: held locks that still stand are renewed");
                // Fails only after the controller has ended, and then the process ends too.
                let _ = self.heard_again.unbounded_send(());
            }
            was_too_long = is_too_long;
        }
    }
}
