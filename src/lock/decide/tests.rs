//! What is decided in which situation.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::Duration as ApiDuration;
use redlock_engine::{Grant, Token};
use tokio::time::Instant;

use super::*;
use crate::api::DistributedLockStatus;
use crate::api::cluster::{AllowedNamespaces, NamespacesFrom};
use crate::api::lock::LeaseSpec;
use crate::lock::fixtures;
use crate::lock::subject::Subject;

/// What the leader knows of a lock without an actor.
fn snapshot(lock: &DistributedLock, cluster: &RedisLockCluster) -> Snapshot {
    let object = Arc::new(fixtures::watched(lock.clone()));
    let subject = Subject::of(&object);
    let namespace = Arc::new(fixtures::namespace());
    Snapshot {
        subject,
        object,
        cluster: Some(cluster.clone()),
        namespace: Some(namespace),
        connection: None,
        state: None,
        served: Served::Here,
        leads: true,
        is_too_old: false,
    }
}

fn owner() -> Owner {
    Owner::new(identity("job/night", fixtures::UID), Token::new(17).unwrap(), 1)
}

fn held() -> State {
    let now = Instant::now();
    State::Held {
        owner: owner(),
        grant: Grant { acquired_at: now, renewed_at: now, valid_until: now, votes: 5, renewals: 0, last_failure: None },
    }
}

fn with_ttl(seconds: u64) -> DistributedLock {
    let mut lock = fixtures::lock();
    let ttl = Some(ApiDuration::from(Duration::from_secs(seconds)));
    lock.spec.lease = Some(LeaseSpec { ttl, ..LeaseSpec::default() });
    lock
}

fn deleted(mut lock: DistributedLock) -> DistributedLock {
    lock.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    lock
}

#[test]
fn a_lock_with_a_holder_is_acquired_with_its_unique_identity() {
    let (lock, cluster) = (fixtures::lock(), fixtures::cluster());
    let Plan::Hold { key, options, adopt, former, when_lost, obstacle } = decide(&snapshot(&lock, &cluster)) else {
        panic!()
    };
    assert_eq!(key.redis_key(), "redlock:billing/nightly");
    assert_eq!(options.identity, format!("job/night/{}", fixtures::UID));
    assert_eq!(options.ttl, Duration::from_secs(30));
    assert_eq!(options.renewal, Renewal::Every(Duration::from_secs(10)));
    assert_eq!((adopt, former, when_lost, obstacle), (None, None, WhenLost::Reacquire, None));
}

#[test]
fn priority_and_least_validity_are_those_of_the_spec_within_what_the_cluster_allows() {
    let seconds = |seconds| ApiDuration::from(Duration::from_secs(seconds));
    let (mut lock, mut cluster) = (with_ttl(60), fixtures::cluster());
    let terms = |lock: &DistributedLock, cluster: &RedisLockCluster| {
        let snapshot = Snapshot { state: Some(held()), ..snapshot(lock, cluster) };
        let Plan::Hold { options, .. } = decide(&snapshot) else { panic!() };
        (options.priority, options.min_validity.as_secs())
    };
    assert_eq!(terms(&lock, &cluster), (0, 0));
    lock.spec.priority = Some(-7);
    lock.spec.lease.as_mut().unwrap().min_validity = Some(seconds(20));
    assert_eq!(terms(&lock, &cluster), (-7, 20));
    cluster.spec.max_ttl = Some(seconds(10));
    assert_eq!(terms(&lock, &cluster), (-7, 5), "the lease is shorter than the spec says");
    lock.spec.priority = Some(100_000);
    assert_eq!(terms(&lock, &cluster).0, 0, "stored before there was a rule");
}

#[test]
fn a_lock_without_a_holder_is_observed() {
    let (lock, cluster) = (fixtures::observed_lock(), fixtures::cluster());
    assert!(matches!(decide(&snapshot(&lock, &cluster)), Plan::Observe { .. }));
}

