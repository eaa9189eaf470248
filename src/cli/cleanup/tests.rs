//! The command over an API server that is a value.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;

const LEASE_PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/redlock-system/leases/redlock-operator";
const STORE_PATH: &str = "/api/v1/namespaces/redlock-system/configmaps/redlock-tombstones";
const KINDS: [(&str, &str); 3] = [
    ("/api/v1/pods", "redlock.dev/master"),
    ("/apis/redlock.dev/v1alpha1/redislockclusters", "redlock.dev/retirement"),
    ("/apis/redlock.dev/v1alpha1/distributedlocks", "redlock.dev/release"),
];

/// What an API server has, and what was asked of it.
#[derive(Default)]
struct World {
    /// The metadata of all objects, with the path of the list of their kind.
    objects: Vec<(&'static str, Value)>,
    lease: Option<Value>,
    /// Its holder renews it each time it is read.
    is_renewed: bool,
    /// Another candidate takes it at its second renewal.
    is_taken: bool,
    /// Lists are never answered.
    is_silent: bool,
    /// Answers a patch of the object of this name once by this code; 404 also removes it.
    refused: Vec<(&'static str, u16)>,
    /// Objects in a page, instead of what was asked for.
    page: usize,
    /// Each write: its verb and path.
    written: Vec<String>,
}

type Shared = Arc<Mutex<World>>;

fn failure(code: u16) -> (u16, Value) {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        _ => "Invalid",
    };
    (
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": "no"}),
    )
}

impl World {
    fn answer(&mut self, method: &Method, path: &str, query: &str, body: &Value) -> Option<(u16, Value)> {
        if *method != Method::GET {
            self.written.push(format!("{method} {path}"));
        }
        Some(match (method, path) {
            (&Method::GET, LEASE_PATH) => {
                let Some(lease) = &mut self.lease else { return Some(failure(404)) };
                if self.is_renewed {
                    let count = lease["spec"]["leaseTransitions"].as_i64().unwrap_or_default();
                    lease["spec"]["leaseTransitions"] = json!(count + 1);
                }
                (200, lease.clone())
            }
            (&Method::PUT, LEASE_PATH) => {
                if self.is_taken && self.written.len() > 1 {
                    self.lease.as_mut().unwrap()["spec"]["holderIdentity"] = json!("redlock-operator-b");
                    return Some(failure(409));
                }
                self.lease = Some(body.clone());
                (200, body.clone())
            }
            (_, STORE_PATH) => (200, json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"uid": "store"}})),
            (&Method::GET, path) if KINDS.iter().any(|(list, _)| *list == path) => {
                if self.is_silent {
                    return None;
                }
                self.list(path, query)
            }
            (&Method::GET, path) => {
                self.find(path).map_or_else(|| failure(404), |at| (200, partial(&self.objects[at].1)))
            }
            (&Method::PATCH, path) => self.patch(path, body),
            other => panic!("unexpected: {other:?}"),
        })
    }

    fn list(&self, path: &str, query: &str) -> (u16, Value) {
        if path == "/api/v1/pods" {
            assert!(query.contains("labelSelector=app.kubernetes.io"), "{query}");
        }
        let from: usize =
            query.split('&').find_map(|part| part.strip_prefix("continue=")).map_or(0, |token| token.parse().unwrap());
        let all: Vec<_> =
            self.objects.iter().filter(|(list, _)| *list == path).map(|(_, meta)| partial(meta)).collect();
        let page: Vec<_> = all.iter().skip(from).take(self.page).cloned().collect();
        let next = if from + page.len() < all.len() { (from + page.len()).to_string() } else { String::new() };
        let kind = "PartialObjectMetadataList";
        (200, json!({"kind": kind, "apiVersion": "meta.k8s.io/v1", "metadata": {"continue": next}, "items": page}))
    }

    /// The object with this path.
    fn find(&self, path: &str) -> Option<usize> {
        let name = path.rsplit('/').next().unwrap();
        self.objects
            .iter()
            .position(|(list, meta)| meta["name"] == name && path.contains(list.rsplit('/').next().unwrap()))
    }

    fn patch(&mut self, path: &str, body: &Value) -> (u16, Value) {
        let Some(at) = self.find(path) else { return failure(404) };
        let name = self.objects[at].1["name"].clone();
        if let Some(refused) = self.refused.iter().position(|(refused, _)| name == *refused) {
            let (_, code) = self.refused.remove(refused);
            if code == 404 {
                self.objects.remove(at);
            }
            return failure(code);
        }
        let mut object = json!({"metadata": self.objects[at].1});
        for operation in body.as_array().unwrap() {
            let path = operation["path"].as_str().unwrap();
            match operation["op"].as_str().unwrap() {
                "test" if object.pointer(path) != Some(&operation["value"]) => return failure(422),
                "remove" => {
                    let (list, index) = path.rsplit_once('/').unwrap();
                    object.pointer_mut(list).unwrap().as_array_mut().unwrap().remove(index.parse().unwrap());
                }
                _ => {}
            }
        }
        self.objects[at].1 = object["metadata"].clone();
        (200, partial(&self.objects[at].1))
    }

    /// The finalizers that are left.
    fn finalizers(&self) -> Vec<String> {
        let all = self.objects.iter().flat_map(|(_, meta)| meta["finalizers"].as_array().cloned().unwrap_or_default());
        all.map(|finalizer| finalizer.as_str().unwrap().to_owned()).collect()
    }
}

