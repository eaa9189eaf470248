//! The algorithm as a model: visits every state within bounds, with all rules and with each of them left out.
//!
//! `cargo test --test model -- --nocapture` prints the results. `UPDATE_DOCS=1` writes them into `docs/model.md`.
//! `MODEL_WIDE=1` continues with wider bounds; with `--release`, that takes minutes.

#![allow(clippy::expect_used, clippy::panic)] // Without what it needs a test fails.
#![allow(clippy::cast_possible_truncation)] // Packed states: their fields are small.

mod client;
mod docs;
mod explore;
mod forget;
mod rows;
mod rules;
mod state;
mod steps;
mod trace;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use explore::{Outcome, explore};
use rows::{Row, rows, wide_rows};
use state::State;
use steps::EVENTS;
use world::World;

/// Explores all rows in parallel, and returns the outcomes in the order of the rows.
fn explore_all(rows: &[Row]) -> Vec<Outcome> {
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some((index, row)) = rows.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = explore(&World::new(row.rules, row.bounds, row.promises));
                    outcomes.lock().expect("no panic").push((index, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().expect("no panic");
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Prints an outcome, and fails if the row expects another.
fn check(row: &Row, outcome: &Outcome) {
    let found = outcome.violation.as_ref().map(|v| v.promise);
    let verdict = found.map_or("no promise breaks".to_owned(), |promise| {
        format!("{}, in {} steps", trace::wrong(promise), outcome.depth)
    });
    println!("{:?}: {}: {} states, depth {}: {verdict}", row.group, row.title, outcome.states, outcome.depth);
    let start = World::new(row.rules, row.bounds, row.promises).start();
    for line in outcome.violation.iter().flat_map(|violation| trace::tell(&start, violation)) {
        println!("    {line}");
    }
    assert_eq!(found, row.breaks, "{}", row.title);
    for (event, what) in EVENTS {
        assert!(
            !row.happens.contains(&event) || outcome.events >> event as u8 & 1 == 1,
            "{}: {what} never happens: it proves nothing",
            row.title
        );
    }
}

#[test]
fn with_all_rules_no_promise_breaks_and_without_any_one_of_them_one_does() {
    let rows = rows();
    let outcomes = explore_all(&rows);
    for (row, outcome) in rows.iter().zip(&outcomes) {
        check(row, outcome);
    }
    docs::compare(&rows, &outcomes);
    if std::env::var_os("MODEL_WIDE").is_some() {
        let rows = wide_rows();
        for row in &rows {
            check(row, &explore(&World::new(row.rules, row.bounds, row.promises)));
        }
    }
}

#[test]
fn forgetting_hides_no_violation() {
    let short = |row: &Row| row.breaks.is_some() && row.bounds.rounds == [0, 0] && row.bounds.successions == 0;
    let rows: Vec<_> = rows().into_iter().filter(short).collect();
    assert!(rows.len() > 5);
    for row in rows {
        let mut world = World::new(row.rules, row.bounds, row.promises);
        let found = explore(&world);
        world.forgets = false;
        let unabridged = explore(&world);
        assert!(unabridged.states > found.states, "{}: nothing was forgotten", row.title);
        let promise = |outcome: &Outcome| outcome.violation.as_ref().map(|v| v.promise);
        assert_eq!((promise(&found), found.depth), (promise(&unabridged), unabridged.depth), "{}", row.title);
    }
}

#[test]
fn a_packed_state_loses_names_only() {
    let short = |row: &Row| row.breaks.is_some() && row.bounds.successions == 0;
    for row in rows().into_iter().filter(short) {
        let outcome = explore(&World::new(row.rules, row.bounds, row.promises));
        for (_, state) in outcome.violation.expect("a violation").steps {
            let packed = state.pack();
            assert_eq!(State::unpack(packed).pack(), packed);
            let mut renamed = state;
            renamed.masters.rotate_left(1);
            renamed.clients.swap(0, 1);
            for master in &mut renamed.masters {
                master.answers.swap(0, 1);
            }
            assert_eq!(renamed.pack(), packed, "{state:?}");
            let sorted = |state: &State| {
                let mut masters = state.masters.map(|m| (m.owner, m.left, m.fence, m.out, m.requests));
                masters.sort_unstable();
                masters
            };
            assert_eq!(sorted(&State::unpack(packed)), sorted(&state));
        }
    }
}
