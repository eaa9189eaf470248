//! Futures that are not polled, for a while or ever again.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::plan::LONGEST_PAUSE;
use crate::world::{State, World};

impl State {
    /// Until when a task is paused at this poll, if it is.
    fn pause_at_poll(&mut self, client: usize) -> Option<Instant> {
        let (now, stopped) = (Instant::now(), self.stopped[client]);
        if now < stopped {
            return Some(stopped);
        }
        if !self.faulty || self.plan.pauses == 0 || !self.random.once_in(self.plan.pauses / 4) {
            return None;
        }
        self.tally.pauses += 1;
        let pause = self.random.time(LONGEST_PAUSE);
        self.note(now, || format!("a task of process {client} pauses for {pause:?}"));
        Some(now + pause)
    }
}

/// A task of a process: paused at random polls, whatever it waits for, and while its process is stopped.
pub struct Task<F> {
    work: Pin<Box<F>>,
    world: World,
    client: usize,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<F: Future> Task<F> {
    pub fn new(world: World, client: usize, work: F) -> Self {
        Self { work: Box::pin(work), world, client, pause: None }
    }
}

impl<F: Future> Future for Task<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            let client = self.client;
            let until = self.world.now().pause_at_poll(client);
            let Some(until) = until else {
                self.world.disturb(client);
                return self.work.as_mut().poll(context);
            };
            self.pause = Some(Box::pin(sleep_until(until)));
        }
    }
}

/// A future that its caller drops after a number of polls, whatever it then awaits.
pub struct Dropped<F> {
    work: Option<Pin<Box<F>>>,
    polls: u64,
}

impl<F: Future> Dropped<F> {
    pub fn after(polls: u64, work: F) -> Self {
        Self { work: Some(Box::pin(work)), polls }
    }
}

impl<F: Future> Future for Dropped<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<F::Output>> {
        if self.polls > 0
            && let Some(work) = &mut self.work
        {
            if let Poll::Ready(output) = work.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
            self.polls -= 1;
            if self.polls > 0 {
                return Poll::Pending;
            }
        }
        self.work = None;
        Poll::Ready(None)
    }
}
