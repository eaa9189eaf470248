//! Waiting for a lock that another holds: woken by its release, and never asleep for longer than a second.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::client::{Client, Wait, most_shown};
use super::error::{Error, NodeError};
use super::key::LockKey;
use super::lease::{Lease, LeaseOptions};
use super::node::{Node, Reading};
use super::vote;
use super::watchdog;

/// Longest time between two attempts. Messages can be missed, and a client of another library sends none.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Shortest bound of the pause after contenders split the votes; it doubles with each split.
const SPLIT_PAUSE: Duration = Duration::from_millis(4);
/// Shortest bound of the pause after too few nodes answered; it doubles each time.
const OUTAGE_PAUSE: Duration = Duration::from_millis(50);
/// How long the releases of the other nodes are waited for after the first one's.
const STRAGGLERS: Duration = Duration::from_millis(10);

/// Takes the lock, waiting for it.
pub(super) async fn acquire<N: Node>(
    client: &Client<N>,
    key: &LockKey,
    options: &LeaseOptions,
    wait: Wait,
) -> Result<Lease, Error> {
    tokio::select! {
        biased;
        () = client.closing().cancelled() => Err(Error::ShutDown),
        granted = contend(client, key, options, wait) => granted,
    }
}

async fn contend<N: Node>(
    client: &Client<N>,
    key: &LockKey,
    options: &LeaseOptions,
    wait: Wait,
) -> Result<Lease, Error> {
    let deadline = match wait {
        Wait::Forever => None,
        // A time beyond the clock's end is for ever.
        Wait::For(time) => Instant::now().checked_add(time),
    };
    // Of this process's contenders only one asks the nodes: the others would split the votes with it.
    let Some(_turn) = until(deadline, client.turn(key).lock_owned()).await else {
        return Err(Error::Contended { holder: None, remaining: None });
    };
    let mut releases = Releases::default();
    let mut failures = 0;
    let jittered = |first, failures| {
        let (shortest, longest) = pause_bounds(first, failures);
        client.random_between(shortest, longest)
    };
    loop {
        // What was heard before this attempt is in what it finds; what is heard from here on is not.
        releases.forget();
        let error = match vote::acquire(client, key, options).await {
            Ok(granted) => return Ok(watchdog::start(client, granted, options.renewal)),
            Err(error @ (Error::Invalid(_) | Error::ShutDown)) => return Err(error),
            Err(error) => error,
        };
        let (error, pause) = match error {
            Error::Contended { .. } if !releases.are_heard() => {
                releases.listen(client, key).await;
                // It may have been released before we listened.
                continue;
            }
            Error::Contended { .. } => {
                let look = Look::at(client, key).await;
                let pause = match look.free_in {
                    Some(free_in) => {
                        failures = 0;
                        free_in.min(jittered(LONGEST_PAUSE, 0))
                    }
                    None => jittered(SPLIT_PAUSE, failures),
                };
                releases.needed = look.needed;
                (Error::Contended { holder: look.holder, remaining: look.free_in }, pause)
            }
            error => (error, jittered(OUTAGE_PAUSE, failures)),
        };
        failures += 1;
        if until(deadline, releases.heard_within(pause)).await.is_none() {
            return Err(error);
        }
    }
}

/// The future's output, or `None` when the deadline comes first.
async fn until<T>(deadline: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, future).await.ok(),
        None => Some(future.await),
    }
}

/// Bounds of a pause: the upper one starts at `first` and doubles with each failure, to a second at most; the lower is half
/// of it, so that nobody spins.
fn pause_bounds(first: Duration, failures: u32) -> (Duration, Duration) {
    let bound = LONGEST_PAUSE.min(first * 2_u32.saturating_pow(failures.min(16)));
    (bound / 2, bound)
}

/// Why an attempt found the lock taken.
struct Look {
    /// Who holds it: the owner on the most nodes.
    holder: Option<String>,
    /// When a majority of nodes will be free unless the holder renews; `None` if nobody holds it, but contenders split
    /// the votes.
    free_in: Option<Duration>,
    /// Releases to be heard until a majority is free.
    needed: usize,
}

impl Look {
    async fn at<N: Node>(client: &Client<N>, key: &LockKey) -> Self {
        Self::judge(client.quorum().votes_needed(), &client.survey(key).await)
    }

    fn judge(majority: usize, readings: &[Result<Reading, NodeError>]) -> Self {
        let silent = readings.iter().filter(|r| r.is_err()).count();
        let free = readings.iter().flatten().filter(|r| r.owner.is_none()).count();
        let needed = majority.saturating_sub(free).max(1);
        let Some((holder, nodes)) = most_shown(readings) else { return Self { holder: None, free_in: None, needed } };
        if nodes + silent < majority {
            return Self { holder: Some(holder), free_in: None, needed };
        }
        // A node that does not answer, or holds a key without end, is not counted on.
        let mut left: Vec<_> = readings
            .iter()
            .map(|r| match r {
                Ok(Reading { owner: None, .. }) => Duration::ZERO,
                Ok(Reading { remaining: Some(left), .. }) => *left,
                _ => LONGEST_PAUSE,
            })
            .collect();
        left.sort_unstable();
        // One millisecond more: a node counts in whole ones.
        let free_in = left.get(majority - 1).map(|left| *left + Duration::from_millis(1));
        Self { holder: Some(holder), free_in, needed }
    }
}

