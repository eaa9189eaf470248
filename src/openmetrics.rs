//! Metrics in the format that the scraper asks for: `OpenMetrics`, or the older text format of Prometheus.

use std::collections::HashMap;
use std::fmt;

use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// Media type of `OpenMetrics`.
const OPEN_METRICS: &str = "application/openmetrics-text";
/// The same in an answer.
const OPEN_METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Media type of the text format of Prometheus.
const TEXT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics of the registry, as `OpenMetrics`.
pub(crate) fn render(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a `String` does not fail, and none of our labels and values refuses to be encoded.
    match encode(&mut text, registry) {
        Ok(()) => text,
        Err(fmt::Error) => String::new(),
    }
}

/// The answer to a scrape: `open_metrics` as it is, if the request accepts that.
pub(crate) fn response(request: &HeaderMap, open_metrics: String) -> impl IntoResponse + use<> {
    let mut accepted = request.get_all(header::ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    if accepted.any(|value| value.contains(OPEN_METRICS)) {
        ([(header::CONTENT_TYPE, OPEN_METRICS_TYPE)], open_metrics)
    } else {
        ([(header::CONTENT_TYPE, TEXT_TYPE)], to_text_format(&open_metrics))
    }
}

/// The same in the text format: there a family has the name of its samples, and there are no units and no mark of the end.
pub(crate) fn to_text_format(open_metrics: &str) -> String {
    let types: HashMap<_, _> =
        open_metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let name_of = |family: &str| match types.get(family) {
        Some(&"counter") => format!("{family}_total"),
        Some(&"info") => format!("{family}_info"),
        _ => family.to_owned(),
    };
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let line = match line.strip_prefix("# ").and_then(|comment| comment.split_once(' ')) {
            None if line == "# EOF" => continue,
            None => line.to_owned(),
            Some(("UNIT", _)) => continue,
            Some(("TYPE", rest)) => match rest.split_once(' ') {
                Some((family, "info")) => format!("# TYPE {} gauge", name_of(family)),
                Some((family, kind)) => format!("# TYPE {} {kind}", name_of(family)),
                None => continue,
            },
            Some((word, rest)) => match rest.split_once(' ') {
                Some((family, help)) => format!("# {word} {} {help}", name_of(family)),
                None => continue,
            },
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_format_names_families_as_their_samples_and_has_neither_units_nor_an_end() {
        let open_metrics = "# HELP r_losses Locks that were lost.\n# TYPE r_losses counter\nr_losses_total{reason=\"# x\"} 1\n\
            # HELP r_build Version.\n# TYPE r_build info\nr_build_info{version=\"1\"} 1\n\
            # HELP r_time_seconds How long.\n# TYPE r_time_seconds histogram\n# UNIT r_time_seconds seconds\n\
            r_time_seconds_sum 2.0\n# EOF\n";
        let text = "# HELP r_losses_total Locks that were lost.\n# TYPE r_losses_total counter\nr_losses_total{reason=\"# x\"} 1\n\
            # HELP r_build_info Version.\n# TYPE r_build_info gauge\nr_build_info{version=\"1\"} 1\n\
            # HELP r_time_seconds How long.\n# TYPE r_time_seconds histogram\n\
            r_time_seconds_sum 2.0\n";
        assert_eq!(to_text_format(open_metrics), text);
    }
}
