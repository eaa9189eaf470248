//! The report of a run, as it is printed and kept.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::faults::Counts;
use crate::plan::Plan;
use crate::verdict::Verdict;

/// What a run has shown, the last line the shortest.
pub(crate) fn text(plan: &Plan, counts: &Counts, verdict: &Verdict, freed_after: Duration) -> String {
    let mut text = format!("seed {}, {:.1} minutes\n", plan.seed, plan.length.as_secs_f64() / 60.0);
    let (mut done, mut failed) = (0, 0);
    for (kind, (was_done, was_not)) in counts.all() {
        let _ = writeln!(text, "{kind:>16}: {was_done:>4} done, {was_not:>3} not possible");
        done += was_done;
        failed += was_not;
    }
    let (gap, lock) = verdict.longest_gap;
    let [sidecars, libraries, servers] = verdict.seen;
    let _ = writeln!(
        text,
        "seen: {sidecars} times a sidecar that leads, {libraries} sections of redsync, {servers} keys on a server, {} on a majority",
        verdict.majorities
    );
    let _ = writeln!(text, "hand-overs: {}", verdict.hand_overs);
    let _ = writeln!(
        text,
        "longest time in which nobody was seen to hold a lock: {:.1} s (lock {lock})",
        gap.as_secs_f64()
    );
    let _ = writeln!(text, "writes that the resource refused: {}", verdict.refused_writes);
    let _ =
        writeln!(text, "after the storm, all locks held by new contenders within {:.1} s", freed_after.as_secs_f64());
    text.push_str(&verdict.violations());
    let _ = writeln!(
        text,
        "{done} faults ({failed} not possible), {} grants, {} falling tokens, {} overlaps",
        verdict.grants,
        verdict.falls.len(),
        verdict.overlaps.len()
    );
    text
}

/// Keeps the report beside the build output.
pub(crate) fn keep(name: &str, text: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/chaos");
    fs::create_dir_all(&folder).expect("a folder for the report");
    fs::write(folder.join(format!("{name}.txt")), text).expect("the report");
}