/// Releases of one lock, heard from its nodes.
#[derive(Default)]
struct Releases {
    heard: Option<mpsc::UnboundedReceiver<usize>>,
    needed: usize,
}

impl Releases {
    fn are_heard(&self) -> bool {
        self.heard.is_some()
    }

    /// Begins to listen on all nodes; returns once a majority listens or has failed to.
    async fn listen<N: Node>(&mut self, client: &Client<N>, key: &LockKey) {
        let (wake, heard) = mpsc::unbounded_channel();
        self.heard = Some(heard);
        let (key, deadline) = (Arc::new(key.clone()), Instant::now() + client.node_timeout());
        let mut answers = client.ask(0..client.nodes().len(), |nodes, index| {
            let (key, wake) = (Arc::clone(&key), wake.clone());
            async move { (index, nodes[index].subscribe(&key, index, wake, deadline).await) }
        });
        let mut listening = 0;
        while let Some((_, answer)) = answers.next().await {
            listening += usize::from(answer.is_ok());
            if client.quorum().is_reached_by(listening) {
                break;
            }
        }
        client.finish_in_background(answers);
    }

    fn forget(&mut self) {
        while self.heard.as_mut().is_some_and(|heard| heard.try_recv().is_ok()) {}
    }

    /// Returns when so many nodes as are needed for a majority have released the lock, or after `pause`.
    async fn heard_within(&mut self, pause: Duration) {
        let Some(heard) = &mut self.heard else { return tokio::time::sleep(pause).await };
        let mut nodes = HashSet::new();
        let mut end = Instant::now() + pause;
        while let Ok(heard) = tokio::time::timeout_at(end, heard.recv()).await {
            let Some(node) = heard else {
                // No node tells of releases any more. That is no release: the pause goes on, and the next attempt that
                // finds the lock taken listens anew.
                self.heard = None;
                return tokio::time::sleep_until(end).await;
            };
            if nodes.is_empty() {
                end = end.min(Instant::now() + STRAGGLERS);
            }
            nodes.insert(node);
            if nodes.len() >= self.needed {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(owners: &[Option<(&str, u64)>]) -> Vec<Result<Reading, NodeError>> {
        owners
            .iter()
            .map(|o| {
                Ok(Reading {
                    owner: o.map(|(owner, _)| owner.to_owned()),
                    remaining: o.map(|(_, left)| Duration::from_millis(left)),
                    fence: None,
                })
            })
            .collect()
    }

    #[test]
    fn a_held_lock_is_tried_again_when_a_majority_of_its_keys_has_expired() {
        let a = |left| Some(("a@1", left));
        let look = Look::judge(3, &shown(&[a(500), a(100), a(300), None, None]));
        assert_eq!(look.holder.as_deref(), Some("a@1"));
        assert_eq!(look.free_in, Some(Duration::from_millis(101)));
        assert_eq!(look.needed, 1);
        let look = Look::judge(3, &shown(&[a(500), a(100), a(300), a(200), a(400)]));
        assert_eq!(look.free_in, Some(Duration::from_millis(301)));
        assert_eq!(look.needed, 3);
    }

    #[test]
    fn a_split_vote_has_no_holder_to_wait_for() {
        let look = Look::judge(
            3,
            &shown(&[Some(("a@1", 500)), Some(("a@1", 500)), Some(("b@2", 500)), Some(("b@2", 500)), None]),
        );
        assert_eq!(look.free_in, None);
    }

    #[test]
    fn a_silent_node_may_be_the_holders() {
        let mut readings = shown(&[Some(("a@1", 500)), Some(("a@1", 500)), None, None]);
        readings.push(Err(NodeError::Timeout));
        let look = Look::judge(3, &readings);
        assert_eq!(look.free_in, Some(Duration::from_millis(501)));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_hears_of_no_release_any_more_pauses_and_listens_anew() {
        let (wake, heard) = mpsc::unbounded_channel();
        let mut releases = Releases { heard: Some(heard), needed: 1 };
        drop(wake);
        let began = Instant::now();
        releases.heard_within(LONGEST_PAUSE).await;
        assert_eq!(began.elapsed(), LONGEST_PAUSE);
        assert!(!releases.are_heard());
    }

    #[test]
    fn pauses_double_up_to_a_second() {
        let longest: Vec<_> = (0..7).map(|failures| pause_bounds(OUTAGE_PAUSE, failures).1.as_millis()).collect();
        assert_eq!(longest, [50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(pause_bounds(OUTAGE_PAUSE, u32::MAX), (LONGEST_PAUSE / 2, LONGEST_PAUSE));
    }
}
