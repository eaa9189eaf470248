//! Rules of the sources' layout that neither the compiler nor rustfmt checks.

#![allow(clippy::expect_used)] // A file of the checkout that cannot be read is a failed test.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders with sources of ours.
const FOLDERS: [&str; 3] = ["src", "tests", "redlock"];
/// A file can be read in one sitting: about 400 lines, plus the rest of its last test.
const MOST_LINES: usize = 420;

fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<_> = FOLDERS.iter().map(|folder| root.join(folder)).collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of the checkout") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.extend(Some(path).filter(|path| !path.ends_with("target")));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a source file");
                found.push((path.strip_prefix(root).expect("a path below the root").to_owned(), text));
            }
        }
    }
    found.sort();
    found
}

/// The files that break a rule, one a line.
fn offenders(breaks: impl Fn(&str) -> bool) -> String {
    let broken = sources().into_iter().filter(|(_, text)| breaks(text));
    broken.fold(String::new(), |list, (path, _)| format!("{list}\n  {}", path.display()))
}

#[test]
fn every_source_file_opens_with_a_sentence_on_its_purpose() {
    let list = offenders(|text| !text.starts_with("//! "));
    assert!(list.is_empty(), "these files do not open with a `//!` sentence:{list}");
}

#[test]
fn every_source_file_can_be_read_in_one_sitting() {
    let list = offenders(|text| text.lines().count() > MOST_LINES);
    assert!(list.is_empty(), "these files have more than {MOST_LINES} lines, so more than one subject:{list}");
}

/// rustfmt sorts imports within a group; only its nightly versions make the groups.
#[test]
fn imports_are_in_groups_of_std_then_other_crates_then_our_own_modules() {
    if std::env::var_os("FIX_IMPORTS").is_some() {
        for (path, text) in sources() {
            let grouped = with_grouped_imports(&text);
            if grouped != text {
                fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join(path), grouped).expect("a source file");
            }
        }
    }
    let list = offenders(|text| with_grouped_imports(text) != text);
    assert!(list.is_empty(), "FIX_IMPORTS=1 cargo test --test layout && cargo fmt sorts the imports of:{list}");
}

/// The text with each block of imports in groups, with a blank line between them. Within a group the order stays.
fn with_grouped_imports(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    let modules: HashSet<_> = lines.iter().filter_map(|line| declared_module(line)).collect();
    let mut grouped = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let mut groups = [const { Vec::new() }; 3];
        let mut after = at;
        let mut indent = None;
        while let Some(import) = import_at(&lines, after) {
            if *indent.get_or_insert(import.indent) != import.indent {
                break;
            }
            groups[group_of(import.root, &modules)].extend_from_slice(&lines[import.from..import.to]);
            after = import.to;
        }
        if after == at {
            grouped.push(lines[at]);
            at += 1;
        } else {
            // Keeps blank lines before the first import.
            grouped.extend(lines[at..after].iter().take_while(|line| line.is_empty()));
            let groups = groups.into_iter().filter(|group| !group.is_empty()).collect::<Vec<_>>();
            grouped.extend(groups.join(&""));
            at = after;
        }
    }
    grouped.join("\n") + "\n"
}

/// An import, with the comments and attributes directly above it.
struct Import<'a> {
    from: usize,
    to: usize,
    indent: usize,
    /// The first name of its path.
    root: &'a str,
}

/// The import at this line, after any blank lines.
fn import_at<'a>(lines: &[&'a str], at: usize) -> Option<Import<'a>> {
    let from = at + lines[at..].iter().take_while(|line| line.is_empty()).count();
    let is_above = |line: &str| line.starts_with("#[") || line.starts_with("// ");
    let start = from + lines[from..].iter().take_while(|line| is_above(line.trim_start())).count();
    let line = lines.get(start)?;
    let path = line.trim_start().strip_prefix("use ")?.trim_start_matches("::");
    let to = start + lines[start..].iter().position(|line| line.contains(';'))? + 1;
    let root = path.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    Some(Import { from, to, indent: line.len() - line.trim_start().len(), root })
}

fn group_of(root: &str, modules: &HashSet<&str>) -> usize {
    match root {
        "std" | "core" | "alloc" => 0,
        "crate" | "super" | "self" => 2,
        _ => 1 + usize::from(modules.contains(root)),
    }
}

/// The module that a line declares.
fn declared_module(line: &str) -> Option<&str> {
    let words: Vec<_> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "mod").filter(|&at| at <= 1)?;
    words.get(at + 1).map(|name| name.trim_end_matches(';'))
}

#[test]
fn links_between_documents_lead_to_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let documents = ["", "docs", "hack/cluster", "redlock/benches/peers"].map(|folder| root.join(folder));
    let entries = documents.iter().flat_map(|folder| fs::read_dir(folder).expect("a folder of the checkout"));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    for path in paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(&path).expect("a document");
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        for target in targets.filter(|target| !target.is_empty() && !target.contains("://")) {
            let file = path.parent().expect("a document is in a folder").join(target);
            assert!(file.exists(), "{} links to {target}, which does not exist", path.display());
        }
    }
}

#[test]
fn groups_are_made_of_imports_in_any_order() {
    let mixed = "//! A file.\n\nuse super::a;\nuse std::fmt;\n// Why.\nuse serde::{\n    Serialize,\n};\n\nuse own::b;\n\nmod own;\n";
    let grouped = "//! A file.\n\nuse std::fmt;\n\n// Why.\nuse serde::{\n    Serialize,\n};\n\nuse super::a;\nuse own::b;\n\nmod own;\n";
    assert_eq!(with_grouped_imports(mixed), grouped);
    assert_eq!(with_grouped_imports(grouped), grouped);
}
