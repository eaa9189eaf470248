//! Durations as Kubernetes writes them: `15s`, `1m30s`, `500ms`.

use std::time::Duration;

/// The duration that `text` says. Zero and less is none.
pub fn parse(text: &str) -> Result<Duration, String> {
    let parsed: kube::core::Duration = text.parse().map_err(|e| format!("{e}: write it as 15s, 1m30s or 500ms"))?;
    if parsed.is_negative() || Duration::from(parsed).is_zero() {
        return Err("must be more than zero".to_owned());
    }
    Ok(parsed.into())
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
}
