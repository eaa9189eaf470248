//! Waiting for a lock that another holds: in its queue, woken by its release, and never asleep for longer than a
//! second.
//!
//! One contender of a client [at a time](super::line) waits on the masters for all of them. It listens for releases, then
//! enters the lock's queue on each master. A release tells the first two in that queue who was first: that one tries at
//! once, the other gives it a head start. The queue is a hint and no more: who is named by mistake, or tries out of
//! turn, is still only granted by a majority of votes; and who never hears anything tries when the lease that it saw
//! has ended.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::client::{Client, Wait, until};
use super::error::{Error, MasterError};
use super::fence::Token;
use super::key::LockKey;
use super::lease::{Lease, LeaseOptions};
use super::look::{Call, Lock, Look, Release};
use super::master::{Heard, Master, News, Place, Queued};
use super::owner::Owner;
use super::vote;
use super::watchdog;

/// Longest time between two looks at the lock. Messages can be missed, and a client of another library sends none.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Shortest bound of the pause after contenders split the votes; it doubles with each split.
const SPLIT_PAUSE: Duration = Duration::from_millis(4);
/// Shortest bound of the pause after too few masters answered; it doubles each time.
const OUTAGE_PAUSE: Duration = Duration::from_millis(50);
/// How long the releases of the other masters are waited for after the first one's.
const STRAGGLERS: Duration = Duration::from_millis(10);
/// How long whoever is first in the queue has the lock to itself after a release. What a dead one costs the others.
pub(super) const HEAD_START: Duration = Duration::from_millis(50);
/// How much later than the one before each in the queue tries when the lease of a dead holder ends.
const STAGGER: Duration = Duration::from_millis(5);

/// What the contenders of a client pass on along their line: news of the lock, while somebody listens.
#[derive(Debug, Default)]
pub(super) struct Session {
    news: Option<Inbox>,
}

/// Where a process hears of a lock's releases, on every master.
#[derive(Debug)]
struct Inbox {
    name: Token,
    heard: mpsc::UnboundedReceiver<Heard>,
}

/// Takes the lock, waiting for it.
pub(super) async fn acquire<N: Master>(
    client: &Client<N>,
    key: &LockKey,
    options: &LeaseOptions,
    wait: Wait,
) -> Result<Lease, Error> {
    options.check()?;
    let since = Instant::now();
    let deadline = wait.deadline();
    let in_line = until(deadline, client.lines().turn(key, options.priority));
    let Some(mut turn) = client.unless_closing(in_line).await? else {
        return Err(Error::Contended { holder: None, remaining: None });
    };
    // Others wait: to try first would be to overtake them.
    let others_wait = turn.session.news.is_some() || client.has_just_passed(key);
    let mut contender = Contender { client, key, options, since, place: None, session: &mut turn.session };
    let mut next = if others_wait { Next::Look } else { Next::Try };
    let mut failures = 0;
    loop {
        let (error, pause) = match next {
            Next::Try => match contender.attempt().await {
                Ok(lease) => return Ok(lease),
                Err(Error::Contended { .. }) => {
                    next = Next::Look;
                    continue;
                }
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => (error, Pause::then_try(contender.jittered(OUTAGE_PAUSE, failures))),
            },
            Next::Look => contender.look(failures).await?,
        };
        failures = if pause.is_orderly { 0 } else { failures + 1 };
        next = match client.unless_closing(until(deadline, contender.pause(pause))).await? {
            Some(next) => next,
            None => return Err(error),
        };
    }
}

/// Whether a later attempt would come to the same: what was asked for cannot be had, or nothing can any more.
fn is_final(error: &Error) -> bool {
    match error {
        Error::Invalid(_) | Error::ShutDown => true,
        Error::NoQuorum { failures, needed, masters, .. } => {
            let refusals = failures.iter().filter(|failure| failure.error == MasterError::TtlRefused).count();
            refusals > masters - needed
        }
        _ => false,
    }
}

/// Bounds of a pause: the upper one starts at `first` and doubles with each failure, to a second at most; the lower is
/// half of it, so that nobody spins.
fn pause_bounds(first: Duration, failures: u32) -> (Duration, Duration) {
    let bound = LONGEST_PAUSE.min(first * 2_u32.saturating_pow(failures.min(16)));
    (bound / 2, bound)
}

/// What to do after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Ask for the lock.
    Try,
    /// Look who has it, and where in the queue this one is.
    Look,
}

/// How long to wait for a release.
#[derive(Clone, Copy, Debug)]
struct Pause {
    /// At most so long.
    length: Duration,
    /// What then.
    then: Next,
    /// Masters that must have told of the release, so that a majority is free.
    needed: usize,
    /// Releases of earlier grants are no news.
    from: Option<Token>,
    /// It is for another who holds the lock or goes first, not for a vote or an answer that failed.
    is_orderly: bool,
}

