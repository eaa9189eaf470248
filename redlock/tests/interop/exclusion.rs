//! A lock of another library and ours: each excludes the other, and leaves the other's key as it is.

use std::time::Duration;

use redlock_engine::{Client, Error, LeaseOptions, LockKey, Owner, Reason, Released, Renewal, Wait};
use redlock_test_servers::server::{CALL_TIMEOUT, PATIENCE, Server, eventually};
use tokio::time::timeout;

use crate::arena::{Arena, Handle};
use crate::checker::Library;
use crate::protocol::{Order, Report, Stamp};

/// A TTL that does not end within a test.
const LONG: Duration = Duration::from_secs(30);
/// A TTL whose end a test waits for.
const SHORT: Duration = Duration::from_millis(400);
/// How long an attempt waits for a lock that it cannot get.
const IN_VAIN: Duration = Duration::from_millis(200);

#[tokio::test]
async fn a_lock_of_another_library_excludes_ours_and_the_error_names_its_holder() {
    for library in Library::OTHERS {
        let arena = Arena::start(LONG, 0).await;
        let (other, ours) = (arena.start_contender(library, LONG).await, arena.client(CALL_TIMEOUT));
        let value = take(&arena, &other).await;
        assert!(value.parse::<Owner>().is_err(), "{library} writes no owner of ours: {value}");
        assert_excluded(&arena, &ours, &value).await;

        assert!(release(&arena, &other).await, "{library} held it");
        let lease = ours.acquire(&arena.key, &LeaseOptions::new("ours", LONG), Wait::For(PATIENCE)).await;
        assert!(lease.expect("free").is_held());
        arena.end(other).await;
    }
}

#[tokio::test]
async fn our_lock_excludes_other_libraries_which_leave_it_as_it_is() {
    for library in Library::OTHERS {
        let arena = Arena::start(LONG, 0).await;
        let (other, ours) = (arena.start_contender(library, LONG).await, arena.client(CALL_TIMEOUT));
        // Its attempts fail because of our lock, not because it cannot reach the masters.
        take(&arena, &other).await;
        assert!(release(&arena, &other).await, "{library} held it");
        everywhere(&arena, None).await;

        let lease = ours.try_acquire(&arena.key, &LeaseOptions::new("ours", LONG)).await.expect("free");
        let owner = lease.owner().to_string();
        everywhere(&arena, Some(&owner)).await;
        for _ in 0..3 {
            assert_eq!(attempt(&arena, &other).await, None, "{library} was granted what we hold");
        }
        // A failed attempt deletes its own keys, not ours.
        assert_eq!(values(&arena).await, vec![Some(owner); 5], "{library}");
        assert!(lease.is_held());
        assert_eq!(lease.release().await, Released::Freed);

        take(&arena, &other).await;
        assert!(release(&arena, &other).await, "{library} held it again");
        arena.end(other).await;
    }
}

#[tokio::test]
async fn another_librarys_late_release_and_extension_leave_our_lock_as_it_is() {
    for library in Library::OTHERS {
        let arena = Arena::start(LONG, 0).await;
        let (other, ours) = (arena.start_contender(library, SHORT).await, arena.client(CALL_TIMEOUT));
        take(&arena, &other).await;
        everywhere(&arena, None).await;
        // Without renewals the keys' TTL can only fall.
        let options = LeaseOptions::new("ours", LONG).renewal(Renewal::None);
        let lease = ours.try_acquire(&arena.key, &options).await.expect("its lock has ended");
        let owner = lease.owner().to_string();
        everywhere(&arena, Some(&owner)).await;
        let before = left(&arena).await;

        let since = arena.so_far();
        other.tell(Order::Extend);
        let extended = arena.report_of(other.contender, since, |report| match report {
            Report::NotExtended => Some(false),
            Report::Extended { .. } => Some(true),
            _ => None,
        });
        assert!(!extended.await, "{library} extended what it had lost");
        assert!(!release(&arena, &other).await, "{library} released what it had lost");
        arena.end(other).await;

        assert_eq!(values(&arena).await, vec![Some(owner); 5], "{library}");
        assert_untouched(&before, &left(&arena).await);
        assert!(lease.is_held());
        assert_eq!(lease.release().await, Released::Freed);
    }
}

#[tokio::test]
async fn our_late_release_and_renewal_leave_another_librarys_lock_as_it_is() {
    for library in Library::OTHERS {
        let arena = Arena::start(LONG, 0).await;
        let (other, ours) = (arena.start_contender(library, LONG).await, arena.client(CALL_TIMEOUT));
        let options = LeaseOptions::new("ours", SHORT).renewal(Renewal::None);
        let lease = ours.try_acquire(&arena.key, &options).await.expect("free");
        let owner = lease.owner().clone();
        timeout(PATIENCE, lease.ended()).await.expect("its TTL ends");
        everywhere(&arena, None).await;
        let value = take(&arena, &other).await;
        everywhere(&arena, Some(&value)).await;
        let before = left(&arena).await;

        let renewed = ours.adopt(&arena.key, &owner, &options).await.expect_err("it is another's");
        assert_eq!(renewed.reason(), Reason::Lost);
        assert_eq!(ours.release(&arena.key, &owner).await, Released::AlreadyExpired);
        assert_eq!(lease.release().await, Released::AlreadyExpired);

        assert_eq!(values(&arena).await, vec![Some(value); 5], "{library}");
        assert_untouched(&before, &left(&arena).await);
        let since = arena.so_far();
        other.tell(Order::Extend);
        let until = arena.report_of(other.contender, since, |report| match report {
            Report::Extended { until, .. } => Some(*until),
            _ => None,
        });
        assert!(until.await > Stamp::now() + LONG / 2, "{library} holds it");
        assert!(release(&arena, &other).await, "{library} still held it");
        arena.end(other).await;
    }
}

