//! Contenders of a public library, redsync, on a machine of the cluster: programs that know nothing of markers.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Secret, Service};
use kube::Api;
use tempfile::TempDir;

use crate::harness::{Env, wait};
use crate::history::{Grant, History, Source};
use crate::protocol::{Order, Report};

/// The program, which `hack/chaos.sh` builds.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/interop/redsync");
/// In which network it runs: Services of the cluster are reached there.
const NETWORK: &str = "kdev-node1";

/// A contender for each lock.
pub(crate) struct Contenders {
    processes: Vec<Child>,
    _secret: TempDir,
}

impl Contenders {
    /// Starts a contender for each of these keys on the present masters.
    pub(crate) async fn start(
        env: &Env,
        history: &History,
        keys: &[String],
        masters: usize,
        ttl: Duration,
        first: u32,
    ) -> Self {
        let secret = client_secret(env).await;
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["username", "password"] {
            fs::write(folder.path().join(name), &secret[name].0).expect("a file");
        }
        let services: Api<Service> = env.api();
        let mut addresses = Vec::new();
        for index in 0..masters {
            let ip = |service: &Service| service.spec.as_ref().and_then(|spec| spec.cluster_ip.clone());
            let has_address = |service: &Service| ip(service).is_some();
            let service = wait::until(&services, &format!("main-{index}"), "made", has_address).await;
            addresses.push(format!("{}:6379", ip(&service).expect("it was waited for")));
        }
        let processes = keys.iter().enumerate().map(|(lock, key)| {
            start(
                history,
                Source::Library(first + u32::try_from(lock).expect("few locks")),
                lock,
                key,
                &addresses,
                folder.path(),
                ttl,
            )
        });
        Self { processes: processes.collect(), _secret: folder }
    }

    /// Kills all: what they hold is held until its TTL is over.
    pub(crate) fn kill(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Contenders {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn client_secret(env: &Env) -> BTreeMap<String, k8s_openapi::ByteString> {
    let secrets: Api<Secret> = env.api();
    let has_all = |secret: &Secret| secret.data.as_ref().is_some_and(|data| data.contains_key("password"));
    let secret = wait::until(&secrets, "main-client", "made", has_all).await;
    secret.data.unwrap_or_default()
}

fn start(
    history: &History,
    source: Source,
    lock: usize,
    key: &str,
    addresses: &[String],
    secret: &Path,
    ttl: Duration,
) -> Child {
    let mut process = Command::new("ip")
        .args(["netns", "exec", NETWORK, PROGRAM, "-masters", &addresses.join(","), "-key", key])
        .args(["-ttl", &format!("{}ms", ttl.as_millis()), "-seed", &lock.to_string()])
        .arg("-secret")
        .arg(secret)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("redsync's contender, which hack/chaos.sh builds");
    let mut input = process.stdin.take().expect("its input");
    writeln!(input, "{}", Order::Contend).expect("a contender that reads orders");
    let output = BufReader::new(process.stdout.take().expect("its output"));
    let history = history.clone();
    std::thread::spawn(move || {
        // It ends with its input.
        let _input = input;
        let mut held = None;
        for line in output.lines().map_while(Result::ok) {
            match line.parse::<Report>() {
                Ok(Report::Start { at, until, value }) => held = Some((at, until, value)),
                Ok(Report::Extended { at, until }) => {
                    // What was lost is not held again, whatever is reported.
                    if let Some((_, end, _)) = &mut held
                        && at < *end
                    {
                        *end = until;
                    }
                }
                Ok(Report::End(at)) => {
                    if let Some((from, until, value)) = held.take() {
                        history.held(&source, lock, Grant::of(&value), from, until.min(at));
                    }
                }
                _ => {}
            }
        }
    });
    process
}
