//! Waits for a lock that another holds: in the masters' queues, told by a release, and checking at least once a second.
//!
//! One contender of a client [at a time](crate::local_queue) waits on the masters, for all of them. It subscribes to
//! releases, then enters the lock's queue on each master. A release tells the first two contenders in that queue which
//! was first: that one tries at once, the other gives it a head start. The queue is only a hint. A contender that is
//! named by mistake, or tries out of turn, is still granted the lock only by a majority of votes. A contender that never
//! hears anything tries when the lease that it saw has ended.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::acquire::try_acquire;
use crate::error::{Error, MasterError};
use crate::fence::Token;
use crate::key::LockKey;
use crate::lease::{Lease, LeaseOptions};
use crate::local_queue::{LocalQueues, Seat, Stint};
use crate::master::{Heard, Master, News, Place, Queued};
use crate::masters::Masters;
use crate::protocol::contention::{Contention, ENDLESS, MessageVerdict, NextTurn, ReleaseMessages, Standing};
use crate::protocol::waiting::{LONGEST_PAUSE, NextStep, Pause, is_final, is_of_own_options};

/// How long the messages of the other masters are waited for after the first about a release.
const STRAGGLERS: Duration = Duration::from_millis(10);

/// How long to wait for a lock that another holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until it is granted.
    Forever,
    /// At most this time. Calls that are under way then still end, each within the call timeout. The first contender in
    /// the local queue makes one attempt in any case.
    For(Duration),
}

impl Wait {
    /// When it ends; `None` for never, and for a time beyond the clock's end.
    pub(crate) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Forever => None,
            Self::For(time) => Instant::now().checked_add(time),
        }
    }

    /// What is left of a wait that ends then.
    pub(crate) fn until(deadline: Option<Instant>) -> Self {
        deadline.map_or(Self::Forever, |at| Self::For(at.saturating_duration_since(Instant::now())))
    }
}

/// The future's output, or `None` when the deadline comes first.
pub(crate) async fn until<T>(deadline: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, future).await.ok(),
        None => Some(future.await),
    }
}

/// What the contenders of a client pass on along their local queue: the inbox, while one subscribes.
#[derive(Debug, Default)]
pub(crate) struct Session {
    inbox: Option<Inbox>,
    /// The holder without an end that was warned of.
    endless: Option<String>,
}

impl Session {
    /// Warns of a key that never expires, once for each holder: nobody gets the lock until somebody deletes the key.
    fn warn_of_endless(&mut self, key: &LockKey, contention: &Contention) {
        let endless = contention.holder.as_ref().filter(|_| contention.standing == Standing::Held(ENDLESS));
        if endless != self.endless.as_ref() {
            self.endless = endless.cloned();
            if let Some(holder) = endless {
                tracing::warn!(%key, holder, "the lock's key never expires: DEL {} on the masters frees it", key.redis_key());
            }
        }
    }
}

/// Where a process hears of a lock's releases, on every master.
#[derive(Debug)]
struct Inbox {
    name: Token,
    heard: mpsc::UnboundedReceiver<Heard>,
}

/// Takes the lock, waiting for it.
pub(crate) async fn acquire<M: Master>(
    masters: &Arc<Masters<M>>,
    local_queues: &Arc<LocalQueues<Session>>,
    key: &LockKey,
    options: &LeaseOptions,
    wait: Wait,
) -> Result<Lease, Error> {
    options.validate()?;
    let since = Instant::now();
    let deadline = wait.deadline();
    let seat = local_queues.seat(key, options.priority, masters.call_timeout());
    // Others may wait: to try first would be to overtake them.
    let mut next = if masters.hand_overs.is_recent(key, Instant::now) { NextStep::Check } else { NextStep::Try };
    let mut failures = 0;
    loop {
        let Some(mut turn) = masters.unless_closing(until(deadline, seat.turn(deadline))).await? else {
            return Err(Error::Contended { holder: None, remaining: None });
        };
        if turn.session.inbox.is_some() {
            next = NextStep::Check;
        }
        let stint = turn.stint();
        let session = &mut turn.session;
        let contender =
            Contender { masters, key, options, since, seat: &seat, stint: &stint, failures, place: None, session };
        // Dropped where the turn was taken away, with what it had under way.
        let end = stint.run(contender.contend(next, deadline)).await;
        drop(turn);
        next = NextStep::Check;
        match end {
            Some(Ok(TurnEnd::Granted(lease))) => return Ok(lease),
            Some(Err(error)) => return Err(error),
            Some(Ok(TurnEnd::Refused { error, pause, failures: so_far })) => {
                failures = so_far;
                if masters.unless_closing(until(deadline, tokio::time::sleep(pause))).await?.is_none() {
                    return Err(error);
                }
            }
            Some(Ok(TurnEnd::Displaced)) | None => {}
        }
    }
}