#[test]
fn a_grant_that_status_records_is_adopted() {
    let (mut lock, cluster) = (fixtures::lock(), fixtures::cluster());
    lock.status = Some(fixtures::held_status(17));
    let Plan::Hold { adopt, .. } = decide(&snapshot(&lock, &cluster)) else { panic!() };
    assert_eq!(adopt, Some(owner()));
}

#[test]
fn a_grant_to_an_earlier_holder_is_released_before_the_next_one_contends() {
    let (mut lock, cluster) = (fixtures::lock(), fixtures::cluster());
    lock.status = Some(fixtures::held_status(17));
    lock.spec.holder = Some("job/morning".to_owned());
    let contending = State::Contending { lost: None, answer: None };
    for (state, known) in [
        (None, Some(owner())),
        (Some(State::Starting), Some(owner())),
        (Some(held()), Some(owner())),
        (Some(State::Adopting { owner: owner(), trouble: None }), Some(owner())),
        // It holds nothing, whatever an old status says.
        (Some(contending), None),
    ] {
        let snapshot = Snapshot { state, ..snapshot(&lock, &cluster) };
        let Plan::Hold { options, adopt, former, .. } = decide(&snapshot) else { panic!("{:?}", snapshot.state) };
        assert_eq!(options.identity, format!("job/morning/{}", fixtures::UID));
        assert_eq!((adopt, former), (None, known), "{:?}", snapshot.state);
    }
    let follower = |state| decide(&Snapshot { leads: false, state, ..snapshot(&lock, &cluster) });
    assert_eq!((follower(None), follower(Some(held()))), (Plan::Nothing, Plan::Abandon), "the leader releases it");

    lock.spec.lease = with_ttl(90).spec.lease;
    let plan = decide(&Snapshot { state: Some(held()), ..snapshot(&lock, &cluster) });
    assert!(matches!(plan, Plan::Refuse { recorded: Some((_, o)), .. } if o == owner()), "it is not the new holder's");
}

#[test]
fn a_lock_that_failed_with_its_lease_rests_until_its_spec_changes() {
    let (mut lock, cluster) = (fixtures::lock(), fixtures::cluster());
    lock.spec.on_lost = Some(OnLost::Fail);
    let Plan::Hold { when_lost, .. } = decide(&snapshot(&lock, &cluster)) else { panic!() };
    assert_eq!(when_lost, WhenLost::Stop { generation: Some(1) });
    let failed = |phase, type_: &str, reason: &str| DistributedLockStatus {
        phase: Some(phase),
        observed_generation: Some(1),
        conditions: vec![Condition {
            type_: type_.to_owned(),
            status: "False".to_owned(),
            reason: reason.to_owned(),
            message: String::new(),
            last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
            observed_generation: Some(1),
        }],
        ..DistributedLockStatus::default()
    };
    for (status, rests) in [
        (failed(LockPhase::Failed, HELD, "Expired"), true),
        (failed(LockPhase::Failed, HELD, "Taken"), true),
        (failed(LockPhase::Failed, HELD, "TtlAboveMaximum"), false),
        (failed(LockPhase::Failed, "ConfigValid", "Taken"), false),
        (failed(LockPhase::Lost, HELD, "Taken"), false),
    ] {
        lock.status = Some(status);
        assert_eq!(decide(&snapshot(&lock, &cluster)) == Plan::Rest, rests, "{:?}", lock.status);
    }
    lock.status = Some(failed(LockPhase::Failed, HELD, "Taken"));
    let changes: [fn(&mut DistributedLock); 2] =
        [|lock| lock.metadata.generation = Some(2), |lock| lock.spec.on_lost = Some(OnLost::Reacquire)];
    for change in changes {
        let mut lock = lock.clone();
        change(&mut lock);
        assert!(matches!(decide(&snapshot(&lock, &cluster)), Plan::Hold { .. }), "{lock:?}");
    }
    lock.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    assert!(matches!(decide(&snapshot(&deleted(lock), &cluster)), Plan::Finalize { recorded: None }));
}

