//! The Lease task against an API server that keeps one record and compares versions.

use std::sync::{Arc, Mutex};

use futures::StreamExt as _;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use kube::core::Status;
use tokio::sync::Barrier;
use tokio::task::JoinHandle;
use tokio::time::{advance, sleep};

use super::*;

/// One Lease, kept as an API server does.
#[derive(Default)]
struct ApiServer {
    lease: Option<Lease>,
    version: u64,
    writes: u32,
    hangs: bool,
    delay: Duration,
}

type Server = Arc<Mutex<ApiServer>>;

impl ApiServer {
    fn answer(&mut self, method: &Method, body: &[u8]) -> (StatusCode, Vec<u8>) {
        let sent = serde_json::from_slice::<Lease>(body).ok();
        let version = |lease: &Option<Lease>| lease.as_ref().and_then(|l| l.metadata.resource_version.clone());
        let refuse = |code: StatusCode, reason: &str| {
            (code, serde_json::to_vec(&Status::failure("no", reason).with_code(code.as_u16())).unwrap())
        };
        match (method, &self.lease) {
            (&Method::GET, Some(lease)) => return (StatusCode::OK, serde_json::to_vec(lease).unwrap()),
            (_, None) if method != Method::POST => return refuse(StatusCode::NOT_FOUND, "NotFound"),
            (&Method::POST, Some(_)) => return refuse(StatusCode::CONFLICT, "AlreadyExists"),
            (&Method::PUT, kept) if version(kept) != version(&sent) => return refuse(StatusCode::CONFLICT, "Conflict"),
            _ => {}
        }
        self.version += 1;
        self.writes += 1;
        self.lease = sent;
        let lease = self.lease.as_mut().unwrap();
        lease.metadata.resource_version = Some(self.version.to_string());
        (StatusCode::OK, serde_json::to_vec(lease).unwrap())
    }
}

/// A client of `server`. With `meet`, its first write waits until as many others are about to write.
fn client(server: &Server, meet: Option<Arc<Barrier>>) -> Client {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let (server, mut meet) = (Arc::clone(server), meet);
    tokio::spawn(async move {
        while let Some((request, send)) = handle.next_request().await {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            if server.lock().unwrap().hangs {
                std::mem::forget(send);
                continue;
            }
            let delay = server.lock().unwrap().delay;
            sleep(delay).await;
            if parts.method != Method::GET
                && let Some(barrier) = meet.take()
            {
                barrier.wait().await;
            }
            let (code, body) = server.lock().unwrap().answer(&parts.method, &body);
            send.send_response(Response::builder().status(code).body(Body::from(body)).unwrap());
        }
    });
    Client::new(service, "redlock")
}

struct Process {
    leadership: Leadership,
    task: JoinHandle<Result<(), Error>>,
    stop: CancellationToken,
}

fn start(server: &Server, identity: &str, meet: Option<Arc<Barrier>>) -> Process {
    let (mut candidate, leadership) = candidate(client(server, meet), identity, Reach::default());
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let task = tokio::spawn(async move { candidate.run_one_term(&stopped, &stopped).await });
    Process { leadership, task, stop }
}

/// A process that goes on when its term ends.
fn start_for_good(server: &Server, identity: &str) -> Leadership {
    start_that_reaches(server, identity, &Reach::default())
}

/// The same, that reaches masters as `reach` says.
fn start_that_reaches(server: &Server, identity: &str, reach: &Reach) -> Leadership {
    let (candidate, leadership) = candidate(client(server, None), identity, reach.clone());
    tokio::spawn(candidate.run(CancellationToken::new(), CancellationToken::new()));
    leadership
}

fn candidate(client: Client, identity: &str, reach: Reach) -> (LeaseCandidate, Leadership) {
    LeaseCandidate::new(client, "redlock", "redlock-operator", identity.to_owned(), reach)
}

/// Waits until `leadership` is gained or lost, which must take less than an hour.
async fn changes_to(leadership: &Leadership, leads: bool) {
    let mut changes = Box::pin(leadership.changes());
    let reached = async { while leadership.is_leader() != leads && changes.next().await.is_some() {} };
    tokio::time::timeout(Duration::from_secs(3600), reached).await.expect("a change within the hour");
}

fn recorded_holder(server: &Server) -> String {
    server.lock().unwrap().lease.as_ref().map(|l| holder(l).to_owned()).unwrap_or_default()
}

fn record(holder: &str, duration: i32, renewed: i64) -> Lease {
    let spec = LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: Some(duration),
        renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
        ..Default::default()
    };
    Lease { metadata: ObjectMeta::default(), spec: Some(spec) }
}

