//! The armed marker: which server process may vote, and how long a lease it grants. Whoever runs the masters writes it,
//! the engine reads it with each vote.

use std::fmt;
use std::time::Duration;

use crate::error::MasterError;

/// The value of [`ARMED_KEY`](crate::key::ARMED_KEY): the `run_id` of the server process, a space, and the cap in
/// milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArmedMarker {
    /// The server process that may vote.
    pub run_id: String,
    /// Longest TTL that it grants, in whole milliseconds.
    pub cap: Duration,
}

impl ArmedMarker {
    /// The marker that this text is; `None` if it has another form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (run_id, cap) = split(text)?;
        Some(Self { run_id: run_id.to_owned(), cap: Duration::from_millis(cap) })
    }
}

impl fmt::Display for ArmedMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.run_id, self.cap.as_millis())
    }
}

/// Checks that the marker names the server process `run_id`, and that its cap permits a TTL of so many milliseconds.
pub(crate) fn check(marker: Option<&str>, run_id: &str, ttl_millis: u64) -> Result<(), MasterError> {
    match marker.and_then(split) {
        Some((process, cap)) if process == run_id && !run_id.is_empty() => {
            if ttl_millis <= cap {
                Ok(())
            } else {
                Err(MasterError::TtlRefused)
            }
        }
        _ => Err(MasterError::Quarantined),
    }
}

/// The process and the cap in milliseconds. Without an allocation: each vote reads a marker.
fn split(text: &str) -> Option<(&str, u64)> {
    let (run_id, cap) = text.split_once(' ')?;
    Some((run_id, cap.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_read_as_it_was_written() {
        let marker = ArmedMarker { run_id: "a1b2".to_owned(), cap: Duration::from_millis(60_000) };
        assert_eq!(marker.to_string(), "a1b2 60000");
        assert_eq!(ArmedMarker::parse("a1b2 60000"), Some(marker));
        for foreign in ["", "a1b2", "a1b2 x", "a1b2 -1", "a b 1"] {
            assert_eq!(ArmedMarker::parse(foreign), None, "{foreign:?}");
        }
    }

    #[test]
    fn a_master_votes_only_while_its_marker_names_this_very_process() {
        for (armed, expected) in [
            (Some("abc 60000"), Ok(())),
            (Some("abc 30000"), Ok(())),
            (Some("abc 29999"), Err(MasterError::TtlRefused)),
            (Some("old 60000"), Err(MasterError::Quarantined)),
            (Some("abc"), Err(MasterError::Quarantined)),
            (Some("abc x"), Err(MasterError::Quarantined)),
            (Some(""), Err(MasterError::Quarantined)),
            (None, Err(MasterError::Quarantined)),
        ] {
            assert_eq!(check(armed, "abc", 30_000), expected, "{armed:?}");
        }
        assert_eq!(check(Some(" 60000"), "", 30_000), Err(MasterError::Quarantined));
    }
}
