//! What a lock of another library means to ours, and ours to another: each excludes the other, and touches but its own.

use std::time::Duration;

use redlock_engine::{Client, Error, LeaseOptions, LockKey, Owner, Reason, Released, Renewal, Wait};
use redlock_test_servers::server::{CALL_TIMEOUT, PATIENCE, Server, eventually};
use tokio::time::timeout;

use crate::arena::{Arena, Handle, set};
use crate::checker::Library;
use crate::protocol::{Order, Report, Stamp};

/// Long enough not to end within a test.
const LONG: Duration = Duration::from_secs(30);
/// Short enough to wait for its end.
const SHORT: Duration = Duration::from_millis(400);
/// How long an attempt waits that is to be in vain.
const IN_VAIN: Duration = Duration::from_millis(200);

#[tokio::test]
async fn a_lock_of_another_library_excludes_ours_which_says_whose_it_is() {
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
        // Had it not reached the masters, its attempts would be in vain for that.
        take(&arena, &other).await;
        assert!(release(&arena, &other).await, "{library} held it");
        everywhere(&arena, None).await;

        let lease = ours.try_acquire(&arena.key, &LeaseOptions::new("ours", LONG)).await.expect("free");
        let owner = lease.owner().to_string();
        everywhere(&arena, Some(&owner)).await;
        for _ in 0..3 {
            assert_eq!(attempt(&arena, &other).await, None, "{library} was granted what we hold");
        }
        // A failed attempt cleans up after itself: not what is ours.
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
        // No renewal: what is left of the keys may only fall.
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
        assert!(!release(&arena, &other).await, "{library} gave back what it had lost");
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
async fn whatever_another_wrote_is_shown_as_the_holder() {
    let arena = Arena::start(LONG, 0).await;
    let ours = arena.client(CALL_TIMEOUT);
    let values: [(&[u8], &str); 6] = [
        (b"6f1c2a0b-77d0-4d8c-a1f7-3f0c2a9d1e55", "6f1c2a0b-77d0-4d8c-a1f7-3f0c2a9d1e55"),
        (b"5Pj0Rr3uJ7q+/w==", "5Pj0Rr3uJ7q+/w=="),
        (b"worker@host", "worker@host"),
        (b"job/x@0123", "job/x@0123"),
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
    // And ours excludes whoever writes so.
    let lease = ours.try_acquire(&arena.key, &LeaseOptions::new("ours", LONG)).await.expect("free");
    everywhere(&arena, Some(&lease.owner().to_string())).await;
    for server in &arena.servers {
        assert_eq!(take_on(server, &arena.key, b"worker@host").await, None, "SET NX");
    }
    assert_eq!(lease.release().await, Released::Freed);
}

/// One attempt of a contender: the value that it wrote, if it was granted the lock. It keeps it.
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

/// Has a contender take and keep the lock, which is free but for what a former holder's release has not reached yet.
/// Answers the value that it wrote.
async fn take(arena: &Arena, other: &Handle) -> String {
    let what = format!("a grant of {:?}", other.contender);
    eventually(&what, async || attempt(arena, other).await).await
}

/// Has a contender release its lock, and answers whether its library says that it still held it.
async fn release(arena: &Arena, other: &Handle) -> bool {
    let since = arena.so_far();
    other.tell(Order::Release);
    let told = arena.report_of(other.contender, since, |report| match report {
        Report::Released(held) => Some(*held),
        _ => None,
    });
    told.await
}

/// Ours is refused the lock, at once and after waiting, and says whose it is.
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

/// Waits until each master shows this as the lock's value.
async fn everywhere(arena: &Arena, value: Option<&str>) {
    let what = format!("{value:?} on all masters");
    eventually(&what, async || values(arena).await.iter().all(|v| v.as_deref() == value).then_some(())).await;
}

/// What each master has as the lock's value.
async fn values(arena: &Arena) -> Vec<Option<String>> {
    futures::future::join_all(arena.servers.iter().map(|server| server.get(&arena.key))).await
}

/// What is left of the lock on each master; nothing without.
async fn left(arena: &Arena) -> Vec<Duration> {
    let all = futures::future::join_all(arena.servers.iter().map(|server| server.pttl(&arena.key))).await;
    all.into_iter().map(|millis| Duration::from_millis(millis.max(0).cast_unsigned())).collect()
}

/// What is left of a lock has only passed, as time does: nobody has set it anew.
fn assert_untouched(before: &[Duration], after: &[Duration]) {
    for (before, after) in before.iter().zip(after) {
        assert!(after <= before && *after > LONG / 2, "{before:?} left, then {after:?}");
    }
}

/// Takes a lock on one master, as the algorithm's page says, with this as its value.
async fn take_on(server: &Server, key: &LockKey, value: &[u8]) -> Option<String> {
    set(server, key.redis_key(), value, &["NX", "PX", &LONG.as_millis().to_string()]).await
}