/// How a contender's turn ends, other than by an error that ends its wait.
enum TurnEnd {
    /// It is granted the lock.
    Granted(Lease),
    /// What it asks for cannot be had now, and others wait: it tries again after the pause.
    Refused { error: Error, pause: Duration, failures: u32 },
    /// A contender of higher priority waits.
    Displaced,
}

/// The contender of this client that waits on the masters.
struct Contender<'a, M: Master> {
    masters: &'a Arc<Masters<M>>,
    seat: &'a Seat<Session>,
    stint: &'a Stint,
    /// Attempts that have failed in a row.
    failures: u32,
    key: &'a LockKey,
    options: &'a LeaseOptions,
    since: Instant,
    place: Option<Enqueued<'a, M>>,
    session: &'a mut Session,
}

impl<M: Master> Contender<'_, M> {
    /// Contends until its turn, or its wait, is over.
    async fn contend(mut self, mut next: NextStep, deadline: Option<Instant>) -> Result<TurnEnd, Error> {
        let masters = self.masters;
        loop {
            let (error, pause) = match next {
                NextStep::Try => match self.attempt().await {
                    Ok(lease) => return Ok(TurnEnd::Granted(lease)),
                    Err(Error::Contended { .. } | Error::Split) => {
                        self.failures += 1;
                        next = NextStep::Check;
                        continue;
                    }
                    Err(error) if is_final(&error) => return Err(error),
                    Err(error) => {
                        let pause = Pause::after_outage(self.failures, |from, to| masters.random_between(from, to));
                        self.failures += 1;
                        if is_of_own_options(&error) && self.seat.others_wait() {
                            return Ok(TurnEnd::Refused { error, pause: pause.length, failures: self.failures });
                        }
                        (error, pause)
                    }
                },
                NextStep::Check => self.check().await?,
            };
            if pause.then == NextStep::Check {
                // Another holds the lock for longer.
                self.failures = 0;
            }
            let stint = self.stint;
            let paused = async {
                tokio::select! {
                    biased;
                    next = self.pause(pause) => Some(next),
                    () = stint.displaced() => None,
                }
            };
            next = match masters.unless_closing(until(deadline, paused)).await? {
                Some(Some(next)) => next,
                Some(None) => return Ok(TurnEnd::Displaced),
                None => return Err(error),
            };
        }
    }

    async fn attempt(&mut self) -> Result<Lease, Error> {
        // The attempt itself finds what earlier messages say.
        while let Some(Ok(heard)) = self.session.inbox.as_mut().map(|inbox| inbox.heard.try_recv()) {
            self.note(&heard);
        }
        try_acquire(self.masters, self.key, self.options).await
    }

    /// Subscribes and enters the queue, if it has not before, and decides what to wait for. Returns also the error to end
    /// with if the time is over meanwhile. Fails only where no attempt can help.
    async fn check(&mut self) -> Result<(Error, Pause), Error> {
        let inbox = if let Some(inbox) = &self.session.inbox {
            inbox.name
        } else {
            // The lock may have been released before the subscription: the queue is entered, and the lock read, after it.
            let inbox = subscribe(self.masters, self.key, self.masters.propose_token(self.key)?).await;
            self.session.inbox.insert(inbox).name
        };
        let answers = self.enter(inbox).await?;
        let contention = Contention::of(self.masters.quorum(), &answers);
        self.session.warn_of_endless(self.key, &contention);
        let pause = Pause::after_check(&contention, self.failures, |from, to| self.masters.random_between(from, to));
        let error = if contention.standing == Standing::Unknown {
            let failed = (0..).zip(answers).filter_map(|(index, answer)| Some((index, answer.err()?)));
            let failures = self.masters.name_failures(failed);
            Error::no_quorum(self.masters.quorum(), self.masters.count() - failures.len(), failures)
        } else {
            contention.to_error()
        };
        Ok((error, pause))
    }

    /// Enters the queue on all masters, or keeps the place there. Ends as soon as the lock's standing is decided.
    async fn enter(&mut self, inbox: Token) -> Result<Vec<Result<Queued, MasterError>>, Error> {
        let masters = vec![true; self.masters.count()];
        let place = if let Some(enqueued) = self.place.as_mut().filter(|enqueued| enqueued.place.inbox() == inbox) {
            enqueued.masters_with_it = masters;
            Arc::clone(&enqueued.place)
        } else {
            // A token is unique, so this is too.
            let contender = self.masters.new_owner(self.key, &self.options.identity)?;
            let place = Arc::new(Place::new(&contender, inbox, self.options.priority, self.since));
            self.stint.clean_up_with({
                let (masters, key, place) = (Arc::clone(self.masters), self.key.clone(), Arc::clone(&place));
                move || leave_in_background(&masters, &key, &place, (0..masters.count()).collect())
            });
            self.place = Some(Enqueued {
                masters: self.masters,
                key: self.key,
                place: Arc::clone(&place),
                masters_with_it: masters,
            });
            place
        };
        let deadline = self.masters.call_deadline(Instant::now());
        let mut answers = self.masters.ask(0..self.masters.count(), |masters, index| {
            let (key, place) = (self.key.clone(), Arc::clone(&place));
            async move { (index, masters[index].enqueue(&key, &place, deadline).await) }
        });
        let mut heard: Vec<Result<Queued, MasterError>> = vec![Err(MasterError::Timeout); self.masters.count()];
        while let Some((index, answer)) = answers.next().await {
            heard[index] = answer;
            if Contention::of(self.masters.quorum(), &heard).is_decided {
                break;
            }
        }
        self.masters.finish_in_background(answers);
        Ok(heard)
    }

    /// Waits until a release names this contender, or the pause is over; returns what to do then.
    async fn pause(&mut self, mut pause: Pause) -> NextStep {
        let latest = Instant::now() + LONGEST_PAUSE;
        loop {
            match self.hear_of_release(&pause).await {
                NextTurn::Ours => return NextStep::Try,
                NextTurn::Missed => return NextStep::Check,
                NextTurn::Nobody => return pause.then,
                NextTurn::Another(token) => {
                    // Some masters may have named this contender, and removed it from their queue.
                    self.enter_again();
                    let longest = latest.saturating_duration_since(Instant::now());
                    let draw = |from, to| self.masters.random_between(from, to);
                    pause = Pause::behind_another(self.masters.quorum(), token, longest, draw);
                }
            }
        }
    }

    /// Hears messages until they decide which contender is next, at most for the pause.
    async fn hear_of_release(&mut self, pause: &Pause) -> NextTurn {
        let mut end = Instant::now() + pause.length;
        let mut messages = ReleaseMessages::new(pause.from, pause.needed);
        loop {
            let Some(inbox) = &mut self.session.inbox else {
                tokio::time::sleep_until(end).await;
                return NextTurn::Nobody;
            };
            let heard = match tokio::time::timeout_at(end, inbox.heard.recv()).await {
                Ok(Some(heard)) => heard,
                Ok(None) => {
                    // No master tells of releases any more. That is no release: the pause goes on, and the next check
                    // subscribes again.
                    self.session.inbox = None;
                    continue;
                }
                Err(_) => return messages.next_turn(self.place()),
            };
            self.note(&heard);
            let News::Released { token, next } = heard.news else { return NextTurn::Missed };
            match messages.hear(heard.master, token, next, self.place()) {
                MessageVerdict::Decided(turn) => return turn,
                MessageVerdict::First => end = end.min(Instant::now() + STRAGGLERS),
                MessageVerdict::Late | MessageVerdict::Further => {}
            }
        }
    }

    /// Takes note where a master has removed this contender's place from its queue.
    fn note(&mut self, heard: &Heard) {
        if let (Some(enqueued), News::Released { next, .. }) = (&mut self.place, &heard.news)
            && **next == *enqueued.place.name()
        {
            enqueued.masters_with_it[heard.master] = false;
        }
    }

    fn place(&self) -> &str {
        self.place.as_ref().map_or("", |enqueued| enqueued.place.name())
    }

    /// Enters again the queues that have removed this contender. It keeps its place there.
    fn enter_again(&mut self) {
        let Some(enqueued) = &mut self.place else { return };
        let without = enqueued.indexes(false);
        if !without.is_empty() {
            enqueued.masters_with_it.fill(true);
            enter_in_background(self.masters, self.key, &enqueued.place, without);
        }
    }
}

