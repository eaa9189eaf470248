//! Durations as Kubernetes writes them (`15s`, `1m30s`, `500ms`): parsed, formatted, and spread by jitter.

use std::time::Duration;

/// The duration that `text` says. Zero and less are refused.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let parsed: kube::core::Duration = text.parse().map_err(|e| format!("{e}: write it as 15s, 1m30s or 500ms"))?;
    if parsed.is_negative() || Duration::from(parsed).is_zero() {
        return Err("must be more than zero".to_owned());
    }
    Ok(parsed.into())
}

/// `duration` as people write it in a spec: whole seconds, or milliseconds, rounded down.
pub(crate) fn format(duration: Duration) -> String {
    match duration.subsec_millis() {
        0 => format!("{}s", duration.as_secs()),
        _ => format!("{}ms", duration.as_millis()),
    }
}

/// `duration`, or up to half of it longer: many that wait for the same do not act at the same moment.
pub(crate) fn with_jitter(duration: Duration) -> Duration {
    duration + duration.mul_f64(rand::random_range(0.0..0.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_kubernetes_writes_them() {
        assert_eq!(parse("15s"), Ok(Duration::from_secs(15)));
        assert_eq!(parse("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["", "15", "0s", "-5s", "five"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_formatted_is_read_again() {
        for (duration, text) in [(60_000, "60s"), (50, "50ms"), (1_500, "1500ms"), (86_400_000, "86400s")] {
            let duration = Duration::from_millis(duration);
            assert_eq!((format(duration).as_str(), parse(text)), (text, Ok(duration)));
        }
    }

    #[test]
    fn jitter_adds_up_to_half() {
        let second = Duration::from_secs(1);
        assert!((0..1000).map(|_| with_jitter(second)).all(|d| d >= second && d <= second * 3 / 2));
    }
}
