//! Which operator serves a cluster: its claim, an annotation of the cluster that names the operator's Lease and is renewed.
//!
//! # Invariant
//! An operator (all replicas that elect by one Lease) serves only clusters that it has claimed, and the locks on them. A claim is
//! written by compare-and-swap, so that of two operators one gets it. The other stands by, and takes it when it has not seen
//! the claim change for [`EXPIRES_AFTER`] by its own monotonic clock: times that another operator wrote are compared with no clock of
//! this one.
//!
//! An operator that could not renew its claim for so long has lost its Lease long before, and decides nothing. It reads the claim from
//! the API server before each decision about the cluster.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::api::ObjectMeta;
use serde_json::json;
use tokio::time::Instant;

use super::api_server::{ApiServer, Error};
use crate::api::RedisLockCluster;
use crate::contract::names::{OPERATOR_ANNOTATION, OPERATOR_RENEWED_ANNOTATION};

/// When a claim is renewed. A cluster is reconciled about each minute.
const RENEW_AFTER: Duration = Duration::from_secs(45);
/// When a claim that was not seen to change may be taken: three times as long as a reconcile may come late.
pub(crate) const EXPIRES_AFTER: Duration = Duration::from_secs(180);

/// Whose a cluster is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// This operator's.
    Here,
    /// Nobody's yet.
    Nowhere,
    /// Another operator's, which is this.
    By(String),
}

/// What is done about a claim.
#[derive(Debug, PartialEq, Eq)]
enum ClaimAction {
    /// It is ours, and was renewed of late.
    Keep,
    /// It is ours: renew it. Or it is nobody's, or has expired: take it.
    Write,
    /// Another operator serves the cluster.
    StandBy(String),
}

/// What came of looking after a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// The cluster is served here.
    Ours,
    /// The same, and the object has just been written: it has another version now.
    Written,
    /// Another operator serves the cluster.
    StandBy(String),
}

/// A claim, and since when it was seen as it is.
#[derive(Clone, Debug)]
struct Seen {
    operator: Option<String>,
    renewed: Option<String>,
    since: Instant,
}

/// The claims of all clusters, as this process has seen them. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Claims {
    own: String,
    seen: Arc<Mutex<HashMap<String, Seen>>>,
}

/// Who serves the cluster with this metadata, for the operator `own`.
pub(crate) fn served(meta: &ObjectMeta, own: &str) -> Served {
    match annotation(meta, OPERATOR_ANNOTATION) {
        None => Served::Nowhere,
        Some(operator) if operator == own => Served::Here,
        Some(operator) => Served::By(operator.to_owned()),
    }
}

/// The decision, by the claim and our own clock alone.
fn decide(seen: &Seen, own: &str, now: Instant) -> ClaimAction {
    let unchanged_for = now.saturating_duration_since(seen.since);
    match seen.operator.as_deref() {
        None => ClaimAction::Write,
        Some(operator) if operator == own && unchanged_for < RENEW_AFTER => ClaimAction::Keep,
        Some(operator) if operator == own => ClaimAction::Write,
        Some(_) if unchanged_for >= EXPIRES_AFTER => ClaimAction::Write,
        Some(operator) => ClaimAction::StandBy(operator.to_owned()),
    }
}

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

// === impl Claims ===

impl std::fmt::Display for Claims {
    /// This operator, as claims name it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.own)
    }
}

impl Claims {
    /// Nothing was seen yet. `own`: the Lease by which this operator's replicas elect, as namespace and name.
    pub(crate) fn new(own: String) -> Self {
        Self { own, seen: Arc::default() }
    }

    /// Who serves the cluster with this metadata.
    pub(crate) fn served(&self, meta: &ObjectMeta) -> Served {
        served(meta, &self.own)
    }

    /// Takes the claim of `cluster`, renews it, or leaves it to another operator. `cluster` must have been read just now.
    pub(crate) async fn look_after(&self, api: &ApiServer, cluster: &RedisLockCluster) -> Result<Claimed, Error> {
        match decide(&self.see(&cluster.metadata), &self.own, Instant::now()) {
            ClaimAction::Keep => Ok(Claimed::Ours),
            ClaimAction::StandBy(operator) => Ok(Claimed::StandBy(operator)),
            ClaimAction::Write => {
                if let Served::By(former) = self.served(&cluster.metadata) {
                    tracing::warn!(
                        former,
                        "takes a cluster over: its operator has not renewed its claim for {EXPIRES_AFTER:?}"
                    );
                }
                self.write(api, &cluster.metadata).await.map(|()| Claimed::Written)
            }
        }
    }

