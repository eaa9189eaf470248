//! What a panic in one actor does to it, and to the others.

use futures::FutureExt as _;

use super::*;
use crate::contract::credentials::RootKey;
use crate::lock::connections::Engine;
use crate::lock::fixtures;
use crate::lock::notices::Notice;
use redlock_engine::{Client, LeaseOptions, LockKey};

fn subject(uid: &str) -> Subject {
    let (namespace, name) = ("billing".to_owned(), "nightly".to_owned());
    Subject { uid: uid.to_owned(), namespace, name, reference: fixtures::reference() }
}

fn job(task: Task) -> Job {
    let client = Client::new(std::iter::empty(), Duration::from_millis(50));
    let engine = Arc::new(Engine::new(client, RootKey::generate()));
    Job { engine, key: LockKey::new("billing", "nightly").unwrap(), task }
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_told_and_touches_no_other_lock() {
    let (notices, mut told) = Notices::channel();
    let (publisher, _events) = Publisher::new(20);
    let shared = Shared::new(Leadership::always(), Metrics::default(), notices, Arc::new(publisher));
    let keeper = Keeper::new(Arc::new(shared));
    let (broken, sound) = (subject("broken"), subject("sound"));
    keeper.assign(&sound, job(Task::Observe));
    keeper.assign(&broken, job(Task::Fail));
    assert_eq!(told.recv().await.unwrap().1, Notice::KeeperRestarted);

    // The actor works on, and does what it is told next.
    let options = LeaseOptions::new("job", Duration::from_secs(30));
    keeper.assign(&broken, job(Task::Hold { options, adopt: None }));
    for (subject, what) in [(&broken, "Contending"), (&sound, "Observed")] {
        let mut state = keeper.actors().get(&subject.uid).unwrap().state.clone();
        let reached = |state: &State| state.trouble().is_some() && format!("{state:?}").starts_with(what);
        assert!(state.wait_for(reached).await.is_ok(), "{what}");
    }
    assert_eq!(keeper.stop("broken", Stop::Release(None)).await, Some(Ending::Nothing));
    assert!(told.recv().now_or_never().is_none(), "one panic, one notice");
}
