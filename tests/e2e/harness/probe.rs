//! The owners of a key on each master over time, while a scenario runs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redlock_engine::Owner;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::redis::{Masters, Owned};

/// How often each master is asked.
const EVERY: Duration = Duration::from_millis(100);

/// One answer of one master, which was true at some time between `sent` and `received`.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// Which master.
    pub master: usize,
    /// Its answer; an error if it could not be asked.
    pub said: Result<Option<Owned>, String>,
    /// Before the request.
    pub sent: Instant,
    /// After the answer.
    pub received: Instant,
}

/// Asks every master for a key until it is finished.
pub struct Probe {
    seen: Arc<Mutex<Vec<Sighting>>>,
    tasks: Vec<JoinHandle<()>>,
    masters: usize,
}

/// All answers to a [`Probe`], in their order.
pub struct Record {
    /// All answers.
    pub seen: Vec<Sighting>,
    masters: usize,
}

impl Probe {
    /// Begins to ask. Every master has been asked once when this returns.
    pub async fn start(masters: &Masters, key: &str) -> Self {
        let seen = Arc::default();
        let tasks = (0..masters.count)
            .map(|index| tokio::spawn(follow(masters.clone(), index, key.to_owned(), Arc::clone(&seen))))
            .collect();
        let probe = Self { seen, tasks, masters: masters.count };
        while (0..masters.count).any(|m| !probe.seen.lock().unwrap().iter().any(|s| s.master == m)) {
            tokio::time::sleep(EVERY).await;
        }
        probe
    }

    /// Waits until every master has had the key of `owner`: a master that did not vote is seeded at a renewal.
    pub async fn until_on_all(&self, owner: &str) {
        let begin = Instant::now();
        let has = |said: &Result<Option<Owned>, String>| {
            said.as_ref().is_ok_and(|o| o.as_ref().is_some_and(|o| o.owner == owner))
        };
        while !(0..self.masters).all(|m| self.seen.lock().unwrap().iter().any(|s| s.master == m && has(&s.said))) {
            assert!(begin.elapsed() < super::PATIENCE, "not every master has the key for {owner}");
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Waits until each of these masters has answered a request that is sent from now on.
    pub async fn catch_up(&self, masters: &[usize]) {
        let now = Instant::now();
        let fresh =
            |m: &usize| self.seen.lock().unwrap().iter().any(|s| s.master == *m && s.sent > now && s.said.is_ok());
        while !masters.iter().all(fresh) {
            assert!(now.elapsed() < super::PATIENCE, "masters {masters:?} do not answer the probe");
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Ends the probe, and returns its answers.
    pub fn finish(self) -> Record {
        self.tasks.iter().for_each(JoinHandle::abort);
        let mut seen = std::mem::take(&mut *self.seen.lock().unwrap());
        seen.sort_by_key(|s| s.received);
        Record { seen, masters: self.masters }
    }
}

async fn follow(masters: Masters, master: usize, key: String, seen: Arc<Mutex<Vec<Sighting>>>) {
    loop {
        let sent = Instant::now();
        let add = |sent, said: Result<Option<Owned>, String>| {
            let sighting = Sighting { master, said, sent, received: Instant::now() };
            seen.lock().unwrap().push(sighting);
        };
        match masters.connect(master).await {
            Err(error) => add(sent, Err(error)),
            Ok(mut connection) => loop {
                let sent = Instant::now();
                let said = connection.read(&key).await;
                let broken = said.is_err();
                add(sent, said);
                if broken {
                    break;
                }
                tokio::time::sleep(EVERY).await;
            },
        }
        tokio::time::sleep(EVERY).await;
    }
}

impl Record {
    /// The answers of one master, without errors.
    pub fn of(&self, master: usize) -> impl Iterator<Item = (&Sighting, Option<&Owned>)> {
        let of_master = self.seen.iter().filter(move |s| s.master == master);
        of_master.filter_map(|s| s.said.as_ref().ok().map(|said| (s, said.as_ref())))
    }

    /// Checks that these masters had the key of `owner` in every answer.
    pub fn assert_always_owned(&self, masters: &[usize], owner: &str) {
        for &master in masters {
            assert!(self.of(master).count() > 1, "master {master} hardly answered");
            for (sighting, said) in self.of(master) {
                assert_eq!(said.map(|o| o.owner.as_str()), Some(owner), "{sighting:?}");
            }
        }
    }

    /// Checks that the key of `owner` was deleted on this master: it was gone before it could expire.
    pub fn assert_deleted(&self, master: usize, owner: &str) {
        let answers: Vec<_> = self.of(master).collect();
        let last = answers.iter().rposition(|(_, said)| said.is_some_and(|o| o.owner == owner));
        let last = last.unwrap_or_else(|| panic!("master {master} never had the key for {owner}"));
        let (before, said) = answers[last];
        let (after, _) =
            answers.get(last + 1).unwrap_or_else(|| panic!("master {master} has the key still: {before:?}"));
        let expiry = before.sent + said.map(|o| o.left).unwrap_or_default();
        assert!(after.received < expiry, "on master {master} the key may have expired: {before:?} {after:?}");
    }

    /// Owners that had the key on a majority of the masters, in their order, each with the time of the first sighting.
    pub fn majorities(&self) -> Vec<(Owner, Instant)> {
        let mut now: Vec<Option<&str>> = vec![None; self.masters];
        let mut all: Vec<(Owner, Instant)> = Vec::new();
        for sighting in &self.seen {
            now[sighting.master] = sighting.said.as_ref().ok().and_then(|o| o.as_ref()).map(|o| o.owner.as_str());
            let Some(owner) = now[sighting.master] else { continue };
            let votes = now.iter().filter(|o| **o == Some(owner)).count();
            let owner: Owner = owner.parse().expect("an owner of the engine");
            if votes > self.masters / 2 && all.last().is_none_or(|(last, _)| *last != owner) {
                all.push((owner, sighting.received));
            }
        }
        all
    }

    /// Checks that each owner with a majority has a larger token than the owner before.
    pub fn assert_tokens_only_grow(&self) {
        let all = self.majorities();
        for pair in all.windows(2) {
            assert!(pair[0].0.token() < pair[1].0.token(), "{} was followed by {}", pair[0].0, pair[1].0);
        }
    }
}
