//! How the application asks its agent: plain HTTP on the pod.
//!
//! | path | answer |
//! |---|---|
//! | `/` | the leader, on every pod: [`Answer`](super::answer::Answer) as JSON |
//! | `/leader` | 200 while this pod leads, by its own clock at the moment of the answer; else 503 |
//! | `/livez` | 200 |
//! | `/readyz` | 200 once a majority of masters has answered; does not depend on leadership |
//! | `/metrics` | Prometheus metrics |

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};

use super::election::Election;
use crate::openmetrics;

/// The routes.
pub(crate) fn router(election: Election) -> Router {
    Router::new()
        .route("/", get(|State(e): State<Election>| async move { uncached(Json(e.answer().await)) }))
        .route("/leader", get(|State(e): State<Election>| async move { uncached(leader(&e)) }))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(|State(e): State<Election>| async move { ready(&e) }))
        .route("/metrics", get(|State(e): State<Election>, request: HeaderMap| async move { metrics(&e, &request) }))
        .with_state(election)
}

/// No cache may keep the answer: leadership changes.
fn uncached(answer: impl IntoResponse) -> impl IntoResponse {
    ([(header::CACHE_CONTROL, "no-store")], answer)
}

fn leader(election: &Election) -> (StatusCode, &'static str) {
    if election.is_leader() { (StatusCode::OK, "leader\n") } else { (StatusCode::SERVICE_UNAVAILABLE, "not leader\n") }
}

fn ready(election: &Election) -> (StatusCode, &'static str) {
    if election.has_reached_quorum() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "no majority of masters has answered yet\n")
    }
}

fn metrics(election: &Election, request: &HeaderMap) -> impl IntoResponse + use<> {
    openmetrics::response(request, election.render_metrics())
}