/// Subscribes to releases on all masters. Returns once a majority has subscribed, or all have answered.
///
/// In tasks of their own: a master takes one subscription at a time, and a wait that nobody polls must not hold up those of
/// other locks.
async fn subscribe<M: Master>(masters: &Arc<Masters<M>>, key: &LockKey, name: Token) -> Inbox {
    let (wake, heard) = mpsc::unbounded_channel();
    let deadline = masters.call_deadline(Instant::now());
    let mut answers = masters.ask(0..masters.count(), |masters, index| {
        let (key, wake) = (key.clone(), wake.clone());
        tokio::spawn(async move { masters[index].subscribe(&key, name, index, wake, deadline).await })
    });
    let mut subscribed = 0;
    while let Some(answer) = answers.next().await {
        subscribed += usize::from(matches!(answer, Ok(Ok(()))));
        if masters.quorum().is_reached_by(subscribed) {
            break;
        }
    }
    Inbox { name, heard }
}

/// Enters the queues of some masters, in the background.
fn enter_in_background<M: Master>(masters: &Masters<M>, key: &LockKey, place: &Arc<Place>, indexes: Vec<usize>) {
    masters.send_in_background(|| {
        let deadline = masters.call_deadline(Instant::now());
        masters.ask(indexes, |masters, index| {
            let (key, place) = (key.clone(), Arc::clone(place));
            async move { masters[index].enqueue(&key, &place, deadline).await }
        })
    });
}

