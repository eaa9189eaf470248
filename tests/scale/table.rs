//! The rows, as they are printed and kept.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::usage::Usage;

/// What was measured with so many locks.
pub(crate) struct Row {
    pub(crate) size: usize,
    pub(crate) replicas: String,
    /// From the creation of the last lock until all are held.
    pub(crate) held_after: Duration,
    /// While all were held and nothing else happened.
    pub(crate) spent: Usage,
    /// From the kill of the operator until its successor renews all.
    pub(crate) adopted_after: Duration,
    /// From the first deletion until the last object is gone.
    pub(crate) deleted_after: Duration,
}

/// The rows as a table.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let mut table = "| locks | replicas | all held after the last was created | operator: core | per lock | memory | masters: cores, all | \
        commands a renewal and master | requests an hour | adopted after a kill | all deleted in |\n|---|---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for row in rows {
        let Row { size, replicas, held_after, spent, adopted_after, deleted_after } = row;
        let seconds = spent.length.as_secs_f64();
        let core = spent.operator_cpu / seconds;
        let commands = spent.commands as f64 / spent.renewals as f64 / crate::MASTERS as f64;
        writeln!(
            table,
            "| {size} | {replicas} | {:.1} s | {:.1} % | {:.1} µs/s | {:.0} MiB | {:.2} | {commands:.2} | {:.0} | {:.1} s | {:.1} s |",
            held_after.as_secs_f64(),
            core * 100.0,
            core / *size as f64 * 1e6,
            spent.operator_memory as f64 / f64::from(1 << 20),
            spent.masters_cpu / seconds,
            spent.requests as f64 / seconds * 3600.0,
            adopted_after.as_secs_f64(),
            deleted_after.as_secs_f64(),
        )
        .expect("a String takes all");
    }
    table
}

/// Keeps the table beside the build output.
pub(crate) fn keep(rows: &[Row]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/scale");
    fs::create_dir_all(&folder).expect("a folder for the table");
    fs::write(folder.join("table.md"), markdown(rows)).expect("the table");
    println!("kept in {}", folder.join("table.md").display());
}
