//! Whether this process reaches a majority of the masters of any cluster. The [Lease](super::lease) goes to one that does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long a process must have reached no majority before it counts as cut off.
const PATIENCE: Duration = Duration::from_secs(3);
/// For how long an answer counts. Clusters are asked more often than that.
const FRESH_FOR: Duration = Duration::from_secs(6);

/// What was noted. Cheap to clone; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reach(Arc<Mutex<Noted>>);

#[derive(Clone, Copy, Debug, Default)]
struct Noted {
    /// When a majority of a cluster last answered.
    reached: Option<Instant>,
    /// Since when there are clusters and none answers.
    cut_off: Option<Instant>,
    /// When it was last noted.
    at: Option<Instant>,
}

impl Reach {
    /// So many clusters were asked, and of so many a majority answered.
    pub(crate) fn note(&self, asked: usize, answered: usize) {
        let (mut noted, now) = (self.noted(), Instant::now());
        noted.at = Some(now);
        if answered > 0 {
            noted.reached = Some(now);
        }
        noted.cut_off = if asked > 0 && answered == 0 { noted.cut_off.or(Some(now)) } else { None };
    }

    /// Whether a majority of some cluster has answered just now.
    pub(crate) fn has_majority(&self) -> bool {
        let noted = self.noted();
        noted.cut_off.is_none() && noted.reached.is_some_and(|at| at.elapsed() <= FRESH_FOR)
    }

    /// Whether there are clusters, and none has answered for a while. Not if nobody has asked of late.
    pub(crate) fn is_cut_off(&self) -> bool {
        let noted = self.noted();
        let is_fresh = noted.at.is_some_and(|at| at.elapsed() <= FRESH_FOR);
        is_fresh && noted.cut_off.is_some_and(|since| since.elapsed() >= PATIENCE)
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        // A panic in between leaves instants that are true.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_process_is_cut_off_when_no_cluster_has_answered_for_a_while() {
        let (reach, second) = (Reach::default(), Duration::from_secs(1));
        assert!(!reach.is_cut_off() && !reach.has_majority(), "nothing is known");
        reach.note(0, 0);
        advance(PATIENCE).await;
        reach.note(0, 0);
        assert!(!reach.is_cut_off() && !reach.has_majority(), "there is no cluster");
        reach.note(2, 1);
        assert!(reach.has_majority());
        reach.note(2, 0);
        assert!(!reach.is_cut_off() && !reach.has_majority(), "one lost answer is nothing");
        advance(PATIENCE).await;
        reach.note(2, 0);
        assert!(reach.is_cut_off());
        reach.note(2, 1);
        assert!(!reach.is_cut_off() && reach.has_majority());
        advance(FRESH_FOR + second).await;
        assert!(!reach.has_majority(), "an old answer");
    }
}