#[test]
fn what_cannot_work_is_refused_and_the_message_says_what_to_do() {
    let mut narrow = fixtures::cluster();
    narrow.spec.allowed_namespaces = Some(AllowedNamespaces { from: NamespacesFrom::Same, selector: None });
    let mut long_name = fixtures::lock();
    long_name.metadata.name = Some("x".repeat(129));
    for (lock, cluster, reason, message) in [
        (
            fixtures::lock(),
            narrow,
            "NamespaceNotAllowed",
            "RedisLockCluster locks/quintet does not admit namespace billing: widen spec.allowedNamespaces of the cluster, \
             label the namespace as that asks, or use a cluster of this namespace",
        ),
        (
            with_ttl(90),
            fixtures::cluster(),
            "TtlAboveMaximum",
            "spec.lease.ttl 90s is above maxTTL 60s of RedisLockCluster locks/quintet: lower ttl, or raise maxTTL",
        ),
        (
            long_name,
            fixtures::cluster(),
            "InvalidKey",
            &format!(
                "lock name {:?} must have 1 to 128 printable characters without spaces: create the lock with another \
                 spec.key",
                "x".repeat(129)
            ),
        ),
    ] {
        let Plan::Refuse { obstacle, .. } = decide(&snapshot(&lock, &cluster)) else { panic!("{reason}") };
        assert_eq!((obstacle.reason(), obstacle.message(&lock).as_str()), (reason, message));
        assert!(obstacle.is_in_spec());
    }
}

#[test]
fn a_held_lock_is_kept_on_the_clusters_terms_when_its_ttl_is_edited_too_high() {
    let (mut lock, cluster, state) = (with_ttl(90), fixtures::cluster(), held());
    lock.status = Some(fixtures::held_status(17));
    for state in [Some(state), None] {
        let snapshot = Snapshot { state, ..snapshot(&lock, &cluster) };
        let Plan::Hold { options, obstacle, .. } = decide(&snapshot) else { panic!("{:?}", snapshot.state) };
        assert_eq!(options.ttl, Duration::from_secs(60));
        assert_eq!(obstacle.map(|o| o.reason()), Some("TtlAboveMaximum"));
    }
    let contending = State::Contending { lost: None, answer: None };
    let plan = decide(&Snapshot { state: Some(contending), ..snapshot(&lock, &cluster) });
    assert!(matches!(plan, Plan::Refuse { .. }), "{plan:?}");
}

#[test]
fn what_is_missing_is_waited_for() {
    let (lock, cluster) = (fixtures::lock(), fixtures::cluster());
    let plan = decide(&Snapshot { cluster: None, ..snapshot(&lock, &cluster) });
    let Plan::Wait(obstacle) = plan else { panic!("{plan:?}") };
    assert_eq!(obstacle.reason(), "ClusterNotFound");
    assert!(!obstacle.is_in_spec());

    let why = Unconnected::SecretNotFound("quintet-auth".to_owned());
    let plan = decide(&Snapshot { connection: Some(Err(why)), ..snapshot(&lock, &cluster) });
    let Plan::Wait(obstacle) = plan else { panic!("{plan:?}") };
    assert_eq!(obstacle.reason(), "AuthSecretNotFound");
    assert!(obstacle.message(&lock).contains("quintet-auth"));
}

#[test]
fn a_follower_renews_what_is_held_and_acquires_nothing() {
    let (mut lock, cluster, state) = (fixtures::lock(), fixtures::cluster(), held());
    let follower = |lock: &DistributedLock, state: Option<&State>| {
        decide(&Snapshot { leads: false, state: state.cloned(), ..snapshot(lock, &cluster) })
    };
    assert_eq!(follower(&lock, None), Plan::Nothing);
    assert_eq!(follower(&lock, Some(&state)), Plan::Abandon, "status does not show it as held any more");
    assert_eq!(follower(&fixtures::observed_lock(), None), Plan::Nothing);
    lock.status = Some(fixtures::held_status(17));
    assert!(matches!(follower(&lock, None), Plan::Follow { owner: o, .. } if o == owner()));
    assert_eq!(follower(&deleted(lock), Some(&state)), Plan::Abandon);
}