#[tokio::test]
async fn any_value_of_another_client_is_shown_as_the_holder() {
    let arena = Arena::start(LONG, 0).await;
    let ours = arena.client(CALL_TIMEOUT);
    let values: [(&[u8], &str); 7] = [
        (b"6f1c2a0b-77d0-4d8c-a1f7-3f0c2a9d1e55", "6f1c2a0b-77d0-4d8c-a1f7-3f0c2a9d1e55"),
        (b"5Pj0Rr3uJ7q+/w==", "5Pj0Rr3uJ7q+/w=="),
        (b"worker@host", "worker@host"),
        (b"job/x@123", "job/x@123"),
        (b"job/x@0123.0123456789abcdef", "job/x@0123.0123456789abcdef"),
        (b"a client with spaces", "a client with spaces"),
        // Bytes drawn at random, as rslock and redlock-rs write them.
        (b"\x07r\xc3\x28\xff\"\n", r#"\x07r\xc3(\xff\"\n"#),
    ];
    for (value, text) in values {
        for server in &arena.servers {
            assert_eq!(take_on(server, &arena.key, value).await.as_deref(), Some("OK"), "{text}: SET NX");
        }
        assert!(text.parse::<Owner>().is_err());
        assert_excluded(&arena, &ours, text).await;
        for server in &arena.servers {
            let _: i64 = server.run(&format!("DEL {}", arena.key.redis_key())).await;
        }
    }
    // And our lock excludes a client that writes such values.
    let lease = ours.try_acquire(&arena.key, &LeaseOptions::new("ours", LONG)).await.expect("free");
    everywhere(&arena, Some(&lease.owner().to_string())).await;
    for server in &arena.servers {
        assert_eq!(take_on(server, &arena.key, b"worker@host").await, None, "SET NX");
    }
    assert_eq!(lease.release().await, Released::Freed);
}

/// One attempt of a contender. Returns the value that it wrote if it was granted the lock, which it keeps.
async fn attempt(arena: &Arena, other: &Handle) -> Option<String> {
    let since = arena.so_far();
    other.tell(Order::Try);
    let outcome = arena.report_of(other.contender, since, |report| match report {
        Report::Start { value, .. } => Some(Some(value.clone())),
        Report::Denied => Some(None),
        _ => None,
    });
    outcome.await
}

/// Has a contender acquire and keep the lock, which is free as soon as a former holder's release has reached a majority.
/// Returns the value that it wrote.
async fn take(arena: &Arena, other: &Handle) -> String {
    let what = format!("a grant of {:?}", other.contender);
    eventually(&what, async || attempt(arena, other).await).await
}

/// Has a contender release its lock, and returns whether its library says that it still held the lock.
async fn release(arena: &Arena, other: &Handle) -> bool {
    let since = arena.so_far();
    other.tell(Order::Release);
    let told = arena.report_of(other.contender, since, |report| match report {
        Report::Released(held) => Some(*held),
        _ => None,
    });
    told.await
}

/// Our client is refused the lock, at once and after a wait, and the error names the holder.
async fn assert_excluded(arena: &Arena, ours: &Client, holder: &str) {
    let options = LeaseOptions::new("ours", LONG);
    let refused = ours.try_acquire(&arena.key, &options).await.expect_err("held");
    assert_eq!(refused.reason(), Reason::Contended, "{refused}");
    let refused = ours.acquire(&arena.key, &options, Wait::For(IN_VAIN)).await.expect_err("held");
    assert_eq!(refused.to_string(), format!("held by {holder}"));
    assert!(matches!(refused, Error::Contended { remaining: Some(left), .. } if left <= LONG + IN_VAIN), "{refused:?}");
    let shown = ours.read(&arena.key).await.expect("masters answer");
    assert_eq!(shown.holder.as_deref(), Some(holder));
    assert!(shown.votes >= 3 && shown.remaining <= Some(LONG), "{shown:?}");
}

/// Waits until the lock's key has this value on each master.
async fn everywhere(arena: &Arena, value: Option<&str>) {
    let what = format!("{value:?} on all masters");
    eventually(&what, async || values(arena).await.iter().all(|v| v.as_deref() == value).then_some(())).await;
}

/// The value of the lock's key on each master.
async fn values(arena: &Arena) -> Vec<Option<String>> {
    futures::future::join_all(arena.servers.iter().map(|server| server.get(&arena.key))).await
}

/// The rest of the TTL of the lock's key on each master; zero if there is none.
async fn left(arena: &Arena) -> Vec<Duration> {
    let all = futures::future::join_all(arena.servers.iter().map(|server| server.pttl(&arena.key))).await;
    all.into_iter().map(|millis| Duration::from_millis(millis.max(0).cast_unsigned())).collect()
}

/// The TTL has only run down: nobody has set it again.
fn assert_untouched(before: &[Duration], after: &[Duration]) {
    for (before, after) in before.iter().zip(after) {
        assert!(after <= before && *after > LONG / 2, "{before:?} left, then {after:?}");
    }
}

/// Takes a lock on one master, as the RedLock page says, with this value.
async fn take_on(server: &Server, key: &LockKey, value: &[u8]) -> Option<String> {
    server.set(key.redis_key(), value, &["NX", "PX", &LONG.as_millis().to_string()]).await
}
