//! What the transport sees of watches: opened, refused, ended, silent.

use axum::Router;
use axum::extract::RawQuery;
use axum::response::IntoResponse as _;
use axum::routing::get;
use futures::StreamExt as _;
use kube::client::Body;
use kube::runtime::watcher;
use redlock_test_servers::proxy::Proxy;
use redlock_test_servers::server::eventually;
use tokio::net::TcpListener;
use tokio::time::advance;
use tower_test::mock::{self, Handle};

use super::*;
use crate::operator::health::Health;
use crate::operator::metrics::Metrics;
use crate::operator::watch::{Watch, WatchedNamespace};

type ApiServer = Handle<Request<Body>, Response<Body>>;
type Client = Transport<mock::Mock<Request<Body>, Response<Body>>>;

const LOCKS: &str = "/apis/redlock.dev/v1alpha1/distributedlocks";

fn client() -> (Client, Pulses, ApiServer) {
    let (service, server) = mock::pair::<Request<Body>, Response<Body>>();
    let pulses = Pulses::default();
    (pulses.layer(service), pulses, server)
}

async fn ask(client: &mut Client, query: &str) -> Result<Response<Answer<Body>>, String> {
    std::future::poll_fn(|context| client.poll_ready(context)).await.unwrap();
    let request = Request::get(format!("http://api{LOCKS}?{query}")).body(Body::empty()).unwrap();
    client.call(request).await.map_err(|error| error.to_string())
}

/// The answer to a watch, with this status.
async fn watched(client: &mut Client, server: &mut ApiServer, status: u16) -> Response<Answer<Body>> {
    let answer = async {
        let (_, send) = server.next_request().await.unwrap();
        send.send_response(Response::builder().status(status).body(Body::from(b"{}".to_vec())).unwrap());
    };
    futures::join!(ask(client, "watch=true&timeoutSeconds=200"), answer).0.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_not_opened_again_soon_is_trouble_until_it_is() {
    let (mut client, pulses, mut server) = client();
    assert_eq!((pulses.trouble(), pulses.silence("distributedlocks")), (None, None), "nothing was asked for");
    let open = watched(&mut client, &mut server, 200).await;
    advance(Duration::from_secs(600)).await;
    assert_eq!(pulses.trouble(), None, "an open watch may be silent: who reads it bounds that");
    assert_eq!(pulses.silence("distributedlocks"), Some(Duration::from_secs(600)));
    drop(open);
    advance(GRACE).await;
    assert_eq!(pulses.trouble(), None);
    advance(Duration::from_secs(1)).await;
    let health = Health::of(pulses.clone());
    let down = format!("the watch of {LOCKS} is down for 16s: it is not open");
    assert_eq!(health.readiness(), Err(down));
    let _open = watched(&mut client, &mut server, 200).await;
    assert_eq!(health.readiness(), Ok(()));
    assert_eq!(pulses.silence("distributedlocks"), Some(Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_watch_is_trouble_and_says_so() {
    let (mut client, pulses, mut server) = client();
    drop(watched(&mut client, &mut server, 200).await);
    for _ in 0..4 {
        drop(watched(&mut client, &mut server, 403).await);
        advance(Duration::from_secs(5)).await;
    }
    let trouble = pulses.trouble().expect("down for 20 s");
    assert_eq!(trouble, format!("the watch of {LOCKS} is down for 20s: 403 Forbidden"));
    assert_eq!(pulses.silence("distributedlocks"), Some(Duration::from_secs(20)), "a refusal is no beat");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_former_watch_says_nothing_of_the_present_one() {
    let (mut client, pulses, mut server) = client();
    let former = watched(&mut client, &mut server, 200).await;
    let _present = watched(&mut client, &mut server, 200).await;
    drop(former);
    advance(2 * GRACE).await;
    assert_eq!(pulses.trouble(), None);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_never_answered_ends_with_an_error() {
    let (mut client, _, _server) = client();
    let began = Instant::now();
    for query in ["watch=true", "limit=500"] {
        assert_eq!(ask(&mut client, query).await.err().as_deref(), Some("no answer of the API server within 30s"));
    }
    assert_eq!(began.elapsed(), 2 * SILENCE);
}

/// An API server without namespaces. Its watches are open, and say nothing.
async fn silent_api_server() -> u16 {
    let answer = async |RawQuery(query): RawQuery| {
        if query.is_some_and(|query| query.contains("watch=true")) {
            let nothing = futures::stream::pending::<Result<Vec<u8>, std::io::Error>>();
            return axum::body::Body::from_stream(nothing.boxed()).into_response();
        }
        let list = r#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[]}"#;
        ([("content-type", "application/json")], list).into_response()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(axum::serve(listener, Router::new().route("/api/v1/namespaces", get(answer))).into_future());
    port
}

#[tokio::test]
async fn a_watch_whose_packets_are_dropped_is_noticed_after_its_timeout_and_opened_again() {
    let proxy = Proxy::to(silent_api_server().await).await;
    let (watch, feed) = Watch::<WatchedNamespace>::new(|_| ());
    let pulses = Pulses::default();
    let config = kube::Config::new(format!("http://127.0.0.1:{}", proxy.port).parse().unwrap());
    let client = crate::operator::connect(config, &pulses).unwrap();
    // The client's own bound is this, and 5 s.
    let sources = vec![(kube::Api::all(client), watcher::Config::default().timeout(1))];
    let watching = tokio::spawn(async move { feed.run(sources, &[].into(), Metrics::default()).await });
    watch.listed().await;
    let is_open = || pulses.all().values().any(|pulse| pulse.down_since.is_none());
    eventually("an open watch", async || is_open().then_some(())).await;
    proxy.swallow();
    eventually("the watch given up", async || (!is_open()).then_some(())).await;
    proxy.heal();
    eventually("an open watch again", async || is_open().then_some(())).await;
    watching.abort();
}