    /// Notes the claim, and returns since when it is as it is.
    fn see(&self, meta: &ObjectMeta) -> Seen {
        let of = |key| annotation(meta, key).map(str::to_owned);
        let (operator, renewed) = (of(OPERATOR_ANNOTATION), of(OPERATOR_RENEWED_ANNOTATION));
        let mut all = self.seen();
        let entry = all.entry(meta.uid.clone().unwrap_or_default());
        let now = Seen { operator, renewed, since: Instant::now() };
        let seen = entry.or_insert_with(|| now.clone());
        if (&seen.operator, &seen.renewed) != (&now.operator, &now.renewed) {
            *seen = now;
        }
        seen.clone()
    }

    async fn write(&self, api: &ApiServer, meta: &ObjectMeta) -> Result<(), Error> {
        let of = |text: &Option<String>| text.clone().unwrap_or_default();
        let renewed = Timestamp::now().to_string();
        let mut operations =
            vec![json!({"op": "test", "path": "/metadata/resourceVersion", "value": meta.resource_version})];
        if meta.annotations.is_none() {
            operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
        }
        for (key, value) in [(OPERATOR_ANNOTATION, self.own.as_str()), (OPERATOR_RENEWED_ANNOTATION, &renewed)] {
            let path = format!("/metadata/annotations/{}", key.replace('/', "~1"));
            operations.push(json!({"op": "add", "path": path, "value": value}));
        }
        let (namespace, name, uid) = (of(&meta.namespace), of(&meta.name), of(&meta.uid));
        api.patch_metadata::<RedisLockCluster>(&namespace, &name, &uid, &operations).await.map(drop)
    }

    /// Forgets the claims of clusters that do not exist any more.
    pub(crate) fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.seen().retain(|uid, _| exists(uid));
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<String, Seen>> {
        // Each change is one assignment.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn claimed(operator: &str, renewed: &str) -> ObjectMeta {
        let annotations = [(OPERATOR_ANNOTATION, operator), (OPERATOR_RENEWED_ANNOTATION, renewed)];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        ObjectMeta { uid: Some("u".to_owned()), annotations: Some(annotations), ..ObjectMeta::default() }
    }

    fn action(claims: &Claims, meta: &ObjectMeta) -> ClaimAction {
        decide(&claims.see(meta), &claims.own, Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_of_another_is_taken_when_it_was_not_seen_to_change_for_long_enough() {
        let claims = Claims::new("a/redlock-operator".to_owned());
        let nobodys = ObjectMeta { uid: Some("u".to_owned()), ..ObjectMeta::default() };
        assert_eq!((action(&claims, &nobodys), claims.served(&nobodys)), (ClaimAction::Write, Served::Nowhere));

        // Whatever the other's clock says.
        for renewed in ["1970-01-01T00:00:00Z", "2970-01-01T00:00:00Z"] {
            let others = claimed("b/redlock-operator", renewed);
            let by = "b/redlock-operator".to_owned();
            assert_eq!(claims.served(&others), Served::By(by.clone()));
            assert_eq!(action(&claims, &others), ClaimAction::StandBy(by.clone()));
            advance(EXPIRES_AFTER.saturating_sub(Duration::from_secs(1))).await;
            assert_eq!(action(&claims, &others), ClaimAction::StandBy(by));
        }
        advance(Duration::from_secs(1)).await;
        assert_eq!(action(&claims, &claimed("b/redlock-operator", "2970-01-01T00:00:00Z")), ClaimAction::Write);
    }

    #[tokio::test(start_paused = true)]
    async fn an_own_claim_is_renewed_before_it_can_expire() {
        let claims = Claims::new("a/redlock-operator".to_owned());
        let ours = claimed("a/redlock-operator", "2026-12-01T00:00:00Z");
        assert_eq!((action(&claims, &ours), claims.served(&ours)), (ClaimAction::Keep, Served::Here));
        advance(RENEW_AFTER).await;
        assert_eq!(action(&claims, &ours), ClaimAction::Write);
        let renewed = claimed("a/redlock-operator", "2026-12-01T00:00:45Z");
        assert_eq!(action(&claims, &renewed), ClaimAction::Keep);
        claims.retain(|_| false);
        advance(RENEW_AFTER).await;
        assert_eq!(action(&claims, &renewed), ClaimAction::Keep, "seen for the first time");
    }
}
