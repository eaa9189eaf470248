//! Metrics in the `OpenMetrics` text format, as Prometheus scrapes them.

use std::fmt;

use axum::http::header;
use axum::response::IntoResponse;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// Media type of the format.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of the registry, in the text format.
pub(crate) fn render(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a `String` does not fail, and none of our labels and values refuses to be encoded.
    match encode(&mut text, registry) {
        Ok(()) => text,
        Err(fmt::Error) => String::new(),
    }
}

/// The answer to a scrape.
pub(crate) fn response(text: String) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text)
}
