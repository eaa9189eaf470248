//! The command line of `redlock`, and its exit codes.
//!
//! # Exit codes
//! | code | meaning |
//! |---|---|
//! | 0 | done, or stopped by SIGTERM or SIGINT |
//! | 1 | failed; the last line of the log says why |
//! | 64 | the command line is wrong |
//! | 78 | the configuration is wrong (`agent`) |

#![expect(clippy::doc_markdown, reason = "the comments on options are their help, in which marks are noise")]

mod cleanup;
mod crds;
mod log;
mod operator;
mod signals;

use std::ffi::OsString;
use std::fmt;
use std::future::Future;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand};
use tracing::error;

use crate::{IS_UNSAFE, agent, duration};

/// The command failed.
const FAILED: u8 = 1;
/// `EX_USAGE` of `sysexits.h`.
const USAGE: u8 = 64;
/// `EX_CONFIG` of `sysexits.h`.
const CONFIG: u8 = 78;
/// What `--version` prints.
const VERSION: &str = if IS_UNSAFE {
    concat!(env!("CARGO_PKG_VERSION"), " unsafe-for-chaos: two may hold a lock at once")
} else {
    env!("CARGO_PKG_VERSION")
};
/// How long the end of the process waits for its last tasks.
const LAST_TASKS: Duration = Duration::from_secs(1);

/// Named locks and leader election for Kubernetes, on a majority of independent Redis masters.
#[derive(Debug, Parser)]
#[command(
    name = "redlock",
    version = VERSION,
    after_help = "Exit codes: 0 done, 1 failed, 64 wrong usage, 78 wrong configuration"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the controllers of RedisLockCluster and DistributedLock.
    Operator(OperatorArgs),
    /// Run as a sidecar that elects a leader among pods.
    Agent(AgentArgs),
    /// Take off the finalizers that an uninstalled operator has left, so that its objects can be deleted.
    Cleanup(CleanupArgs),
    /// Print the CustomResourceDefinitions as YAML.
    Crds(CrdsArgs),
}

#[derive(Debug, Args)]
struct OperatorArgs {
    /// Image of masters whose RedisLockCluster does not name one: Redis 7 or later, or Valkey.
    #[arg(long, env = "REDLOCK_REDIS_IMAGE", default_value = "redis:7.4-alpine", value_parser = NonEmptyStringValueParser::new())]
    redis_image: String,
    /// How many statuses of locks a second have renewTime, validUntil and validity refreshed, for all locks together. 0: statuses show
    /// none of them.
    #[arg(long, env = "REDLOCK_STATUS_REFRESHES", default_value = "10", value_name = "PER_SECOND")]
    status_refreshes: u32,
    /// Give each lock a metric of its own, redlock_lock_held: with ten thousand locks ten thousand series.
    #[arg(long, env = "REDLOCK_LOCK_METRICS")]
    lock_metrics: bool,
    /// Address of the HTTP server: /livez, /readyz, /metrics.
    #[arg(long, env = "REDLOCK_LISTEN", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// Namespace of the operator and its Lease [default: the kubeconfig's]
    #[arg(long, env = "POD_NAMESPACE")]
    namespace: Option<String>,
    /// Name of the operator's pod.
    #[arg(long, env = "POD_NAME")]
    pod_name: Option<String>,
    /// UID of the operator's pod.
    #[arg(long, env = "POD_UID")]
    pod_uid: Option<String>,
    /// Namespaces to serve, separated by commas: their clusters and locks, and no others [default: all]
    #[arg(long, env = "REDLOCK_WATCH_NAMESPACES", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    watch_namespaces: Vec<String>,
    /// How long held locks are renewed while the API server is gone, such as 10m. Then they expire, since nobody can say
    /// whether they are still wanted.
    #[arg(long, env = "REDLOCK_RENEW_WITHOUT_API_SERVER", default_value = "10m", value_parser = duration::parse)]
    renew_without_api_server: Duration,
    #[command(flatten)]
    log: log::LogArgs,
}

#[derive(Debug, Args)]
struct AgentArgs {
    /// Name of the lock within the namespace: `spec.key` of its DistributedLock, or the name of that.
    #[arg(long, env = "REDLOCK_LOCK")]
    lock: String,
    /// Identity of this pod: unique among the contenders.
    #[arg(long, env = "POD_NAME")]
    identity: String,
    /// TTL of the lock, such as 15s: how long it outlasts a leader that died. At most the cluster's maxTTL.
    #[arg(long, env = "REDLOCK_TTL", default_value = "15s", value_parser = duration::parse)]
    ttl: Duration,
    /// How often the lock is renewed, at most half of the TTL [default: a third of it]
    #[arg(long, env = "REDLOCK_RENEW_EVERY", value_parser = duration::parse)]
    renew_every: Option<Duration>,
    /// Folder in which the Secret `<cluster>-client` (`<cluster>.<its namespace>-client` of a cluster elsewhere) is mounted.
    #[arg(long, env = "REDLOCK_SECRET_DIR", default_value = "/etc/redlock")]
    secret_dir: PathBuf,
    /// Address of the HTTP server: /, /leader, /livez, /readyz, /metrics.
    #[arg(long, env = "REDLOCK_LISTEN", default_value = "0.0.0.0:4040")]
    listen: SocketAddr,
    #[command(flatten)]
    log: log::LogArgs,
}

