//! Whether this process leads right now, by its own clock. Only a leader decides.

use futures::{Stream, StreamExt, stream};
use tokio::sync::watch;
use tokio::time::Instant;

/// Until when this process leads; `None` while it does not.
///
/// An instant and not a flag: the task that would clear the flag may sleep (a stopped process, a starved runtime) while
/// another process takes over. The instant lies before the earliest moment at which another process can lead.
pub(crate) type Term = Option<Instant>;

/// Whether this process leads. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Leadership {
    term: watch::Receiver<Term>,
}

impl Leadership {
    /// A leadership that follows `term`. (The [lease task](super::lease) owns the sender.)
    #[must_use]
    pub(crate) fn new(term: watch::Receiver<Term>) -> Self {
        Self { term }
    }

    /// A leadership that never ends: where there is no operator for certain, and in tests.
    #[must_use]
    pub(crate) fn always() -> Self {
        const FAR: std::time::Duration = std::time::Duration::from_secs(30 * 365 * 24 * 3600);
        Self::new(watch::channel(Some(Instant::now() + FAR)).1)
    }

    /// Whether this process leads right now, by its own monotonic clock. Needs no network and does not wait.
    #[must_use]
    pub(crate) fn is_leader(&self) -> bool {
        leads(*self.term.borrow())
    }

    /// Whether this process leads, at each change after the call. A renewed term is no change. The end of a term that is
    /// not renewed shows only in [`Self::is_leader`]; it ends the process.
    pub(crate) fn changes(&self) -> impl Stream<Item = bool> + Send + 'static {
        let mut term = self.term.clone();
        let known = leads(*term.borrow_and_update());
        stream::unfold((term, known), |(mut term, known)| async move {
            loop {
                term.changed().await.ok()?;
                let now = leads(*term.borrow_and_update());
                if now != known {
                    return Some((now, (term, now)));
                }
            }
        })
        .fuse()
    }

    /// Ends when this process leads. Never ends if the lease task has ended before.
    pub(crate) async fn wait_until_leader(&self) {
        let mut term = self.term.clone();
        if term.wait_for(|&term| leads(term)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn leads(term: Term) -> bool {
    term.is_some_and(|until| Instant::now() < until)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: std::time::Duration = std::time::Duration::from_secs(9);

    #[tokio::test(start_paused = true)]
    async fn a_term_ends_by_the_clock_though_nobody_ends_it() {
        let (sender, term) = watch::channel(None);
        let leadership = Leadership::new(term);
        assert!(!leadership.is_leader());
        sender.send_replace(Some(Instant::now() + TERM));
        assert!(leadership.is_leader());
        tokio::time::advance(TERM).await;
        assert!(!leadership.is_leader());
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewed_term_is_no_change() {
        let (sender, term) = watch::channel(None);
        let mut changes = Box::pin(Leadership::new(term).changes());
        sender.send_replace(Some(Instant::now() + TERM));
        assert_eq!(changes.next().await, Some(true));
        sender.send_replace(Some(Instant::now() + 2 * TERM));
        assert!(futures::poll!(changes.next()).is_pending());
        sender.send_replace(None);
        assert_eq!(changes.next().await, Some(false));
        drop(sender);
        assert_eq!(changes.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_follower_hears_when_it_leads() {
        let (sender, term) = watch::channel(None);
        let leadership = Leadership::new(term);
        let mut waiting = Box::pin(leadership.wait_until_leader());
        assert!(futures::poll!(&mut waiting).is_pending());
        sender.send_replace(Some(Instant::now() + TERM));
        waiting.await;
        Leadership::always().wait_until_leader().await;
        assert!(Leadership::always().is_leader());
    }
}