#[test]
fn a_record_is_judged_by_when_it_was_seen_to_change() {
    let changed_at = Instant::now();
    let after = |seconds| changed_at + Duration::from_secs(seconds);
    // Whatever its holder's clock says: written in 1970, or in a far future.
    for renewed in [0, 32_503_680_000] {
        let seen = |holder, duration| Seen { lease: record(holder, duration, renewed), changed_at };
        assert_eq!(decide(&seen("other", 15), after(14), "me"), LeaseAction::Wait);
        assert_eq!(decide(&seen("other", 15), after(15), "me"), LeaseAction::Take);
        // Its duration is its holder's, not ours.
        assert_eq!(decide(&seen("other", 60), after(59), "me"), LeaseAction::Wait);
        assert_eq!(decide(&seen("other", 0), after(14), "me"), LeaseAction::Wait);
        assert_eq!(decide(&seen("", 15), after(0), "me"), LeaseAction::Take);
        assert_eq!(decide(&seen("me", 15), after(0), "me"), LeaseAction::Renew);
        assert_eq!(decide(&seen("me", 15), after(60), "me"), LeaseAction::Renew);
    }
}

#[test]
fn a_renewal_keeps_when_the_record_was_acquired() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let first = held_by(None, "redlock-operator", "a", at(10));
    let renewed = held_by(Some(&first), "redlock-operator", "a", at(20)).spec.unwrap();
    assert_eq!((renewed.acquire_time, renewed.renew_time), (Some(MicroTime(at(10))), Some(MicroTime(at(20)))));
    assert_eq!((renewed.lease_transitions, renewed.lease_duration_seconds), (Some(0), Some(15)));
    let taken = held_by(Some(&first), "redlock-operator", "b", at(30)).spec.unwrap();
    assert_eq!((taken.acquire_time, taken.lease_transitions), (Some(MicroTime(at(30))), Some(1)));
    assert_eq!(taken.holder_identity.as_deref(), Some("b"));
}

