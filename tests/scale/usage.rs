//! What the operator and the masters use: CPU and memory of their processes, commands, and requests to the API server.

use std::fs;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::{Client, ResourceExt as _};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep};

use crate::harness::redis::Masters;
use crate::harness::{Env, audit, forward, install, machine};

/// How long is waited before the run fails.
const PATIENCE: Duration = Duration::from_secs(300);
/// Clock ticks a second in `/proc`, on each Linux that this runs on.
const TICKS: f64 = 100.0;

/// The operator's process that leads.
pub(crate) struct Operator {
    client: Client,
    pod: Pod,
    pid: i32,
}

/// What was used until some moment, or between two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    at: Instant,
    /// How long it was measured for.
    pub(crate) length: Duration,
    /// CPU time of the operator, in seconds.
    pub(crate) operator_cpu: f64,
    /// Memory of the operator, in bytes.
    pub(crate) operator_memory: u64,
    /// CPU time of all masters, in seconds.
    pub(crate) masters_cpu: f64,
    /// Commands that the masters ran.
    pub(crate) commands: u64,
    /// Successful renewals.
    pub(crate) renewals: u64,
    /// Locks that were lost.
    pub(crate) losses: u64,
    /// Requests of the operator to the API server, by the audit log: also the Lease, and watches.
    pub(crate) requests: u64,
    log_end: u64,
}

// === impl Operator ===

impl Operator {
    /// The one that leads.
    pub(crate) async fn of_leader(env: &Env) -> Self {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for pod in install::operator_pods().await {
                let Some(pid) = machine::process_of(&pod, "redlock") else { continue };
                let operator = Self { client: env.client.clone(), pod, pid };
                if operator.sample("redlock_leader").await == Some(1.0) {
                    return operator;
                }
            }
            assert!(Instant::now() < deadline, "no operator leads");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// The one that leads after `former` was killed.
    pub(crate) async fn successor(env: &Env, former: &Self) -> Self {
        loop {
            let leader = Self::of_leader(env).await;
            if leader.pid != former.pid {
                return leader;
            }
        }
    }

    /// Kills its process, as the kernel does where memory is short.
    pub(crate) fn kill(&self) {
        kill(Pid::from_raw(self.pid), Signal::SIGKILL).expect("the operator runs");
    }

    /// Waits until it holds, and renews, so many locks.
    pub(crate) async fn until_held(&self, locks: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.sample("redlock_locks{activity=\"held\"}").await != Some(locks as f64) {
            assert!(Instant::now() < deadline, "the operator does not hold all locks");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// How many locks it has lost.
    pub(crate) async fn losses(&self) -> u64 {
        sum(&self.metrics().await.expect("metrics"), "redlock_losses_total")
    }

    async fn sample(&self, name: &str) -> Option<f64> {
        let text = self.metrics().await?;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    async fn metrics(&self) -> Option<String> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), install::NAMESPACE);
        let mut stream = forward::connect(&pods, &self.pod.name_any(), 8080).await.ok()?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: operator\r\n\r\n").await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        Some(text)
    }
}

// === impl Usage ===

impl Usage {
    /// What was used until now.
    pub(crate) async fn now(operator: &Operator, masters: &Masters) -> Self {
        let text = operator.metrics().await.expect("metrics");
        let (mut commands, mut masters_cpu) = (0, 0.0);
        for index in 0..masters.count {
            let mut connection = masters.connect(index).await.expect("a connection to each master");
            let info: String = connection.command(&["INFO", "stats", "cpu"]).await.expect("INFO");
            let number = |name: &str| -> f64 {
                info.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok()).unwrap_or(0.0)
            };
            commands += number("total_commands_processed") as u64;
            masters_cpu += number("used_cpu_user") + number("used_cpu_sys");
        }
        Self {
            at: Instant::now(),
            length: Duration::ZERO,
            operator_cpu: cpu_of(operator.pid),
            operator_memory: memory_of(operator.pid),
            masters_cpu,
            commands,
            renewals: sum(&text, "redlock_renewals_total"),
            losses: sum(&text, "redlock_losses_total"),
            requests: 0,
            log_end: audit::end(),
        }
    }

    /// What was used since `before`. Memory is the present one.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            at: self.at,
            length: self.at - before.at,
            operator_cpu: self.operator_cpu - before.operator_cpu,
            operator_memory: self.operator_memory,
            masters_cpu: self.masters_cpu - before.masters_cpu,
            commands: self.commands - before.commands,
            renewals: self.renewals - before.renewals,
            losses: self.losses - before.losses,
            requests: u64::try_from(audit::requests_since(before.log_end)).expect("a count"),
            log_end: self.log_end,
        }
    }
}

/// The sum of the samples of a family.
fn sum(text: &str, family: &str) -> u64 {
    let samples = text.lines().filter_map(|line| line.strip_prefix(family));
    let values = samples.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum::<f64>() as u64
}

fn cpu_of(pid: i32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the operator runs");
    // After the name, which may have blanks: state is the first field, utime the twelfth.
    let fields: Vec<_> = stat.rsplit(") ").next().expect("a line").split(' ').collect();
    let ticks = |at: usize| -> f64 { fields[at].parse().expect("a number") };
    (ticks(11) + ticks(12)) / TICKS
}

fn memory_of(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the operator runs");
    let kilobytes =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.expect("VmRSS") * 1024
}
