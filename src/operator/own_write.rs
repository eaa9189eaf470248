//! Whether a cache shows what this process wrote, by versions of the object. No IO.

/// A write of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnWrite {
    /// The version that was read before the write.
    over: Option<String>,
    /// The version that the write made.
    made: Option<String>,
}

// === impl OwnWrite ===

impl OwnWrite {
    /// A write over the version `over`, which made the version `made`.
    pub(crate) fn new(over: Option<String>, made: Option<String>) -> Self {
        Self { over, made }
    }

    /// Whether a cache, which shows `version`, does not show the write yet.
    ///
    /// Between the version that was read and the one that the write made others may lie: they do not show the write either. The
    /// API server counts versions up, so the two are compared as numbers where they are some.
    pub(crate) fn is_ahead_of(&self, version: Option<&str>) -> bool {
        let number = |version: Option<&str>| version.and_then(|version| version.parse::<u64>().ok());
        match (number(version), number(self.made.as_deref())) {
            (Some(shown), Some(made)) => shown < made,
            _ => self.over.as_deref() == version,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_shown_by_its_version_and_all_later_ones() {
        let write = |over: &str, made: &str| OwnWrite::new(Some(over.to_owned()), Some(made.to_owned()));
        for (version, is_ahead) in [("99", true), ("100", true), ("101", true), ("102", false), ("1000", false)] {
            assert_eq!(write("100", "102").is_ahead_of(Some(version)), is_ahead, "{version}");
        }
        for (version, is_ahead) in [("a", true), ("b", false), ("c", false)] {
            assert_eq!(write("a", "b").is_ahead_of(Some(version)), is_ahead, "versions that are no numbers: {version}");
        }
    }
}