impl Pause {
    fn then_try(length: Duration) -> Self {
        Self { length, then: Next::Try, needed: 1, from: None, is_orderly: false }
    }
}

/// The one of this client's contenders that waits on the masters.
struct Contender<'a, N: Master> {
    client: &'a Client<N>,
    key: &'a LockKey,
    options: &'a LeaseOptions,
    since: Instant,
    place: Option<Entered<'a, N>>,
    session: &'a mut Session,
}

impl<N: Master> Contender<'_, N> {
    async fn attempt(&mut self) -> Result<Lease, Error> {
        // What was heard before is in what the attempt finds.
        while let Some(Ok(heard)) = self.session.news.as_mut().map(|inbox| inbox.heard.try_recv()) {
            self.note(&heard);
        }
        let granted = vote::acquire(self.client, self.key, self.options).await?;
        Ok(watchdog::start(self.client, granted, self.options))
    }

    /// Listens and enters the queue, if it has not before, and sees what to wait for. Fails only where no attempt can
    /// help.
    async fn look(&mut self, failures: u32) -> Result<(Error, Pause), Error> {
        let inbox = if let Some(inbox) = &self.session.news {
            inbox.name
        } else {
            // It may have been released before anybody listened: the look comes after.
            let inbox = listen(self.client, self.key, self.client.propose_token(self.key)?).await;
            self.session.news.insert(inbox).name
        };
        let seen = self.enter(inbox).await?;
        let Look { lock, holder, needed, ahead, .. } = Look::judge(self.client.quorum(), &seen);
        let from = holder.as_deref().and_then(|h| h.parse::<Owner>().ok()).map(|owner| owner.token());
        let (length, then, is_orderly) = match lock {
            Lock::Held(free_in) => {
                let turn = free_in.saturating_add(STAGGER * ahead);
                let longest = self.jittered(LONGEST_PAUSE, 0);
                if turn <= longest { (turn, Next::Try, true) } else { (longest, Next::Look, true) }
            }
            Lock::Free => (LONGEST_PAUSE.min(HEAD_START * ahead), Next::Try, true),
            Lock::Split => (self.jittered(SPLIT_PAUSE, failures), Next::Try, false),
            Lock::Unknown => (self.jittered(OUTAGE_PAUSE, failures), Next::Try, false),
        };
        let error = match lock {
            Lock::Held(free_in) => Error::Contended { holder, remaining: Some(free_in) },
            Lock::Free | Lock::Split => Error::Contended { holder, remaining: None },
            Lock::Unknown => {
                let failed = |(index, answer): (usize, Result<Queued, MasterError>)| {
                    answer.err().map(|error| self.client.failure(index, error))
                };
                let failures: Vec<_> = (0..).zip(seen).filter_map(failed).collect();
                self.client.no_quorum(self.client.masters().len() - failures.len(), failures)
            }
        };
        Ok((error, Pause { length, then, needed, from, is_orderly }))
    }

    /// Enters the queue on all masters, or keeps the place there. Ends as soon as it is plain how the lock stands.
    async fn enter(&mut self, inbox: Token) -> Result<Vec<Result<Queued, MasterError>>, Error> {
        let masters = vec![true; self.client.masters().len()];
        let place = if let Some(entered) = self.place.as_mut().filter(|entered| entered.place.inbox() == inbox) {
            entered.masters = masters;
            Arc::clone(&entered.place)
        } else {
            // A token is unique, so this is too.
            let waiter = Owner::new(self.options.identity.clone(), self.client.propose_token(self.key)?);
            let place = Arc::new(Place::new(&waiter, inbox, self.options.priority, self.since));
            self.place = Some(Entered { client: self.client, key: self.key, place: Arc::clone(&place), masters });
            place
        };
        let deadline = Instant::now() + self.client.call_timeout();
        let mut answers = self.client.ask(0..self.client.masters().len(), |masters, index| {
            let (key, place) = (self.key.clone(), Arc::clone(&place));
            async move { (index, masters[index].enqueue(&key, &place, deadline).await) }
        });
        let mut seen: Vec<Result<Queued, MasterError>> = vec![Err(MasterError::Timeout); self.client.masters().len()];
        while let Some((index, answer)) = answers.next().await {
            seen[index] = answer;
            if Look::judge(self.client.quorum(), &seen).is_plain {
                break;
            }
        }
        self.client.finish_in_background(answers);
        Ok(seen)
    }

    /// Waits until a release names this one, or for so long; answers what to do then.
    async fn pause(&mut self, mut pause: Pause) -> Next {
        let latest = Instant::now() + LONGEST_PAUSE;
        loop {
            match self.called_within(&pause).await {
                Call::Mine => return Next::Try,
                Call::Missed => return Next::Look,
                Call::None => return pause.then,
                Call::Anothers(token) => {
                    // Some masters may have named this one, and taken it off their queue.
                    self.enter_again();
                    let length = self.client.random_between(HEAD_START, HEAD_START * 3 / 2);
                    // While others are named over and over, a look now and then makes sure of the place.
                    let length = length.min(latest.saturating_duration_since(Instant::now()));
                    let needed = self.client.quorum().votes_needed();
                    let from = Token::new(token.get() + 1);
                    pause = Pause { length, then: Next::Look, needed, from, is_orderly: true };
                }
            }
        }
    }

    async fn called_within(&mut self, pause: &Pause) -> Call {
        let mut end = Instant::now() + pause.length;
        let mut release: Option<Release> = None;
        loop {
            let Some(news) = &mut self.session.news else {
                tokio::time::sleep_until(end).await;
                return Call::None;
            };
            let heard = match tokio::time::timeout_at(end, news.heard.recv()).await {
                Ok(Some(heard)) => heard,
                Ok(None) => {
                    // No master tells of releases any more. That is no release: the pause goes on, and the next look
                    // listens anew.
                    self.session.news = None;
                    continue;
                }
                Err(_) => return release.map_or(Call::None, |r| r.call(self.place())),
            };
            self.note(&heard);
            let News::Released { token, next } = heard.news else { return Call::Missed };
            // Late messages of an earlier release.
            if pause.from.is_some_and(|from| token < from) || release.as_ref().is_some_and(|r| token < r.token()) {
                continue;
            }
            if release.as_ref().is_none_or(|r| token > r.token()) {
                release = Some(Release::of(token));
                end = end.min(Instant::now() + STRAGGLERS);
            }
            if let Some(release) = &mut release
                && release.hear(heard.master, next) >= pause.needed
            {
                return release.call(self.place());
            }
        }
    }

    /// Takes note where a master has taken this one's place off its queue.
    fn note(&mut self, heard: &Heard) {
        if let (Some(entered), News::Released { next, .. }) = (&mut self.place, &heard.news)
            && **next == *entered.place.name()
        {
            entered.masters[heard.master] = false;
        }
    }

    fn place(&self) -> &str {
        self.place.as_ref().map_or("", |entered| entered.place.name())
    }

    /// Enters again the queues that have taken this one off. It keeps its place there.
    fn enter_again(&mut self) {
        let Some(entered) = &mut self.place else { return };
        let masters: Vec<_> = (0..).zip(&entered.masters).filter(|(_, has)| !**has).map(|(master, _)| master).collect();
        if !masters.is_empty() {
            entered.masters.fill(true);
            self.client.join_queue(self.key, &entered.place, masters);
        }
    }

    fn jittered(&self, first: Duration, failures: u32) -> Duration {
        let (shortest, longest) = pause_bounds(first, failures);
        self.client.random_between(shortest, longest)
    }
}