#[derive(Debug, Args)]
struct CleanupArgs {
    /// Namespace of the operator and its Lease [default: the kubeconfig's]
    #[arg(long, env = "POD_NAMESPACE")]
    namespace: Option<String>,
    /// Print what would be done, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// How long to wait until the operator that holds the Lease has released it, or has not renewed it for 15s.
    #[arg(long, default_value = "60s", value_parser = duration::parse)]
    wait: Duration,
    /// Do not take the Lease. For when surely no operator runs, and its Lease or namespace was deleted.
    #[arg(long)]
    without_lease: bool,
    #[command(flatten)]
    log: log::LogArgs,
}

#[derive(Debug, Args)]
struct CrdsArgs {
    /// Write each to a file in this directory instead.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write each as a template of the chart to this directory instead.
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    chart: Option<PathBuf>,
}

/// Runs the command line `args`, which begins with the name of the program.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match Cli::try_parse_from(args) {
        Ok(Cli { command }) => command.run(),
        Err(error) => {
            // It fails on a closed pipe: then nobody reads it.
            let _ = error.print();
            if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
        }
    }
}

impl Command {
    fn run(self) -> ExitCode {
        match self {
            Self::Crds(args) => finish(crds::write(args.out.as_deref(), args.chart.as_deref()), |_| FAILED),
            Self::Operator(args) => {
                let OperatorArgs {
                    redis_image,
                    status_refreshes,
                    lock_metrics,
                    listen,
                    namespace,
                    pod_name,
                    pod_uid,
                    watch_namespaces,
                    renew_without_api_server,
                    log,
                } = args;
                let options = operator::Options {
                    redis_image,
                    status_refreshes,
                    lock_metrics,
                    listen,
                    namespace,
                    pod_name,
                    pod_uid,
                    watch_namespaces,
                    renew_without_api_server,
                };
                logged(&log, || finish(block_on(operator::run(options)), |_| FAILED))
            }
            Self::Cleanup(args) => {
                let CleanupArgs { namespace, dry_run, wait, without_lease, log } = args;
                let options = cleanup::Options { namespace, dry_run, wait, without_lease };
                logged(&log, || finish(block_on(cleanup::run(options)), |_| FAILED))
            }
            Self::Agent(args) => {
                let AgentArgs { lock, identity, ttl, renew_every, secret_dir, listen, log } = args;
                let options = agent::Options { lock, identity, ttl, renew_every, secret_dir, listen };
                let code = |error: &agent::Error| if error.is_configuration() { CONFIG } else { FAILED };
                logged(&log, || finish(block_on(agent::run(options)), code))
            }
        }
    }
}

/// Runs a command with its log. Its last lines are written, if that is possible soon.
fn logged(log: &log::LogArgs, command: impl FnOnce() -> ExitCode) -> ExitCode {
    let sink = log.init();
    let code = command();
    if let Some(sink) = sink {
        sink.flush();
    }
    code
}

/// Runs a task to its end, on a new runtime.
fn block_on<E: From<std::io::Error>>(task: impl Future<Output = Result<(), E>>) -> Result<(), E> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(task);
    runtime.shutdown_timeout(LAST_TASKS);
    result
}

/// The exit code of `result`. An error is logged, or printed if errors are not logged.
fn finish<E: fmt::Display>(result: Result<(), E>, code: impl FnOnce(&E) -> u8) -> ExitCode {
    let Err(failure) = result else { return ExitCode::SUCCESS };
    if tracing::enabled!(tracing::Level::ERROR) {
        error!("{failure}");
    } else {
        // Nobody may be there to read it.
        let _ = writeln!(std::io::stderr(), "redlock: {failure}");
    }
    ExitCode::from(code(&failure))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn exit_code(args: &[&str]) -> String {
        format!("{:?}", run(std::iter::once("redlock").chain(args.iter().copied()).map(OsString::from)))
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_usage_ends_with_64_and_help_well() {
        let (usage, well) = (format!("{:?}", ExitCode::from(64)), format!("{:?}", ExitCode::SUCCESS));
        for args in [
            &["frobnicate"][..],
            &["crds", "--out", "a", "--chart", "b"],
            &["agent", "--lock", "x", "--identity", "y", "--ttl", "15 bananas"],
            &["agent", "--lock", "x", "--identity", "y", "--log-level", "=,="],
        ] {
            assert_eq!(exit_code(args), usage, "{args:?}");
        }
        assert_eq!(exit_code(&["--version"]), well);
        assert_eq!(exit_code(&["agent", "--help"]), well);
    }
}
