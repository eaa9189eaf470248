//! How the application asks its agent: plain HTTP on the pod.
//!
//! | path | answer |
//! |---|---|
//! | `/` | who leads, on every pod: [`Answer`](super::answer::Answer) as JSON |
//! | `/leader` | 200 while this pod leads, by the own clock at the moment of the answer; else 503 |
//! | `/livez` | 200 |
//! | `/readyz` | 200 as soon as a majority of masters has answered once; apart from leadership |
//! | `/metrics` | Prometheus metrics |

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};

use super::election::Candidate;
use crate::openmetrics;

/// The routes.
pub fn router(candidate: Candidate) -> Router {
    Router::new()
        .route("/", get(|State(c): State<Candidate>| async move { uncached(Json(c.answer().await)) }))
        .route("/leader", get(|State(c): State<Candidate>| async move { uncached(leader(&c)) }))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(|State(c): State<Candidate>| async move { ready(&c) }))
        .route("/metrics", get(|State(c): State<Candidate>| async move { metrics(&c) }))
        .with_state(candidate)
}

/// Leadership that was true is not worth keeping.
fn uncached(answer: impl IntoResponse) -> impl IntoResponse {
    ([(header::CACHE_CONTROL, "no-store")], answer)
}

fn leader(candidate: &Candidate) -> (StatusCode, &'static str) {
    if candidate.is_leader() { (StatusCode::OK, "leader\n") } else { (StatusCode::SERVICE_UNAVAILABLE, "not leader\n") }
}

fn ready(candidate: &Candidate) -> (StatusCode, &'static str) {
    if candidate.has_reached_quorum() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "no majority of masters has answered yet\n")
    }
}

fn metrics(candidate: &Candidate) -> impl IntoResponse + use<> {
    openmetrics::response(candidate.render_metrics())
}