/// Leaves the queues of some masters, in the background.
fn leave_in_background<M: Master>(masters: &Masters<M>, key: &LockKey, place: &Arc<Place>, indexes: Vec<usize>) {
    masters.send_in_background(|| {
        let deadline = masters.call_deadline(Instant::now());
        masters.ask(indexes, |masters, index| {
            let (key, place) = (key.clone(), Arc::clone(place));
            async move { masters[index].dequeue(&key, &place, deadline).await }
        })
    });
}

/// A place in the masters' queues, left when dropped.
struct Enqueued<'a, M: Master> {
    masters: &'a Arc<Masters<M>>,
    key: &'a LockKey,
    place: Arc<Place>,
    /// For each master, whether it may have the place in its queue.
    masters_with_it: Vec<bool>,
}

impl<M: Master> Enqueued<'_, M> {
    /// The masters that may have it in their queue, or those that do not.
    fn indexes(&self, with_it: bool) -> Vec<usize> {
        (0..).zip(&self.masters_with_it).filter(|(_, has)| **has == with_it).map(|(index, _)| index).collect()
    }
}

impl<M: Master> Drop for Enqueued<'_, M> {
    fn drop(&mut self) {
        leave_in_background(self.masters, self.key, &self.place, self.indexes(true));
    }
}
