//! The tables and traces of `docs/model.md`, written from the results.

use std::fmt::Write as _;
use std::fs;

use crate::explore::Outcome;
use crate::rows::{Group, Row};
use crate::rules::{Bounds, Clocks};
use crate::trace;
use crate::world::World;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/model.md");
const BEGIN: &str = "<!-- found: written by UPDATE_DOCS=1 cargo test --test model -->\n";
const END: &str = "<!-- end of what was found -->\n";

/// Fails if the committed file differs from the results; with `UPDATE_DOCS=1` writes the results into it.
pub fn compare(rows: &[Row], outcomes: &[Outcome]) {
    let committed = fs::read_to_string(FILE).expect("docs/model.md");
    let (head, rest) = committed.split_once(BEGIN).expect("the mark at the start of the results");
    let (_, tail) = rest.split_once(END).expect("the mark at the end of the results");
    let written = format!("{head}{BEGIN}{}{END}{tail}", found(rows, outcomes));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(FILE, written).expect("docs/model.md can be written");
    } else {
        assert_eq!(committed, written, "update docs/model.md: UPDATE_DOCS=1 cargo test --test model");
    }
}

fn found(rows: &[Row], outcomes: &[Outcome]) -> String {
    let of = |group: Group| rows.iter().zip(outcomes).filter(move |(row, _)| row.group == group);
    let mut text = String::from(
        "### With all rules\nNo promise breaks in any state that can be reached.\n\n\
         | world | bounds | states | steps to the farthest |\n|---|---|---|---|\n",
    );
    for (row, outcome) in of(Group::All) {
        let _ = writeln!(text, "| {} | {} | {} | {} |", row.title, bounds(&row.bounds), outcome.states, outcome.depth);
    }
    for (group, title, first) in [
        (Group::LeftOut, "With one rule left out", "left out"),
        (Group::Assumption, "Where an assumption does not hold", "assumption"),
        (Group::Adoption, "Adopting the grant of another process", "the successor has masters …"),
    ] {
        let _ = write!(
            text,
            "\n### {title}\n| {first} | what goes wrong | steps | states | bounds |\n|---|---|---|---|---|\n"
        );
        for (row, outcome) in of(group) {
            let steps = outcome.violation.as_ref().map_or("none".to_owned(), |v| v.steps.len().to_string());
            let bounds = bounds(&row.bounds);
            let _ = writeln!(text, "| {} | {} | {steps} | {} | {bounds} |", row.title, row.remark, outcome.states);
        }
        for (row, outcome) in of(group) {
            let Some(violation) = &outcome.violation else { continue };
            let start = World::new(row.rules, row.bounds, row.promises).start();
            let _ =
                write!(text, "\n<details><summary>{}: {}</summary>\n\n", row.title, trace::wrong(violation.promise));
            for (number, line) in (1..).zip(trace::tell(&start, violation)) {
                let _ = writeln!(text, "{number}. {line}");
            }
            text.push_str("\n</details>\n");
        }
    }
    text.push('\n');
    text
}

/// Bounds in a few words. Bounds of 0 are left out.
fn bounds(bounds: &Bounds) -> String {
    let mut words = vec![
        format!("TTL {}", bounds.ttl),
        format!("attempts {}+{}", bounds.attempts[0], bounds.attempts[1]),
        format!("late {}", bounds.late),
    ];
    let [first, second] = bounds.rounds;
    if first + second > 0 {
        words.push(format!("renewals {first}+{second}"));
    }
    for (count, what) in [
        (bounds.deaths, "deaths"),
        (bounds.successions, "successors"),
        (bounds.crashes, "restarts"),
        (bounds.writes, "writes"),
    ] {
        if count > 0 {
            words.push(format!("{what} {count}"));
        }
    }
    if bounds.rolling {
        words.push("only under a holder".to_owned());
    }
    if bounds.clocks == Clocks::Any {
        words.push("any wall clocks".to_owned());
    }
    words.join(", ")
}
