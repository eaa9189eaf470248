//! The keeper on real Redis servers: what it acquires, keeps, hands over, adopts and loses.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::reflector::ObjectRef;
use redlock_engine::{LeaseOptions, LockKey, Loss, Marker, Owner, RedisMaster, Released, Renewal, Token};
use redlock_test_servers::server::{
    CALL_TIMEOUT, PATIENCE, Server, delete_everywhere, eventually, gone_everywhere, held_everywhere,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::Keeper;
use super::assignment::{Assignment, LockTarget, WhenLost};
use super::context::KeeperContext;
use super::state::{Ending, Refusal, Sighting, State};
use crate::api::WatchedLock;
use crate::contract::credentials::RootKey;
use crate::lock::connections::{Client, Engine};
use crate::lock::events::{EventSender, LockEvent};
use crate::lock::identity::identity;
use crate::lock::measured_master::MeasuredMaster;
use crate::lock::status::StatusSchedule;
use crate::lock::subject::Subject;
use crate::operator::leadership::{Leadership, Terms};
use crate::operator::metrics::Metrics;

const TTL: Duration = Duration::from_secs(3);

/// The keeper of one process.
struct Process {
    keeper: Keeper,
    reconciles: BoxStream<'static, ObjectRef<WatchedLock>>,
    events: mpsc::Receiver<(ObjectReference, LockEvent)>,
}

impl Process {
    fn new(leadership: Leadership) -> Self {
        let (sender, events) = EventSender::channel();
        let (schedule, reconciles) = StatusSchedule::new(20);
        let context = KeeperContext::new(leadership, Metrics::default(), sender, Arc::new(schedule));
        Self { keeper: Keeper::new(Arc::new(context)), reconciles: reconciles.boxed(), events }
    }

    fn leading() -> Self {
        Self::new(Leadership::always())
    }

    /// The first state that is `wanted`, and the states that were seen before it.
    async fn until(&mut self, subject: &Subject, wanted: impl Fn(&State) -> bool) -> (State, Vec<State>) {
        let mut before = Vec::new();
        let reached = async {
            loop {
                if let Some(state) = self.keeper.state(&subject.uid) {
                    if wanted(&state) {
                        return state;
                    }
                    before.push(state);
                }
                self.reconciles.next().await.expect("the schedule lives");
            }
        };
        match timeout(PATIENCE, reached).await {
            Ok(state) => (state, before),
            Err(tokio::time::error::Elapsed { .. }) => {
                panic!("{} is still {:?}", subject.name, self.keeper.state(&subject.uid))
            }
        }
    }

    async fn until_held(&mut self, subject: &Subject) -> Owner {
        match self.until(subject, State::is_held).await {
            (State::Held { owner, .. }, _) => owner,
            (other, _) => panic!("{other:?}"),
        }
    }

    fn sent_events(&mut self) -> Vec<LockEvent> {
        std::iter::from_fn(|| self.events.recv().now_or_never().flatten()).map(|(_, event)| event).collect()
    }
}

/// The engine of these servers.
pub(crate) fn engine(servers: &[Server]) -> Arc<Engine> {
    let masters = servers.iter().map(|server| {
        let calls = Metrics::default().master_calls("locks", "main", &server.endpoint(Marker::Required).name);
        MeasuredMaster::new(RedisMaster::connect(server.endpoint(Marker::Required)), calls)
    });
    Arc::new(Engine::new(Client::new(masters, CALL_TIMEOUT).expect("valid settings"), RootKey::generate()))
}

fn subject(name: &str, number: u8) -> Subject {
    let uid = format!("0b6c1c9e-5d0e-4a53-9f0c-3d9a1a2b3c{number:02x}");
    let reference = ObjectReference { name: Some(name.to_owned()), ..ObjectReference::default() };
    Subject { uid, namespace: "billing".to_owned(), name: name.to_owned(), reference }
}

fn key() -> LockKey {
    LockKey::new("billing", "nightly").expect("a valid key")
}

fn target(engine: &Arc<Engine>) -> LockTarget {
    LockTarget { engine: Arc::clone(engine), key: key() }
}

fn hold(subject: &Subject, ttl: Duration, adopt: Option<Owner>) -> Assignment {
    let options = LeaseOptions::new(identity("job", &subject.uid), ttl);
    Assignment::Hold { term: 1, options, adopt, when_lost: WhenLost::Reacquire }
}

async fn holders(servers: &[Server]) -> Vec<Option<String>> {
    futures::future::join_all(servers.iter().map(async |server| server.get(&key()).await)).await
}

#[tokio::test]
async fn the_second_of_two_resources_gets_the_lock_as_soon_as_the_first_is_released() {
    let servers = Server::start_armed(5).await;
    let (engine, mut process) = (engine(&servers), Process::leading());
    let (first, second) = (subject("first", 1), subject("second", 2));
    process.keeper.assign(&first, target(&engine), hold(&first, Duration::from_secs(30), None));
    let owner = process.until_held(&first).await;
    held_everywhere(&servers, &key(), &owner).await;

    process.keeper.assign(&second, target(&engine), hold(&second, Duration::from_secs(30), None));
    let contended = State::Contending { lost: None, answer: Some(Refusal::Contended(Some(owner.to_string()))) };
    process.until(&second, |state| *state == contended).await;
    assert!(process.sent_events().contains(&LockEvent::Contended("job".to_owned())));

    let released_at = Instant::now();
    let ending = process.keeper.release(&first.uid, None).await;
    assert_eq!(ending, Some(Ending::Released(Released::Freed)));
    let next = process.until_held(&second).await;
    assert!(released_at.elapsed() < Duration::from_secs(2), "{:?}", released_at.elapsed());
    assert!(next.token() > owner.token());
    assert_eq!(process.sent_events(), [LockEvent::Acquired("job".to_owned(), next.token())]);
}

#[tokio::test]
async fn a_new_process_adopts_the_same_grant_and_shows_nothing_else_meanwhile() {
    let servers = Server::start_armed(5).await;
    let lock = subject("lock", 1);
    let owner = {
        let mut process = Process::leading();
        process.keeper.assign(&lock, target(&engine(&servers)), hold(&lock, TTL, None));
        let owner = process.until_held(&lock).await;
        process.keeper.abandon_all().await;
        owner
    };
    // Left on the masters.
    held_everywhere(&servers, &key(), &owner).await;

    let mut process = Process::leading();
    process.keeper.assign(&lock, target(&engine(&servers)), hold(&lock, TTL, Some(owner.clone())));
    let (state, before) = process.until(&lock, State::is_held).await;
    assert!(matches!(&state, State::Held { owner: adopted, .. } if *adopted == owner), "{state:?}");
    assert!(before.iter().all(|state| *state == State::Starting), "{before:?}");
    assert_eq!(process.sent_events(), [], "adopting is no transition");
}

#[tokio::test]
async fn a_grant_that_ended_meanwhile_is_reported_as_lost_and_acquired_again() {
    let servers = Server::start_armed(5).await;
    let (lock, mut process) = (subject("lock", 1), Process::leading());
    let gone = Owner::new(identity("job", &lock.uid), Token::new(17).expect("a valid token"), 1);
    process.keeper.assign(&lock, target(&engine(&servers)), hold(&lock, TTL, Some(gone)));
    let owner = process.until_held(&lock).await;
    assert!(owner.token().get() > 17);
    let events = process.sent_events();
    assert_eq!(events, [LockEvent::Lost(Loss::Taken), LockEvent::Acquired("job".to_owned(), owner.token())]);
}

#[tokio::test]
async fn a_lost_lock_is_reported_and_acquired_again_with_a_larger_token() {
    let servers = Server::start_armed(5).await;
    let (lock, mut process) = (subject("lock", 1), Process::leading());
    process.keeper.assign(&lock, target(&engine(&servers)), hold(&lock, TTL, None));
    let owner = process.until_held(&lock).await;
    // Deleted before a late vote brings it, the key would come to a majority all the same.
    held_everywhere(&servers, &key(), &owner).await;
    for server in &servers[..3] {
        let _: i64 = server.run(&format!("DEL {}", key().redis_key())).await;
    }
    process
        .until(&lock, |state| matches!(state, State::Contending { lost: Some(Loss::Taken), .. } | State::Held { .. }))
        .await;
    let (state, _) = process.until(&lock, |s| matches!(s, State::Held { owner: o, .. } if *o != owner)).await;
    let State::Held { owner: next, .. } = state else { panic!("{state:?}") };
    assert!(next.token() > owner.token());
    let acquired = |owner: &Owner| LockEvent::Acquired("job".to_owned(), owner.token());
    assert_eq!(process.sent_events(), [acquired(&owner), LockEvent::Lost(Loss::Taken), acquired(&next)]);
}

#[tokio::test]
async fn a_lost_lock_that_shall_fail_is_not_acquired_again_before_its_spec_changes() {
    let servers = Server::start_armed(3).await;
    let (engine, lock, mut process) = (engine(&servers), subject("lock", 1), Process::leading());
    let options = LeaseOptions::new(identity("job", &lock.uid), TTL);
    let of_generation = |generation| {
        let (options, when_lost) = (options.clone(), WhenLost::Stop { generation: Some(generation) });
        Assignment::Hold { term: 1, options, adopt: None, when_lost }
    };
    process.keeper.assign(&lock, target(&engine), of_generation(1));
    let owner = process.until_held(&lock).await;
    held_everywhere(&servers, &key(), &owner).await;
    for server in &servers {
        let _: i64 = server.run(&format!("DEL {}", key().redis_key())).await;
    }
    let stopped = State::Stopped { loss: Loss::Taken, generation: Some(1) };
    let (_, before) = process.until(&lock, |state| *state == stopped).await;
    assert!(before.iter().all(State::is_held), "{before:?}");
    // The same again, as any reconcile assigns it.
    process.keeper.assign(&lock, target(&engine), of_generation(1));
    assert_eq!(holders(&servers).await, vec![None; 3]);
    assert_eq!(process.keeper.state(&lock.uid), Some(stopped));

    process.keeper.assign(&lock, target(&engine), of_generation(2));
    assert!(process.until_held(&lock).await.token() > owner.token());
}

#[tokio::test]
async fn other_terms_change_the_lease_and_not_the_grant() {
    let servers = Server::start_armed(5).await;
    let (engine, lock, mut process) = (engine(&servers), subject("lock", 1), Process::leading());
    process.keeper.assign(&lock, target(&engine), hold(&lock, TTL, None));
    let owner = process.until_held(&lock).await;
    process.keeper.assign(&lock, target(&engine), hold(&lock, Duration::from_secs(40), None));
    for server in &servers {
        eventually("the new TTL on each master", async || (server.pttl(&key()).await >= 30_000).then_some(())).await;
    }
    assert_eq!(process.until_held(&lock).await, owner);
    assert_eq!(process.sent_events().len(), 1, "acquired once");
}

#[tokio::test]
async fn a_grant_that_no_status_records_does_not_block_its_own_resource() {
    let servers = Server::start_armed(5).await;
    let (lock, mut process) = (subject("lock", 1), Process::leading());
    for server in &servers {
        let value = format!("{}@17.0000000000000001", identity("job", &lock.uid));
        let _: String = server.run(&format!("SET {} {value} PX 60000", key().redis_key())).await;
    }
    process.keeper.assign(&lock, target(&engine(&servers)), hold(&lock, TTL, None));
    let begun = Instant::now();
    process.until_held(&lock).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "not only after 60 s: {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_follower_keeps_the_leaders_grant_and_acquires_nothing() {
    let servers = Server::start_armed(3).await;
    let (engine, lock) = (engine(&servers), subject("lock", 1));
    let (terms, leadership) = Terms::new();
    let mut follower = Process::new(leadership);
    let (owner, options) = {
        let mut leader = Process::leading();
        leader.keeper.assign(&lock, target(&engine), hold(&lock, TTL, None));
        let owner = leader.until_held(&lock).await;
        leader.keeper.abandon_all().await;
        (owner, LeaseOptions::new(identity("job", &lock.uid), TTL))
    };
    let follow = Assignment::Follow { options, owner: owner.clone() };
    follower.keeper.assign(&lock, target(&engine), follow);
    assert_eq!(follower.until_held(&lock).await, owner);
    tokio::time::sleep(TTL + TTL / 2).await;
    // Renewed beyond its TTL.
    held_everywhere(&servers, &key(), &owner).await;

    assert_eq!(follower.keeper.abandon(&lock.uid).await, Some(Ending::Abandoned));
    follower.keeper.assign(&lock, target(&engine), hold(&lock, TTL, None));
    let released = engine.client().release(&key(), &owner).await;
    assert_eq!(released, Released::Freed);
    gone_everywhere(&servers, &key()).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(holders(&servers).await, vec![None; 3], "nothing is acquired without leadership");
    terms.lead_until(Instant::now() + Duration::from_secs(3600));
    follower.until_held(&lock).await;
}

#[tokio::test]
async fn a_follower_gives_no_master_the_key_and_a_leader_does() {
    let servers = Server::start_armed(3).await;
    let (engine, lock, mut process) = (engine(&servers), subject("lock", 1), Process::leading());
    process.keeper.assign(&lock, target(&engine), hold(&lock, TTL, None));
    let owner = process.until_held(&lock).await;
    held_everywhere(&servers, &key(), &owner).await;
    let options = LeaseOptions::new(identity("job", &lock.uid), TTL);
    process.keeper.assign(&lock, target(&engine), Assignment::Follow { options, owner: owner.clone() });
    // It has taken the assignment up when it shows the lease again after a renewal.
    let renewals = |state: &State| match state {
        State::Held { grant, .. } => grant.renewals,
        _ => 0,
    };
    let wait_for = async |process: &Process, more: u64| {
        let before = process.keeper.state(&lock.uid).as_ref().map_or(0, renewals);
        eventually("renewals", async || {
            let state = process.keeper.state(&lock.uid)?;
            (renewals(&state) >= before + more).then_some(())
        })
        .await;
    };
    wait_for(&process, 1).await;
    delete_everywhere(&servers[..1], &key()).await;
    wait_for(&process, 2).await;
    gone_everywhere(&servers[..1], &key()).await;
    process.keeper.assign(&lock, target(&engine), hold(&lock, TTL, None));
    held_everywhere(&servers, &key(), &owner).await;
}

#[tokio::test]
async fn what_another_leader_granted_between_two_terms_is_followed_and_adopted_and_not_lost() {
    let servers = Server::start_armed(3).await;
    let (engine, lock) = (engine(&servers), subject("lock", 1));
    let (mut process, mut other) = (Process::leading(), Process::leading());
    process.keeper.assign(&lock, target(&engine), hold(&lock, TTL, None));
    let first = process.until_held(&lock).await;

    // Another leads, and grants it anew.
    let (key, options) = (key(), LeaseOptions::new(identity("job", &lock.uid), TTL));
    assert_eq!(engine.client().release(&key, &first).await, Released::Freed);
    other.keeper.assign(&lock, target(&engine), hold(&lock, TTL, None));
    let second = other.until_held(&lock).await;
    assert!(second.token() > first.token());
    let follow = |owner: &Owner| Assignment::Follow { options: options.clone(), owner: owner.clone() };
    process.keeper.assign(&lock, target(&engine), follow(&second));
    let is_second = |state: &State| matches!(state, State::Held { owner, .. } if *owner == second);
    process.until(&lock, is_second).await;

    // It grants it once more, and this process leads before it has followed that.
    assert_eq!(other.keeper.release(&lock.uid, None).await, Some(Ending::Released(Released::Freed)));
    other.keeper.assign(&lock, target(&engine), hold(&lock, TTL, None));
    let third = other.until_held(&lock).await;
    other.keeper.abandon_all().await;
    process.sent_events();
    let next_term = Assignment::Hold {
        term: 2,
        options: options.clone().renewal(Renewal::Every(TTL / 3)),
        adopt: Some(third.clone()),
        when_lost: WhenLost::Reacquire,
    };
    process.keeper.assign(&lock, target(&engine), next_term);
    process.until(&lock, |state| matches!(state, State::Held { owner, .. } if *owner == third)).await;
    tokio::time::sleep(TTL + TTL / 2).await;
    held_everywhere(&servers, &key, &third).await;
    assert_eq!(process.sent_events(), [], "neither lost nor acquired again");
}

#[tokio::test]
async fn another_holder_gets_the_lock_with_a_larger_token_as_soon_as_the_first_is_released() {
    let servers = Server::start_armed(3).await;
    let (engine, lock, mut process) = (engine(&servers), subject("lock", 1), Process::leading());
    process.keeper.assign(&lock, target(&engine), hold(&lock, Duration::from_secs(60), None));
    let first = process.until_held(&lock).await;
    let options = LeaseOptions::new(identity("next", &lock.uid), Duration::from_secs(60));
    process.keeper.assign(
        &lock,
        target(&engine),
        Assignment::Hold { term: 1, options, adopt: None, when_lost: WhenLost::Reacquire },
    );
    let is_next = |state: &State| matches!(state, State::Held { owner, .. } if *owner != first);
    let (State::Held { owner: next, .. }, _) = process.until(&lock, is_next).await else { unreachable!() };
    assert_eq!(next.identity(), identity("next", &lock.uid));
    assert!(next.token() > first.token());
    held_everywhere(&servers, &key(), &next).await;
}

#[tokio::test]
async fn a_lock_of_pods_is_observed() {
    let servers = Server::start_armed(3).await;
    let (lock, mut process) = (subject("lock", 1), Process::leading());
    let engine = engine(&servers);
    process.keeper.assign(&lock, target(&engine), Assignment::Observe);
    process.until(&lock, |state| *state == State::Observed(Sighting::Nobody)).await;
    let lease =
        engine.client().try_acquire(&key(), &LeaseOptions::new("pod-a", Duration::from_secs(30))).await.expect("free");
    let value = lease.owner().to_string();
    let seen = |state: &State| matches!(state, State::Observed(Sighting::Somebody { value: v, .. }) if *v == value);
    let (state, _) = process.until(&lock, seen).await;
    let State::Observed(Sighting::Somebody { valid_until: Some(until), .. }) = state else { panic!("{state:?}") };
    let left = until.saturating_duration_since(Instant::now());
    assert!((Duration::from_secs(25)..Duration::from_secs(30)).contains(&left), "{left:?}");
    lease.release().await;
    process.until(&lock, |state| *state == State::Observed(Sighting::Nobody)).await;
}

#[tokio::test]
async fn masters_that_are_not_armed_are_reported_as_quarantined() {
    let servers = futures::future::join_all((0..3).map(|_| Server::start(&[]))).await;
    let (lock, mut process) = (subject("lock", 1), Process::leading());
    process.keeper.assign(&lock, target(&engine(&servers)), hold(&lock, TTL, None));
    let (state, _) = process.until(&lock, |state| state.trouble().is_some()).await;
    assert_eq!(state.trouble().map(|trouble| trouble.reason.as_str()), Some("Quarantined"), "{state:?}");
    for server in &servers {
        server.arm().await;
    }
    process.until_held(&lock).await;
}

#[tokio::test]
async fn a_release_ends_soon_though_the_masters_are_gone() {
    let mut servers = Server::start_armed(3).await;
    let (lock, mut process) = (subject("lock", 1), Process::leading());
    process.keeper.assign(&lock, target(&engine(&servers)), hold(&lock, Duration::from_secs(60), None));
    process.until_held(&lock).await;
    for server in &mut servers {
        server.crash().await;
    }
    let begun = Instant::now();
    let ending = process.keeper.release(&lock.uid, None).await;
    assert_eq!(ending, Some(Ending::Released(Released::Unknown)));
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}