#[tokio::test(start_paused = true)]
async fn of_two_that_write_at_once_one_leads() {
    for lease in [None, Some(record("gone", 0, 0)), Some(record("", 15, 0))] {
        let server = Server::default();
        let expires_first = lease.as_ref().is_some_and(|l| holder(l) == "gone");
        server.lock().unwrap().lease = lease;
        let barrier = Arc::new(Barrier::new(2));
        let (a, b) = (start(&server, "a", Some(Arc::clone(&barrier))), start(&server, "b", Some(barrier)));
        let patience = if expires_first { DURATION + 2 * RETRY } else { RETRY };
        sleep(patience).await;
        let winner = recorded_holder(&server);
        assert!(["a", "b"].contains(&winner.as_str()), "{winner:?}");
        assert_eq!((a.leadership.is_leader(), b.leadership.is_leader()), (winner == "a", winner == "b"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_keeps_its_lease_and_another_does_not_take_it() {
    let server = Server::default();
    let a = start(&server, "a", None);
    a.leadership.wait_until_leader().await;
    let b = start(&server, "b", None);
    sleep(20 * DURATION).await;
    assert!(a.leadership.is_leader() && !b.leadership.is_leader());
    // About one write in two seconds.
    let writes = server.lock().unwrap().writes;
    assert!((125..=151).contains(&writes), "{writes}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_api_server_takes_nobodys_lead() {
    let server = Server::default();
    let a = start(&server, "a", None);
    a.leadership.wait_until_leader().await;
    server.lock().unwrap().delay = REQUEST_TIMEOUT.mul_f64(0.95);
    sleep(10 * DURATION).await;
    assert!(a.leadership.is_leader());
}

#[tokio::test(start_paused = true)]
async fn a_process_that_is_being_stopped_takes_no_lead() {
    let server = Server::default();
    let (candidate, leadership) = candidate(client(&server, None), "a", Reach::default());
    let (drain, release) = (CancellationToken::new(), CancellationToken::new());
    drain.cancel();
    let task = tokio::spawn(candidate.run(drain, release.clone()));
    sleep(DURATION).await;
    assert!(!leadership.is_leader());
    release.cancel();
    task.await.unwrap();
    assert_eq!(server.lock().unwrap().writes, 0);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_goes_on_as_a_follower_and_leads_again_in_another_term() {
    let server = Server::default();
    let a = start_for_good(&server, "a");
    a.wait_until_leader().await;
    assert_eq!(a.term(), 1);
    let bound = a.clone();
    let writes = server.lock().unwrap().writes;
    server.lock().unwrap().hangs = true;
    changes_to(&a, false).await;
    sleep(20 * DURATION).await;
    assert!(!a.is_leader());
    assert_eq!(server.lock().unwrap().writes, writes, "frozen, it took nothing");
    server.lock().unwrap().hangs = false;
    let since = Instant::now();
    changes_to(&a, true).await;
    assert!(since.elapsed() <= REQUEST_TIMEOUT + RETRY + JITTER, "{:?}", since.elapsed());
    assert_eq!((a.term(), bound.term()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_slept_while_another_led_follows_that_and_leads_again_only_after_it() {
    let server = Server::default();
    let a = start_for_good(&server, "a");
    a.wait_until_leader().await;
    // While it sleeps, another takes the record.
    {
        let mut server = server.lock().unwrap();
        let mut lease = record("b", 15, 0);
        lease.metadata.resource_version = Some("99".to_owned());
        (server.lease, server.version) = (Some(lease), 99);
    }
    advance(DURATION).await;
    sleep(RETRY).await;
    assert!(!a.is_leader());
    assert_eq!(recorded_holder(&server), "b");
    let since = Instant::now();
    changes_to(&a, true).await;
    // Another's record has expired when it was not seen to change for its duration.
    assert!(since.elapsed() + RETRY + JITTER >= DURATION, "{:?}", since.elapsed());
    assert_eq!(recorded_holder(&server), "a");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_ends_before_another_leads() {
    let server = Server::default();
    let a = start(&server, "a", None);
    a.leadership.wait_until_leader().await;
    let cut = Server::default();
    {
        let (mut before, mut after) = (server.lock().unwrap(), cut.lock().unwrap());
        before.hangs = true;
        (after.lease, after.version) = (before.lease.clone(), before.version);
    }
    let since = Instant::now();
    let b = start(&cut, "b", None);
    assert_eq!(a.task.await.unwrap(), Err(Error::Expired));
    assert!(since.elapsed() <= RENEW_DEADLINE);
    assert!(!a.leadership.is_leader() && !b.leadership.is_leader());
    b.leadership.wait_until_leader().await;
    assert!(since.elapsed() >= DURATION, "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_process_that_slept_past_its_term_ends_without_a_write() {
    let server = Server::default();
    let a = start(&server, "a", None);
    a.leadership.wait_until_leader().await;
    let writes = server.lock().unwrap().writes;
    advance(DURATION).await;
    assert!(!a.leadership.is_leader());
    assert_eq!(a.task.await.unwrap(), Err(Error::Expired));
    assert_eq!(server.lock().unwrap().writes, writes);
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_record_is_anothers_ends() {
    let server = Server::default();
    let a = start(&server, "a", None);
    a.leadership.wait_until_leader().await;
    {
        let mut server = server.lock().unwrap();
        let mut lease = record("b", 15, 0);
        lease.metadata.resource_version = Some("99".to_owned());
        server.lease = Some(lease);
    }
    assert_eq!(a.task.await.unwrap(), Err(Error::Taken("b".to_owned())));
    assert!(!a.leadership.is_leader());
}

#[tokio::test(start_paused = true)]
async fn a_stopped_leader_gives_its_lease_back() {
    let server = Server::default();
    let a = start(&server, "a", None);
    a.leadership.wait_until_leader().await;
    let b = start(&server, "b", None);
    sleep(RETRY).await;
    let since = Instant::now();
    a.stop.cancel();
    assert_eq!(a.task.await.unwrap(), Ok(()));
    assert!(!a.leadership.is_leader());
    assert_eq!(recorded_holder(&server), "");
    b.leadership.wait_until_leader().await;
    assert!(since.elapsed() <= RETRY + JITTER);
    assert_eq!(recorded_holder(&server), "b");
}

/// Says each second which of both reaches masters, for so long.
async fn reach_for(seconds: u32, reaches: [(&Reach, usize); 2]) {
    for _ in 0..seconds {
        for (reach, answered) in reaches {
            reach.note(2, answered);
        }
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_reaches_no_master_gives_the_lease_to_one_that_does() {
    let (server, of_a, of_b) = (Server::default(), Reach::default(), Reach::default());
    let a = start_that_reaches(&server, "a", &of_a);
    a.wait_until_leader().await;
    let b = start_that_reaches(&server, "b", &of_b);
    reach_for(20, [(&of_a, 1), (&of_b, 1)]).await;
    assert!(a.is_leader(), "both reach them");
    let since = Instant::now();
    let leads = async {
        b.wait_until_leader().await;
        assert!(!a.is_leader(), "never both");
        since.elapsed()
    };
    let cut = reach_for(20, [(&of_a, 0), (&of_b, 1)]);
    let (took, ()) = futures::join!(leads, cut);
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(!a.is_leader() && b.is_leader());
    assert_eq!(recorded_holder(&server), "b");
    reach_for(60, [(&of_a, 1), (&of_b, 1)]).await;
    assert!(b.is_leader(), "it does not go back without need");
    let annotations = server.lock().unwrap().lease.as_ref().unwrap().metadata.annotations.clone();
    assert_eq!(annotations.unwrap_or_default(), [].into(), "no question is left");
}

#[tokio::test(start_paused = true)]
async fn where_nobody_reaches_a_master_the_lease_stays() {
    let (server, of_a, of_b) = (Server::default(), Reach::default(), Reach::default());
    let a = start_that_reaches(&server, "a", &of_a);
    a.wait_until_leader().await;
    let b = start_that_reaches(&server, "b", &of_b);
    reach_for(60, [(&of_a, 0), (&of_b, 0)]).await;
    assert!(a.is_leader() && !b.is_leader());
    reach_for(20, [(&of_a, 1), (&of_b, 0)]).await;
    assert!(a.is_leader());
    assert_eq!((a.term(), b.term()), (1, 0), "its term did not end meanwhile");
}
