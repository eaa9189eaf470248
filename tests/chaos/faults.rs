//! How each fault is done, and undone.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{Api, ResourceExt as _};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redlock_operator::api::RedisLockCluster;
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::harness::{kubectl, machine, output, wait};
use crate::inside::{self, Process};
use crate::plan::{Fault, Kind};
use crate::world::{LOCKS, MASTERS, World};

/// Timeout of a fault beside what it lasts: an API server that stands still must not end the storm.
const TIMEOUT: Duration = Duration::from_secs(120);
/// How many machines the local cluster has.
const MACHINES: usize = 3;
const CLUSTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hack/cluster/cluster.sh");

/// How often each fault was done, and how often it could not be.
#[derive(Debug, Default)]
pub(crate) struct Counts(Mutex<BTreeMap<Kind, (usize, usize)>>);

// === impl Counts ===

impl Counts {
    fn count(&self, kind: Kind, was_done: bool) {
        let mut counts = self.0.lock().expect("counts");
        let (done, not) = counts.entry(kind).or_default();
        *(if was_done { done } else { not }) += 1;
    }

    /// By kind: how often it was done, and how often not.
    pub(crate) fn all(&self) -> BTreeMap<Kind, (usize, usize)> {
        self.0.lock().expect("counts").clone()
    }
}

/// Does a fault, and undoes it.
pub(crate) async fn befall(world: &World<'_>, fault: Fault, counts: &Counts) {
    let done = timeout(TIMEOUT + fault.length, befalls(world, fault)).await;
    let done = done.unwrap_or_else(|_| Err("it did not end in time".to_owned()));
    if let Err(why) = &done {
        println!("{} could not be done: {}", fault.kind, why.lines().next().unwrap_or_default());
    }
    counts.count(fault.kind, done.is_ok());
}

async fn befalls(world: &World<'_>, Fault { kind, target, length }: Fault) -> Result<(), String> {
    let number = (target % MACHINES + 1).to_string();
    let lock = target % LOCKS;
    match kind {
        Kind::KillServer => end(world.observers.servers(), target),
        Kind::DeletePod => delete_pod(world, &a_master(world, target).await?, &[]).await,
        Kind::ForceDeletePod => {
            delete_pod(world, &a_master(world, target).await?, &["--force", "--grace-period=0"]).await
        }
        Kind::FreezeMachine => {
            let _thawed = Undo::of("thaw", &number);
            output(CLUSTER, &["freeze", &number]).await?;
            for pod in masters(world).await?.iter().filter(|pod| machine::machine_of(pod).ends_with(&number)) {
                delete_pod(world, &pod.name_any(), &["--force", "--grace-period=0"]).await?;
            }
            sleep(length).await;
            Ok(())
        }
        Kind::CutMachine => {
            let _healed = Undo::of("heal", &number);
            output(CLUSTER, &["cut", &number]).await?;
            sleep(length).await;
            Ok(())
        }
        Kind::PowerOff => {
            let _booted = Undo::of("boot", &number);
            output(CLUSTER, &["kill", &number]).await?;
            sleep(length).await;
            Ok(())
        }
        Kind::Drain => {
            let name = machine_name(&number).await?;
            let _uncordoned = Uncordon(name.clone());
            let flags = ["--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s"];
            kubectl(&[&["drain", &name][..], &flags].concat()).await.map(drop)
        }
        Kind::Roll => {
            let memory = json!({"spec": {"resources": {"requests": {"memory": format!("{}Mi", 16 + target % 8)}}}});
            let args = ["-n", &world.env.namespace, "patch", "rlc", "main", "--type=merge", "-p", &memory.to_string()];
            kubectl(&[&args[..], &["--request-timeout=10s"]].concat()).await.map(drop)
        }
        Kind::Fill => fill(world, target % MASTERS, length).await,
        Kind::Flush => {
            let mut connection = world.masters().await.connect(target % MASTERS).await?;
            connection.command::<String>(&["FLUSHALL"]).await.map(drop)
        }
        Kind::KillOperator => {
            let is_operator = |process: &Process| process.arguments.iter().any(|argument| argument == "operator");
            end(inside::processes("redlock").into_iter().filter(is_operator).collect(), target)
        }
        Kind::Retire => {
            let clusters: Api<RedisLockCluster> = world.env.api();
            let args = ["-n", &world.env.namespace, "delete", "rlc", "main", "--wait=false", "--request-timeout=10s"];
            kubectl(&args).await?;
            wait::gone(&clusters, "main").await;
            world.remake_cluster().await;
            Ok(())
        }
        Kind::HostileTenant => hostile(world, length).await,
        Kind::StopApiServer => {
            let _frozen = machine::freeze_api_server().await;
            sleep(length).await;
            Ok(())
        }
        Kind::KillLeader => {
            let pod = a_leader(world, lock).ok_or("no sidecar leads")?;
            let sidecars = inside::processes("redlock").into_iter().filter(|process| process.pod == pod).collect();
            end(sidecars, 0)?;
            // A container that is killed again and again waits ever longer; another pod takes its place.
            let name = world.pod(&pod).await?.name_any();
            delete_pod(world, &name, &["--force", "--grace-period=0"]).await
        }
        Kind::DeleteLeader => {
            let pod = a_leader(world, lock).ok_or("no sidecar leads")?;
            let name = world.pod(&pod).await?.name_any();
            delete_pod(world, &name, &[]).await
        }
        Kind::RemakeLock => world.remake_lock(lock).await,
    }
}

