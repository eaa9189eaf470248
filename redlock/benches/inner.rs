//! Inner loops of the engine, and their allocations, without network and Redis.

#![allow(missing_docs)] // A program, not a library.
#![allow(clippy::expect_used)] // Without what it measures the program ends.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::{Future, ready};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use divan::{AllocProfiler, Bencher, black_box};
use redlock_engine::claim::Claim;
use redlock_engine::fence::TokenClock;
use redlock_engine::master::{Extension, Heard, Master, Place, Queued, Reading, ReleaseAnswer, Vote};
use redlock_engine::quorum::{Majority, Quorum};
use redlock_engine::validity::valid_until;
use redlock_engine::voters::Voters;
use redlock_engine::{Client, LeaseOptions, LockKey, MasterError, Owner, Released, Renewal, Token, Wait};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::Instant;

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

const MICROS: u64 = 1_796_032_462_123_456;

fn main() {
    divan::main();
}

fn key() -> LockKey {
    LockKey::new("billing", "reports/nightly").expect("a valid name")
}

fn owner() -> Owner {
    Owner::new("billing-7d4f9c-x2x9q", Token::new(MICROS).expect("a valid token"), 0x5eed)
}

#[divan::bench]
fn owner_to_text() -> String {
    black_box(&owner()).to_string()
}

#[divan::bench]
fn owner_from_text() -> Owner {
    black_box("billing-7d4f9c-x2x9q@1796032462123456.0000000000005eed").parse().expect("an owner")
}

#[divan::bench]
fn key_from_names() -> LockKey {
    LockKey::new(black_box("billing"), black_box("reports/nightly")).expect("a valid name")
}

#[divan::bench]
fn fences_key(bencher: Bencher) {
    let key = key();
    bencher.bench_local(|| black_box(&key).fences_key());
}

#[divan::bench]
fn token_proposed(bencher: Bencher) {
    let clock = TokenClock::default();
    bencher.bench_local(|| clock.propose(black_box("billing"), black_box(MICROS)));
}

#[divan::bench]
fn quorum_decided() -> usize {
    let quorum = Quorum::of(black_box(5));
    (0..5).filter(|&yes| quorum.decide(yes, black_box(0)) == Majority::Open).count()
}

#[divan::bench]
fn validity_of_a_grant(bencher: Bencher) {
    let sent_at = Instant::now();
    bencher.bench_local(|| valid_until(black_box(sent_at), black_box(Duration::from_secs(30))));
}

/// The engine's own work for one lock that is acquired and released on N masters that answer at once.
#[divan::bench(args = [1, 3, 5, 7])]
fn acquire_and_release(bencher: Bencher, masters: usize) {
    let runtime = runtime();
    let client = client(&runtime, masters);
    let (key, options) = (key(), LeaseOptions::new("billing-7d4f9c-x2x9q", Duration::from_secs(30)));
    bencher.bench_local(|| {
        let released = runtime.block_on(async {
            let lease = client.acquire(&key, &options, Wait::Forever).await.expect("a free lock");
            lease.release().await
        });
        assert_eq!(released, Released::Freed);
    });
}

/// The same with one attempt that does not wait, for a lease without renewals.
#[divan::bench(args = [5])]
fn try_acquire_and_release(bencher: Bencher, masters: usize) {
    let runtime = runtime();
    let client = client(&runtime, masters);
    let options = LeaseOptions::new("billing-7d4f9c-x2x9q", Duration::from_secs(30));
    let (key, options) = (key(), options.renewal(Renewal::None));
    bencher.bench_local(|| {
        let released = runtime.block_on(async {
            let lease = client.try_acquire(&key, &options).await.expect("a free lock");
            lease.release().await
        });
        assert_eq!(released, Released::Freed);
    });
}

