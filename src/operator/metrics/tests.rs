//! What is told is shown, and goes with its object.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::*;
use crate::openmetrics::to_text_format;
use crate::operator::metrics::master_calls::{CallResult, Operation};

fn samples(metrics: &Metrics) -> Vec<String> {
    metrics.render().lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect()
}

#[track_caller]
fn assert_shows(metrics: &Metrics, line: &str) {
    let all = samples(metrics);
    assert!(all.iter().any(|l| l == line), "no {line} in {all:#?}");
}

/// Metrics with a sample of each family, and what they count.
fn filled() -> (Metrics, (CountedLock, Arc<MasterCalls>)) {
    let metrics = Metrics::new(true);
    let mut lock = metrics.counted_lock();
    lock.becomes(Some(LockActivity::Waiting));
    lock.becomes(Some(LockActivity::Held));
    metrics.granted(3, Duration::from_millis(20));
    metrics.api_request("write_status", "DistributedLock", Some("conflict"));
    let calls = metrics.master_calls("locks", "main", "main-0");
    calls.count(Operation::Acquire, CallResult::Done, Duration::from_millis(2));
    calls.count(Operation::Renew, CallResult::Timeout, Duration::from_millis(50));
    calls.count(Operation::Renew, CallResult::Unreachable, Duration::ZERO);
    metrics.reconciled("lock", None, Duration::from_millis(20));
    metrics.reconciled("lock", Some("api"), Duration::from_secs(2));
    metrics.watch_failed("DistributedLock");
    metrics.set_leader(true);
    metrics.set_masters("locks", "main", 4, 5);
    metrics.master_crashed("locks", "main");
    metrics.set_held("shop", "checkout", true);
    metrics.acquisition("Acquired");
    metrics.acquisition("Contended");
    metrics.renewals(3);
    metrics.lost("Expired");
    (metrics, (lock, calls))
}

#[test]
fn what_is_told_is_shown_with_units_in_the_names() {
    let (metrics, _held) = filled();
    for line in [
        concat!("redlock_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
        "redlock_leader 1",
        "redlock_reconciles_total{controller=\"lock\",result=\"ok\"} 1",
        "redlock_reconciles_total{controller=\"lock\",result=\"api\"} 1",
        "redlock_reconcile_duration_seconds_count{controller=\"lock\"} 2",
        "redlock_reconcile_duration_seconds_bucket{le=\"0.03\",controller=\"lock\"} 1",
        "redlock_watch_errors_total{kind=\"DistributedLock\"} 1",
        "redlock_cluster_masters{namespace=\"locks\",name=\"main\"} 5",
        "redlock_cluster_masters_armed{namespace=\"locks\",name=\"main\"} 4",
        "redlock_master_crashes_total{namespace=\"locks\",name=\"main\"} 1",
        "redlock_lock_held{namespace=\"shop\",name=\"checkout\"} 1",
        "redlock_acquisitions_total{result=\"Acquired\"} 1",
        "redlock_acquisitions_total{result=\"Contended\"} 1",
        "redlock_renewals_total 3",
        "redlock_losses_total{reason=\"Expired\"} 1",
        "redlock_locks{activity=\"held\"} 1",
        "redlock_locks{activity=\"waiting\"} 0",
        "redlock_acquire_duration_seconds_bucket{le=\"0.03\"} 1",
        "redlock_grant_votes_sum 3.0",
        "redlock_api_requests_total{verb=\"write_status\",kind=\"DistributedLock\",result=\"conflict\"} 1",
        "redlock_master_calls_total{namespace=\"locks\",name=\"main\",master=\"main-0\",operation=\"acquire\",result=\"done\"} 1",
        "redlock_master_calls_total{namespace=\"locks\",name=\"main\",master=\"main-0\",operation=\"renew\",result=\"unreachable\"} 1",
        "redlock_master_call_duration_seconds_count{namespace=\"locks\",name=\"main\",master=\"main-0\"} 2",
    ] {
        assert_shows(&metrics, line);
    }
    assert!(metrics.render().ends_with("# EOF\n"));
}

#[test]
fn nothing_is_left_of_a_deleted_object() {
    let metrics = Metrics::new(true);
    let before = samples(&metrics);
    for n in 0..100 {
        let name = format!("x-{n}");
        metrics.set_masters("locks", &name, 4, 5);
        metrics.master_crashed("locks", &name);
        metrics.set_held("shop", &name, true);
        metrics.counted_lock().becomes(Some(LockActivity::Held));
        let (former, present) =
            (metrics.master_calls("locks", &name, "m-0"), metrics.master_calls("locks", &name, "m-0"));
        former.count(Operation::Read, CallResult::Done, Duration::ZERO);
        drop(former);
        present.count(Operation::Read, CallResult::Done, Duration::ZERO);
        let shown = format!(
            "redlock_master_call_duration_seconds_count{{namespace=\"locks\",name=\"{name}\",master=\"m-0\"}} 2"
        );
        assert_shows(&metrics, &shown);
        drop(present);
        metrics.forget_cluster("locks", &name);
        metrics.forget_lock("shop", &name);
    }
    assert_eq!(samples(&metrics), before);
}

#[test]
fn clones_count_together() {
    let metrics = Metrics::default();
    metrics.clone().renewals(2);
    metrics.renewals(1);
    assert_shows(&metrics, "redlock_renewals_total 3");
}

#[test]
fn locks_have_no_series_of_their_own_unless_that_is_asked_for() {
    let metrics = Metrics::default();
    metrics.set_held("shop", "checkout", true);
    assert!(!metrics.render().contains("checkout"));
}

#[test]
fn promtool_finds_nothing_to_object_to() {
    let (metrics, _held) = filled();
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool, which `make setup` installs");
    promtool.stdin.take().unwrap().write_all(to_text_format(&metrics.render()).as_bytes()).unwrap();
    let checked = promtool.wait_with_output().unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(
        (checked.status.code(), said(&checked.stdout), said(&checked.stderr)),
        (Some(0), String::new(), String::new())
    );
}

#[test]
fn each_metric_is_documented_and_no_other() {
    let (metrics, _held) = filled();
    let text = to_text_format(&metrics.render());
    let mut shown: Vec<_> = text.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let page = include_str!("../../../docs/operations.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `redlock_"));
    let mut documented: Vec<_> = rows
        .flat_map(|row| row.split(" |").next().unwrap_or_default().split(", "))
        .map(|name| format!("redlock_{}", name.trim_matches('`').trim_start_matches("redlock_")))
        .collect();
    shown.sort_unstable();
    documented.sort_unstable();
    assert_eq!(documented, shown);
}
