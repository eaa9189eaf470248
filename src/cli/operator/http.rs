//! The HTTP server of the operator: `/livez`, `/readyz` and `/metrics`.

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::openmetrics;
use crate::operator::health::Health;
use crate::operator::leadership::Leadership;
use crate::operator::metrics::Metrics;

/// The sources of the answers.
#[derive(Clone)]
pub(super) struct Sources {
    /// For `/livez` and `/readyz`. Neither depends on leadership: a follower is as healthy as a leader.
    pub health: Health,
    /// For `/metrics`.
    pub metrics: Metrics,
    /// Shown in `/metrics`, as of the moment of the answer.
    pub leadership: Leadership,
}

/// The routes.
pub(super) fn router(sources: Sources) -> Router {
    Router::new()
        .route("/livez", get(|State(s): State<Sources>| async move { probe(s.health.liveness()) }))
        .route("/readyz", get(|State(s): State<Sources>| async move { probe(s.health.readiness()) }))
        .route("/metrics", get(|State(s): State<Sources>, request: HeaderMap| async move { metrics(&s, &request) }))
        .with_state(sources)
}

/// 200, or 503 with the reason.
fn probe(result: Result<(), String>) -> (StatusCode, String) {
    match result {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

fn metrics(sources: &Sources, request: &HeaderMap) -> impl IntoResponse + use<> {
    sources.metrics.set_leader(sources.leadership.is_leader());
    openmetrics::response(request, sources.metrics.render())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn serve(health: Health) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let sources = Sources { health, metrics: Metrics::default(), leadership: Leadership::always() };
        tokio::spawn(axum::serve(listener, router(sources)).into_future());
        address
    }

    async fn answer(url: String) -> (u16, String) {
        let response = reqwest::get(url).await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    #[tokio::test]
    async fn the_probes_tell_alive_and_ready_apart() {
        let health = Health::new();
        health.awaits("lock controller", "the first list");
        let address = serve(health.clone()).await;
        assert_eq!(answer(format!("{address}/livez")).await, (200, "ok\n".to_owned()));
        let waiting = "lock controller awaits the first list\n".to_owned();
        assert_eq!(answer(format!("{address}/readyz")).await, (503, waiting));
        health.arrived("lock controller");
        health.ended("lease");
        assert_eq!(answer(format!("{address}/livez")).await, (503, "lease has ended\n".to_owned()));
        assert_eq!(answer(format!("{address}/readyz")).await, (200, "ok\n".to_owned()));
    }

    #[tokio::test]
    async fn metrics_come_as_openmetrics_to_who_accepts_it_and_else_in_the_text_format() {
        let address = serve(Health::new()).await;
        for (accept, media_type, end) in [
            (
                "application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1",
                "application/openmetrics-text; version=1.0.0",
                "# EOF\n",
            ),
            ("*/*", "text/plain; version=0.0.4", "\n"),
        ] {
            let request = reqwest::Client::new().get(format!("{address}/metrics")).header("accept", accept);
            let response = request.send().await.unwrap();
            assert_eq!(response.headers()["content-type"], format!("{media_type}; charset=utf-8"));
            let text = response.text().await.unwrap();
            assert!(text.lines().any(|line| line == "redlock_leader 1") && text.ends_with(end), "{text}");
            assert!(text.contains("# EOF") == end.contains("EOF"), "{text}");
        }
    }
}