/// Begins to listen on all masters; returns once a majority listens or has failed to.
async fn listen<N: Master>(client: &Client<N>, key: &LockKey, name: Token) -> Inbox {
    let (wake, heard) = mpsc::unbounded_channel();
    let deadline = Instant::now() + client.call_timeout();
    let mut answers = client.ask(0..client.masters().len(), |masters, index| {
        let (key, wake) = (key.clone(), wake.clone());
        async move { (index, masters[index].subscribe(&key, name, index, wake, deadline).await) }
    });
    let mut listening = 0;
    while let Some((_, answer)) = answers.next().await {
        listening += usize::from(answer.is_ok());
        if client.quorum().is_reached_by(listening) {
            break;
        }
    }
    client.finish_in_background(answers);
    Inbox { name, heard }
}

/// A place in the queues of those masters, left when dropped.
struct Entered<'a, N: Master> {
    client: &'a Client<N>,
    key: &'a LockKey,
    place: Arc<Place>,
    /// Which masters may have it in their queue.
    masters: Vec<bool>,
}

impl<N: Master> Drop for Entered<'_, N> {
    fn drop(&mut self) {
        let masters: Vec<_> = (0..).zip(&self.masters).filter(|(_, has)| **has).map(|(master, _)| master).collect();
        self.client.leave_queue(self.key, &self.place, masters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second() {
        let longest: Vec<_> = (0..7).map(|failures| pause_bounds(OUTAGE_PAUSE, failures).1.as_millis()).collect();
        assert_eq!(longest, [50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(pause_bounds(OUTAGE_PAUSE, u32::MAX), (LONGEST_PAUSE / 2, LONGEST_PAUSE));
    }
}
