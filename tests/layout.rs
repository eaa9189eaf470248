//! What the layout of the project promises, checked on its sources.

#![allow(clippy::expect_used)] // A file of the checkout that cannot be read is a failed test.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of the checkout") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found
}

#[test]
fn every_source_file_opens_with_what_it_is_for() {
    for folder in ["src", "tests", "redlock"] {
        for path in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)) {
            let text = fs::read_to_string(&path).expect("a source file");
            assert!(text.starts_with("//! "), "{} does not open with a `//!` sentence", path.display());
        }
    }
}