/// Whether a lease is held, which a holder checks before each act.
#[divan::bench]
fn is_held(bencher: Bencher) {
    let runtime = runtime();
    let client = client(&runtime, 5);
    let options = LeaseOptions::new("billing-7d4f9c-x2x9q", Duration::from_secs(3600));
    let lease = runtime.block_on(client.try_acquire(&key(), &options)).expect("a free lock");
    bencher.bench_local(|| black_box(&lease).is_held());
    assert!(lease.is_held());
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn client(runtime: &Runtime, masters: usize) -> Client<MapMaster> {
    let _inside = runtime.enter();
    Client::new((0..masters).map(|_| MapMaster::default()), Duration::from_secs(1)).expect("valid settings")
}

/// A master that is a map. It answers at once, so that only the engine's own work is measured.
#[derive(Debug, Default)]
struct MapMaster {
    held: Mutex<HashMap<LockKey, Owner>>,
}

impl MapMaster {
    fn at<T>(&self, act: impl FnOnce(&mut HashMap<LockKey, Owner>) -> T) -> T {
        act(&mut self.held.lock().expect("nobody panics here"))
    }
}

impl Master for MapMaster {
    fn name(&self) -> &'static str {
        "map"
    }

    // Each is a map of its own.
    fn join(&self, _index: usize, _voters: &Arc<Voters>) {}

    fn reachable(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    fn acquire(&self, claim: &Claim, _deadline: Instant) -> impl Future<Output = Result<Vote, MasterError>> + Send {
        ready(Ok(self.at(|held| match held.entry(claim.key().clone()) {
            Entry::Occupied(_) => Vote::HeldByOther,
            Entry::Vacant(free) => {
                free.insert(claim.owner().clone());
                Vote::Granted
            }
        })))
    }

    fn renew(&self, claim: &Claim, _deadline: Instant) -> impl Future<Output = Result<Extension, MasterError>> + Send {
        ready(Ok(self.at(|held| match held.get(claim.key()) {
            Some(holder) if holder == claim.owner() => Extension::Extended,
            Some(_) => Extension::HeldByOther,
            None => Extension::Missing,
        })))
    }

    fn seed(&self, claim: &Claim, deadline: Instant) -> impl Future<Output = Result<Extension, MasterError>> + Send {
        self.at(|held| {
            held.entry(claim.key().clone()).or_insert_with(|| claim.owner().clone());
        });
        self.renew(claim, deadline)
    }

    fn release(
        &self,
        claim: &Claim,
        _wake: bool,
        _deadline: Instant,
    ) -> impl Future<Output = Result<ReleaseAnswer, MasterError>> + Send {
        ready(Ok(self.at(|held| match held.entry(claim.key().clone()) {
            Entry::Occupied(at) if at.get() == claim.owner() => {
                at.remove();
                ReleaseAnswer::Deleted
            }
            _ => ReleaseAnswer::NotOwner,
        })))
    }

    fn read(&self, key: &LockKey, _deadline: Instant) -> impl Future<Output = Result<Reading, MasterError>> + Send {
        ready(Ok(self.at(|held| Reading { owner: held.get(key).map(Owner::to_string), ..Reading::default() })))
    }

    fn enqueue(
        &self,
        key: &LockKey,
        _place: &Place,
        deadline: Instant,
    ) -> impl Future<Output = Result<Queued, MasterError>> + Send {
        let reading = self.read(key, deadline);
        async { Ok(Queued { reading: reading.await?, ahead: 0 }) }
    }

    fn dequeue(
        &self,
        _key: &LockKey,
        _place: &Place,
        _deadline: Instant,
    ) -> impl Future<Output = Result<(), MasterError>> + Send {
        ready(Ok(()))
    }

    fn subscribe(
        &self,
        _key: &LockKey,
        _inbox: Token,
        _index: usize,
        _wake: mpsc::UnboundedSender<Heard>,
        _deadline: Instant,
    ) -> impl Future<Output = Result<(), MasterError>> + Send {
        ready(Ok(()))
    }
}