fn partial(meta: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta})
}

fn object(list: usize, name: &str) -> (&'static str, Value) {
    let (path, finalizer) = KINDS[list];
    (
        path,
        json!({"name": name, "namespace": "keys", "uid": format!("uid-{name}"), "finalizers": ["other/one", finalizer]}),
    )
}

fn lease(holder: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "redlock-operator", "namespace": "redlock-system", "resourceVersion": "1"},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15},
    })
}

fn world(objects: Vec<(&'static str, Value)>, lease: Option<Value>) -> World {
    World { objects, lease, page: 500, ..World::default() }
}

fn one_of_each() -> Vec<(&'static str, Value)> {
    vec![object(0, "main-0"), object(1, "main"), object(2, "report")]
}

fn client(world: &Shared) -> Client {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let world = Arc::clone(world);
    tokio::spawn(async move {
        let mut unanswered = Vec::new();
        while let Some((request, send)) = handle.next_request().await {
            let (parts, body) = request.into_parts();
            let body = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
            let query =
                parts.uri.query().unwrap_or_default().replace("%2F", "/").replace("%3D", "=").replace("%2C", ",");
            let answer = world.lock().unwrap().answer(&parts.method, parts.uri.path(), &query, &body);
            match answer {
                Some((code, body)) => {
                    let body = Body::from(body.to_string().into_bytes());
                    send.send_response(Response::builder().status(code).body(body).unwrap());
                }
                None => unanswered.push(send),
            }
        }
    });
    Client::new(service, "redlock-system")
}

fn options() -> Options {
    Options { namespace: None, dry_run: false, wait: Duration::from_secs(60), without_lease: false }
}

/// What the command printed, and how it ended.
async fn cleaned_up(world: World, options: Options) -> (String, Result<(), String>, World) {
    let world = Arc::new(Mutex::new(world));
    let mut out = Vec::new();
    let signals = Signals::new().unwrap();
    let result = clean_up(client(&world), client(&world), options, signals, &mut out).await;
    let world = std::mem::take(&mut *world.lock().unwrap());
    (String::from_utf8(out).unwrap(), result.map_err(|error| error.to_string()), world)
}

#[tokio::test(start_paused = true)]
async fn each_object_loses_the_finalizer_of_the_operator_and_keeps_those_of_others() {
    let (out, result, world) = cleaned_up(world(one_of_each(), Some(lease(""))), options()).await;
    assert_eq!(result, Ok(()));
    assert_eq!(
        out,
        "distributedlock keys/report: finalizer is off: redlock.dev/release\n\
         redislockcluster keys/main: finalizer is off: redlock.dev/retirement\n\
         pod keys/main-0: finalizer is off: redlock.dev/master\n\
         finalizers taken off: 1 of locks, 1 of clusters, 1 of masters' pods\n"
    );
    assert_eq!(world.finalizers(), ["other/one"; 3]);
    let writes: Vec<_> = world.written.iter().map(String::as_str).collect();
    let (taken, noted, released) = (writes[0], writes[1], writes[writes.len() - 1]);
    assert_eq!((taken, released), (&*format!("PUT {LEASE_PATH}"), &*format!("PUT {LEASE_PATH}")));
    assert_eq!(noted, format!("PATCH {STORE_PATH}"), "before a cluster can vanish without a tombstone");
    assert_eq!(world.lease.unwrap()["spec"]["holderIdentity"], "", "the next operator leads at once");
}

#[tokio::test(start_paused = true)]
async fn thousands_of_objects_are_read_page_by_page() {
    let objects = (0..2345).map(|i| object(2, &format!("lock-{i}"))).collect();
    let world = World { page: 500, ..world(objects, Some(lease(""))) };
    let (out, result, world) = cleaned_up(world, options()).await;
    assert_eq!(result, Ok(()));
    assert_eq!(out.lines().last(), Some("finalizers taken off: 2345 of locks, 0 of clusters, 0 of masters' pods"));
    assert!(world.finalizers().iter().all(|finalizer| finalizer == "other/one"));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_changed_while_an_operator_leads_and_it_is_named() {
    let begun = Instant::now();
    let leading = World { is_renewed: true, ..world(one_of_each(), Some(lease("redlock-operator-a_u1"))) };
    let (out, result, world) = cleaned_up(leading, options()).await;
    let error = result.unwrap_err();
    assert!(
        error.starts_with("an operator runs: redlock-operator-a_u1 holds the Lease redlock-system/redlock-operator"),
        "{error}"
    );
    assert_eq!((out.as_str(), world.written.len()), ("", 0));
    assert!((60..65).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_a_dead_operator_is_taken_when_it_has_expired_by_our_own_clock() {
    let begun = Instant::now();
    let (_, result, world) = cleaned_up(world(one_of_each(), Some(lease("redlock-operator-a_u1"))), options()).await;
    assert_eq!(result, Ok(()));
    assert!((15..20).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(world.finalizers(), ["other/one"; 3]);
}

#[tokio::test(start_paused = true)]
async fn it_stops_when_another_takes_the_lease() {
    let silent = World { is_silent: true, is_taken: true, ..world(one_of_each(), Some(lease(""))) };
    let (_, result, world) = cleaned_up(silent, options()).await;
    assert_eq!(result.unwrap_err(), "the Lease was taken by \"redlock-operator-b\": run this again");
    assert_eq!(world.finalizers().len(), 6, "nothing was taken off");
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_changes_nothing_although_an_operator_leads() {
    let leading = World { is_renewed: true, ..world(one_of_each(), Some(lease("redlock-operator-a_u1"))) };
    let (out, result, world) = cleaned_up(leading, Options { dry_run: true, ..options() }).await;
    assert_eq!(result, Ok(()));
    assert!(out.contains("pod keys/main-0: finalizer would be taken off: redlock.dev/master\n"), "{out}");
    assert!(
        out.ends_with("finalizers that would be taken off: 1 of locks, 1 of clusters, 1 of masters' pods\n"),
        "{out}"
    );
    assert_eq!((world.written.len(), world.finalizers().len()), (0, 6));
}

#[tokio::test(start_paused = true)]
async fn a_namespace_in_which_no_operator_has_led_is_refused_unless_there_is_nothing_to_do_or_one_insists() {
    let (out, result, refused) = cleaned_up(world(one_of_each(), None), options()).await;
    assert!(result.unwrap_err().starts_with("no operator has ever led in the namespace redlock-system"));
    assert_eq!((out.as_str(), refused.written.len()), ("", 0));
    let (out, result, _) = cleaned_up(world(Vec::new(), None), options()).await;
    assert_eq!(result, Ok(()));
    assert_eq!(out, "nothing to clean up: no object has a finalizer of the operator\n");
    let (_, result, insisted) = cleaned_up(refused, Options { without_lease: true, ..options() }).await;
    assert_eq!((result, insisted.finalizers()), (Ok(()), vec!["other/one".to_owned(); 3]));
}

#[tokio::test(start_paused = true)]
async fn objects_that_vanish_or_change_meanwhile_are_no_error_and_one_that_cannot_be_changed_keeps_no_other() {
    let objects = ["vanishes", "changes", "refused", "well"].map(|name| object(2, name)).to_vec();
    let refused = vec![("vanishes", 404), ("changes", 422), ("refused", 403)];
    let (out, result, world) = cleaned_up(World { refused, ..world(objects, Some(lease(""))) }, options()).await;
    assert_eq!(
        result.unwrap_err(),
        "objects that have kept their finalizers, for the reasons above: 1. Run this again"
    );
    assert!(
        out.contains("distributedlock keys/refused: failed to patch the metadata of DistributedLock refused: "),
        "{out}"
    );
    assert!(out.ends_with("finalizers taken off: 3 of locks, 0 of clusters, 0 of masters' pods\n"), "{out}");
    let left = world.finalizers().into_iter().filter(|finalizer| finalizer == "redlock.dev/release").count();
    assert_eq!(left, 1);
    assert_eq!(world.lease.unwrap()["spec"]["holderIdentity"], "", "the Lease is released all the same");
}
