//! The library that gives a process a wall clock of its own.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// Its path, for `LD_PRELOAD`.
pub fn library() -> PathBuf {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let found = folders.iter().map(|folder| Path::new(folder).join(LIBRARY)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{LIBRARY} is in none of {folders:?}: install the package libfaketime"))
}

/// The wall clock of one server. Its monotonic clock is always right, as where an administrator sets the time.
pub struct Clock {
    folder: TempDir,
}

impl Clock {
    /// The right time.
    pub fn right() -> Self {
        let clock = Self { folder: tempfile::tempdir().expect("a folder for a clock") };
        clock.set("+0");
        clock
    }

    /// What makes a process use it.
    pub fn environment(&self) -> [(&'static str, String); 4] {
        [
            // The C library after it, so that its malloc is used: jemalloc asks for the time before there is one.
            ("LD_PRELOAD", format!("{} libc.so.6", library().display())),
            ("FAKETIME_TIMESTAMP_FILE", self.folder.path().join("clock").display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }

    /// Sets it: `+<seconds>` from the right time, or a date at which it stands still.
    pub fn set(&self, text: &str) {
        // In one step, because the server may read it at any time.
        let (next, file) = (self.folder.path().join("next"), self.folder.path().join("clock"));
        fs::write(&next, text).and_then(|()| fs::rename(&next, &file)).expect("the clock is set");
    }

    /// Sets it so many seconds ahead of the right time.
    pub fn jump(&self, seconds: i64) {
        self.set(&format!("{seconds:+}"));
    }

    /// Stops it at the present second.
    pub fn stop(&self) {
        self.set(&jiff::Zoned::now().strftime("%Y-%m-%d %H:%M:%S").to_string());
    }
}
