//! A panic in one actor, and what it does to the others.

use futures::FutureExt as _;
use redlock_engine::{Address, Credentials, Endpoint, LeaseOptions, LockKey, Marker, RedisMaster};

use super::assignment::WhenLost;
use super::*;
use crate::contract::credentials::RootKey;
use crate::lock::connections::{Client, Engine};
use crate::lock::events::{EventSender, LockEvent};
use crate::lock::fixtures;
use crate::lock::measured_master::MeasuredMaster;
use crate::lock::status::StatusSchedule;
use crate::operator::leadership::Leadership;
use crate::operator::metrics::Metrics;

fn subject(uid: &str) -> Subject {
    let (namespace, name) = ("billing".to_owned(), "nightly".to_owned());
    Subject { uid: uid.to_owned(), namespace, name, reference: fixtures::reference() }
}

fn target() -> LockTarget {
    // Port 1 is nobody's.
    let master = RedisMaster::connect(Endpoint {
        name: "main-0".to_owned(),
        address: Address::Tcp("127.0.0.1".to_owned(), 1),
        credentials: Credentials::None,
        marker: Marker::Required,
    });
    let master = MeasuredMaster::new(master, Metrics::default().master_calls("locks", "main", "main-0"));
    let client = Client::new(std::iter::once(master), Duration::from_millis(50)).expect("valid settings");
    let engine = Arc::new(Engine::new(client, RootKey::generate()));
    LockTarget { engine, key: LockKey::new("billing", "nightly").unwrap() }
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_reported_and_touches_no_other_lock() {
    let (sender, mut events) = EventSender::channel();
    let (schedule, _requests) = StatusSchedule::new(20);
    let context = KeeperContext::new(Leadership::always(), Metrics::default(), sender, Arc::new(schedule));
    let keeper = Keeper::new(Arc::new(context));
    let (broken, sound) = (subject("broken"), subject("sound"));
    keeper.assign(&sound, target(), Assignment::Observe);
    keeper.assign(&broken, target(), Assignment::Fail);
    assert_eq!(events.recv().await.unwrap().1, LockEvent::KeeperRestarted);

    // The actor still runs, and takes its next assignment.
    let options = LeaseOptions::new("job", Duration::from_secs(30));
    keeper.assign(
        &broken,
        target(),
        Assignment::Hold { term: 1, options, adopt: None, when_lost: WhenLost::Reacquire },
    );
    for (subject, what) in [(&broken, "Contending"), (&sound, "Observed")] {
        let mut state = keeper.actors().get(&subject.uid).unwrap().state.clone();
        let reached = |state: &State| state.trouble().is_some() && format!("{state:?}").starts_with(what);
        assert!(state.wait_for(reached).await.is_ok(), "{what}");
    }
    assert_eq!(keeper.release("broken", None).await, Some(Ending::Nothing));
    assert!(events.recv().now_or_never().is_none(), "one panic, one Event");
}