/// The uid of the pod of a sidecar that leads, of this lock or of the next that has one.
fn a_leader(world: &World<'_>, lock: usize) -> Option<String> {
    (lock..lock + LOCKS).find_map(|lock| world.history.leader(lock % LOCKS))
}

/// Kills one of these processes.
fn end(processes: Vec<Process>, target: usize) -> Result<(), String> {
    let mut processes = processes;
    processes.sort_by_key(|process| process.pid);
    let count = processes.len().max(1);
    let process = processes.get(target % count).ok_or("no such process runs")?;
    kill(Pid::from_raw(process.pid), Signal::SIGKILL).map_err(|error| error.to_string())
}

async fn delete_pod(world: &World<'_>, name: &str, flags: &[&str]) -> Result<(), String> {
    let args = ["-n", &world.env.namespace, "delete", "pod", name, "--wait=false", "--request-timeout=10s"];
    kubectl(&[&args[..], flags].concat()).await.map(drop)
}

/// The masters' pods that are on a machine and are not being deleted.
async fn masters(world: &World<'_>) -> Result<Vec<Pod>, String> {
    let pods: Api<Pod> = world.env.api();
    let list = pods.list(&kube::api::ListParams::default()).await.map_err(|error| error.to_string())?;
    let is_there = |pod: &Pod| {
        let is_placed = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        is_placed && pod.name_any().starts_with("main-") && pod.metadata.deletion_timestamp.is_none()
    };
    Ok(list.items.into_iter().filter(is_there).collect())
}

/// One of them.
async fn a_master(world: &World<'_>, target: usize) -> Result<String, String> {
    let masters = masters(world).await?;
    let count = masters.len().max(1);
    masters.get(target % count).map(kube::ResourceExt::name_any).ok_or_else(|| "no master has a pod".to_owned())
}

async fn machine_name(number: &str) -> Result<String, String> {
    let names = kubectl(&["get", "nodes", "-o", "name", "--request-timeout=10s"]).await?;
    let name = names.lines().find(|name| name.ends_with(number)).ok_or("no such Kubernetes node")?;
    Ok(name.rsplit('/').next().unwrap_or(name).to_owned())
}

/// Fills the memory of a master, and frees it again.
async fn fill(world: &World<'_>, master: usize, length: Duration) -> Result<(), String> {
    let mut connection = world.masters().await.connect(master).await?;
    let value = "x".repeat(1 << 18);
    let key = |number: usize| format!("redlock:{}/filler-{number}", world.env.namespace);
    let mut filled = 0;
    let why = loop {
        match connection.command::<String>(&["SET", &key(filled), &value, "PX", "30000"]).await {
            Ok(_) if filled < 1000 => filled += 1,
            Ok(_) => break "it takes all".to_owned(),
            Err(why) => break why,
        }
    };
    sleep(length).await;
    for number in 0..filled {
        connection.command::<i64>(&["DEL", &key(number)]).await?;
    }
    if why.contains("OOM") { Ok(()) } else { Err(why) }
}

/// Runs endless scripts on all masters as the client of the namespace.
async fn hostile(world: &World<'_>, length: Duration) -> Result<(), String> {
    let secrets: Api<Secret> = world.env.api();
    let secret = secrets.get("main-client").await.map_err(|error| error.to_string())?;
    let text = |name: &str| secret.data.as_ref().and_then(|data| String::from_utf8(data.get(name)?.0.clone()).ok());
    let (user, password) = text("username").zip(text("password")).ok_or("the Secret has no password")?;
    for server in world.observers.servers() {
        let url = format!("redis://{user}:{password}@127.0.0.1:6379/");
        inside::spawn(server.pid, move || {
            let end = std::time::Instant::now() + length;
            while std::time::Instant::now() < end {
                let Ok(client) = redis::Client::open(url.as_str()) else { return };
                if let Ok(mut connection) = client.get_connection_with_timeout(inside::TIMEOUT) {
                    let _ = connection.set_read_timeout(Some(inside::TIMEOUT));
                    // It is ended, which is an error.
                    let _ = redis::cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut connection);
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
    }
    sleep(length).await;
    Ok(())
}

/// Undoes what befell a machine, also where the fault does not come to its end.
struct Undo {
    command: &'static str,
    number: String,
}

impl Undo {
    fn of(command: &'static str, number: &str) -> Self {
        Self { command, number: number.to_owned() }
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let undone = std::process::Command::new(CLUSTER).args([self.command, &self.number]).output();
        if !undone.is_ok_and(|output| output.status.success()) {
            println!("{} {} failed", self.command, self.number);
        }
    }
}

/// Takes pods again when this is dropped.
struct Uncordon(String);

impl Drop for Uncordon {
    fn drop(&mut self) {
        let _ = std::process::Command::new("kubectl").args(["uncordon", &self.0]).output();
    }
}

/// Sees to it that nothing is left of faults that did not come to their end.
pub(crate) async fn heal_all() {
    for number in 1..=MACHINES {
        for command in ["heal", "thaw", "boot"] {
            let _ = output(CLUSTER, &[command, &number.to_string()]).await;
        }
        if let Ok(name) = machine_name(&number.to_string()).await {
            let _ = kubectl(&["uncordon", &name]).await;
        }
    }
}