#[test]
fn a_deleted_lock_is_released_whatever_is_wrong_with_it() {
    let mut lock = deleted(fixtures::lock());
    let cluster = fixtures::cluster();
    assert_eq!(decide(&snapshot(&lock, &cluster)), Plan::Nothing, "no finalizer of ours: nothing was acquired");
    lock.metadata.finalizers = Some(vec!["other/one".to_owned(), FINALIZER.to_owned()]);
    lock.status = Some(fixtures::held_status(17));
    for cluster in [Some(cluster.clone()), None] {
        let plan = decide(&Snapshot { cluster, ..snapshot(&lock, &fixtures::cluster()) });
        assert!(matches!(plan, Plan::Finalize { recorded: Some((_, o)) } if o == owner()));
    }
    lock.metadata.name = Some("x".repeat(129));
    assert!(matches!(decide(&snapshot(&lock, &cluster)), Plan::Finalize { recorded: None }));
}

#[test]
fn a_namespace_is_selected_by_its_labels_and_nothing_is_lost_before_they_are_known() {
    let (lock, mut cluster) = (fixtures::lock(), fixtures::cluster());
    let selector = Some(serde_json::from_value(serde_json::json!({"matchLabels": {"locks": "quintet"}})).unwrap());
    cluster.spec.allowed_namespaces = Some(AllowedNamespaces { from: NamespacesFrom::Selector, selector });
    let mut found = snapshot(&lock, &cluster);
    let refused = |plan: Plan| matches!(plan, Plan::Refuse { obstacle: Obstacle::NamespaceNotAllowed, .. });
    assert!(refused(decide(&found)));
    found.namespace = None;
    assert_eq!(decide(&found), Plan::Wait(Obstacle::NamespaceUnknown), "a held lock stays held");
    let mut namespace = fixtures::namespace();
    namespace.metadata.labels = Some([("locks".to_owned(), "quintet".to_owned())].into());
    found.namespace = Some(Arc::new(namespace));
    assert!(matches!(decide(&found), Plan::Hold { .. }));
}

#[test]
fn a_lock_on_a_cluster_of_another_operator_is_left_to_that() {
    let (mut lock, cluster) = (fixtures::lock(), fixtures::cluster());
    lock.status = Some(fixtures::held_status(17));
    lock.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    for (lock, leads) in [(lock.clone(), true), (lock.clone(), false), (deleted(lock.clone()), true)] {
        let served = Served::By("other/redlock-operator".to_owned());
        let mut snapshot = Snapshot { served, leads, ..snapshot(&lock, &cluster) };
        assert_eq!(decide(&snapshot), Plan::Nothing);
        snapshot.state = Some(held());
        assert_eq!(decide(&snapshot), Plan::Abandon, "the claim was taken");
    }
    let unclaimed = |lock: &DistributedLock| Snapshot { served: Served::Nowhere, ..snapshot(lock, &cluster) };
    assert_eq!(decide(&unclaimed(&lock)), Plan::Nothing, "until it is claimed");
    assert_eq!(decide(&Snapshot { state: Some(held()), ..unclaimed(&lock) }), Plan::Nothing);
    assert!(matches!(decide(&unclaimed(&deleted(lock))), Plan::Finalize { .. }), "it need not wait for that");
}

#[test]
fn a_follower_that_was_told_nothing_for_too_long_renews_nothing() {
    let (mut lock, cluster) = (fixtures::lock(), fixtures::cluster());
    lock.status = Some(fixtures::held_status(17));
    let mut snapshot = Snapshot { leads: false, ..snapshot(&lock, &cluster) };
    assert!(matches!(decide(&snapshot), Plan::Follow { .. }));
    snapshot.is_too_old = true;
    assert_eq!(decide(&snapshot), Plan::Nothing);
    snapshot.state = Some(held());
    assert_eq!(decide(&snapshot), Plan::Abandon);
}
