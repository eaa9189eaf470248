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

fn lines(folder: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut all = Vec::new();
    for path in sources(&root) {
        let text = fs::read_to_string(&path).expect("a source file");
        all.extend(text.lines().map(|line| (path.clone(), line.to_owned())));
    }
    assert!(!all.is_empty(), "no sources in {folder}");
    all
}

#[test]
fn the_engine_knows_nothing_of_kubernetes_nor_of_the_operator() {
    let forbidden =
        ["kube::", "k8s_openapi", "crate::api", "crate::operator", "crate::cluster", "crate::lock::", "crate::agent"];
    for (path, line) in lines("src/redlock") {
        for word in forbidden {
            assert!(!line.contains(word), "{}: {line}", path.display());
        }
    }
}

#[test]
fn every_source_file_opens_with_what_it_is_for() {
    for folder in ["src", "tests", "benches"] {
        for path in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)) {
            let text = fs::read_to_string(&path).expect("a source file");
            assert!(text.starts_with("//! "), "{} does not open with a `//!` sentence", path.display());
        }
    }
}
