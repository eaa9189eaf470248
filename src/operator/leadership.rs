//! Whether this process leads right now, by its own clock. Only a leader decides.
//!
//! A process leads in terms, and may lead again after another process has led. What was decided in one term must not be
//! carried out in a later one: in between others may have decided otherwise. So work that decides runs
//! [within a term](Leadership::within_term), after whose end it finds that it does not lead, for ever.

use std::future::Future;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use tokio::sync::watch;
use tokio::time::Instant;

/// Longer than a process lives.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

tokio::task_local! {
    /// The number of the term to which the present task is bound.
    static BOUND: u64;
}

/// A time in which this process leads.
///
/// An instant and not a flag: the task that would clear the flag may sleep (a stopped process, a starved runtime) while
/// another process takes over. The instant lies before the earliest moment at which another process can lead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Term {
    /// Which of this process's terms it is, or was last; 0 before the first.
    number: u64,
    /// Until when this process leads; `None` while it does not.
    until: Option<Instant>,
}

/// Whether this process leads. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Leadership {
    term: watch::Receiver<Term>,
}

/// Says whether this process leads. (The [lease task](super::lease) owns it.)
#[derive(Debug)]
pub(crate) struct Terms {
    sender: watch::Sender<Term>,
}

// === impl Terms ===

impl Terms {
    /// A process that does not lead, and its leadership as the rest of the process sees it.
    pub(crate) fn new() -> (Self, Leadership) {
        let (sender, term) = watch::channel(Term::default());
        (Self { sender }, Leadership { term })
    }

    /// This process leads until then. A term that had ended by the clock is not extended: a new one begins.
    pub(crate) fn lead_until(&self, until: Instant) {
        self.sender.send_modify(|term| {
            let number = if term.is_on() { term.number } else { term.number + 1 };
            *term = Term { number, until: Some(until) };
        });
    }

    /// This process does not lead any more.
    pub(crate) fn end(&self) {
        self.sender.send_if_modified(|term| term.until.take().is_some());
    }

    /// Until when this process leads, also if that is over; `None` if it does not.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.sender.borrow().until
    }
}

// === impl Leadership ===

impl Leadership {
    /// A leadership that never ends: where there is no operator for certain, and in tests.
    #[must_use]
    pub(crate) fn always() -> Self {
        let (terms, leadership) = Terms::new();
        terms.lead_until(Instant::now() + FAR);
        leadership
    }

    /// Whether this process leads right now, by its own monotonic clock: within a term, whether it leads in that term still.
    /// Needs no network and does not wait.
    #[must_use]
    pub(crate) fn is_leader(&self) -> bool {
        let term = *self.term.borrow();
        term.is_on() && BOUND.try_with(|bound| *bound == term.number).unwrap_or(true)
    }

    /// The number of the present term, or of the last one. Within a term, of that.
    #[must_use]
    pub(crate) fn term(&self) -> u64 {
        BOUND.try_with(|bound| *bound).unwrap_or_else(|_| self.term.borrow().number)
    }

    /// Runs `work` bound to the term that it begins in: [`Self::is_leader`], and with it every write, is refused to it from
    /// the end of that term on, however long it sleeps, and also if this process leads again. Tasks that it spawns are not
    /// bound.
    pub(crate) fn within_term<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        BOUND.scope(self.term(), work)
    }

    /// Whether this process leads, at each change after the call. A renewed term is no change. A new term is one, also if the
    /// end of the one before was missed.
    pub(crate) fn changes(&self) -> impl Stream<Item = bool> + Send + 'static {
        let mut term = self.term.clone();
        let seen = |term: Term| (term.number, term.is_on());
        let known = seen(*term.borrow_and_update());
        stream::unfold((term, known), move |(mut term, known)| async move {
            loop {
                term.changed().await.ok()?;
                let now = seen(*term.borrow_and_update());
                if now != known {
                    return Some((now.1, (term, now)));
                }
            }
        })
        .fuse()
    }

    /// Ends when this process leads. Never ends if the lease task has ended before.
    pub(crate) async fn wait_until_leader(&self) {
        let mut term = self.term.clone();
        if term.wait_for(Term::is_on).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

// === impl Term ===

impl Term {
    fn is_on(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Duration = Duration::from_secs(9);

    #[tokio::test(start_paused = true)]
    async fn a_term_ends_by_the_clock_though_nobody_ends_it() {
        let (terms, leadership) = Terms::new();
        assert!(!leadership.is_leader());
        terms.lead_until(Instant::now() + TERM);
        assert!(leadership.is_leader());
        tokio::time::advance(TERM).await;
        assert!(!leadership.is_leader());
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewed_term_is_no_change_and_a_new_one_is() {
        let (terms, leadership) = Terms::new();
        let mut changes = Box::pin(leadership.changes());
        terms.lead_until(Instant::now() + TERM);
        assert_eq!(changes.next().await, Some(true));
        terms.lead_until(Instant::now() + 2 * TERM);
        assert!(futures::poll!(changes.next()).is_pending());
        terms.end();
        assert_eq!(changes.next().await, Some(false));
        terms.lead_until(Instant::now() + TERM);
        assert_eq!(changes.next().await, Some(true));
        // Nobody looked when it ended.
        terms.end();
        terms.lead_until(Instant::now() + TERM);
        assert_eq!(changes.next().await, Some(true), "another term");
        drop(terms);
        assert_eq!(changes.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_follower_hears_when_it_leads() {
        let (terms, leadership) = Terms::new();
        let mut waiting = Box::pin(leadership.wait_until_leader());
        assert!(futures::poll!(&mut waiting).is_pending());
        terms.lead_until(Instant::now() + TERM);
        waiting.await;
        Leadership::always().wait_until_leader().await;
        assert!(Leadership::always().is_leader());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_begun_in_one_term_does_not_lead_in_the_next() {
        let (terms, leadership) = Terms::new();
        terms.lead_until(Instant::now() + TERM);
        let (begun, slept) = (leadership.clone(), tokio::sync::Notify::new());
        let mut work = Box::pin(leadership.within_term(async {
            let led = begun.is_leader();
            slept.notified().await;
            // What it calls is bound as well.
            let still = begun.within_term(async { begun.is_leader() }).await;
            (led, begun.term(), still)
        }));
        assert!(futures::poll!(&mut work).is_pending());
        tokio::time::advance(TERM).await;
        terms.lead_until(Instant::now() + TERM);
        assert!(leadership.is_leader());
        slept.notify_one();
        assert_eq!(work.await, (true, 1, false));
        assert_eq!(leadership.within_term(async { (begun.term(), begun.is_leader()) }).await, (2, true));
    }
}
