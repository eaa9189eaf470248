//! The machines of the local cluster: kills of processes, and Kubernetes nodes whose kubelet stands still.

use std::fs;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use super::output;

const CLUSTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hack/cluster/cluster.sh");

/// A Kubernetes node whose kubelet and runtime stand still, until this value is thawed or dropped. Its pods run all the time.
pub struct Frozen {
    number: String,
}

/// The API server, which stands still until this value is dropped.
pub struct FrozenApiServer {
    pid: String,
}

/// Stops the API server of the local cluster. Connections to it stay open, and nothing is answered.
pub async fn freeze_api_server() -> FrozenApiServer {
    let pid = process_by("kube-apiserver", |read| read("environ").contains("KUBE_DEV_OWNER=")).expect("an API server");
    output("kill", &["-STOP", &pid]).await.expect("a process of this machine");
    FrozenApiServer { pid }
}

impl Drop for FrozenApiServer {
    fn drop(&mut self) {
        // Also after a panic: everything else needs it.
        let _ = std::process::Command::new("kill").args(["-CONT", &self.pid]).output();
    }
}

/// Sends SIGKILL to the Redis server of a pod, as the kernel does where memory is short.
pub async fn kill_server(pod: &Pod) {
    let uid = pod.uid().expect("a pod has a UID");
    let pid = server(&uid).unwrap_or_else(|| panic!("no redis-server runs in the pod {uid}"));
    output("kill", &["-KILL", &pid]).await.expect("a process of this machine");
}

/// Whether the Redis server of a pod runs.
pub fn server_runs(pod: &Pod) -> bool {
    server(&pod.uid().expect("a pod has a UID")).is_some()
}

/// The process of that name in a pod.
pub fn process_of(pod: &Pod, name: &str) -> Option<i32> {
    process(&pod.uid().expect("a pod has a UID"), name)?.parse().ok()
}

/// The process of the server in a pod.
fn server(uid: &str) -> Option<String> {
    process(uid, "redis-server")
}

/// A process of a pod, by its control group.
fn process(uid: &str, name: &str) -> Option<String> {
    process_by(name, |read| read("cgroup").contains(&format!("pod{uid}")))
}

/// A process of this name, by what `is_it` reads in its folder.
fn process_by(name: &str, is_it: impl Fn(&dyn Fn(&str) -> String) -> bool) -> Option<String> {
    let processes = fs::read_dir("/proc").expect("processes").filter_map(Result::ok);
    processes.map(|process| process.path()).find_map(|process| {
        let read = |file: &str| fs::read_to_string(process.join(file)).unwrap_or_default();
        let is_it = read("comm").trim() == name && is_it(&read);
        is_it.then(|| process.file_name()?.to_str().map(str::to_owned)).flatten()
    })
}

/// The name of a pod's Kubernetes node.
pub fn machine_of(pod: &Pod) -> String {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).expect("a pod on a Kubernetes node")
}

/// The number of a pod's machine.
fn number_of(pod: &Pod) -> String {
    machine_of(pod).trim_start_matches(|c: char| !c.is_ascii_digit()).to_owned()
}

/// Freezes the Kubernetes node of a pod.
pub async fn freeze_machine_of(pod: &Pod) -> Frozen {
    let number = number_of(pod);
    output(CLUSTER, &["freeze", &number]).await.expect("frozen");
    Frozen { number }
}

/// Cuts the power of a pod's machine, and starts it again.
pub async fn restart_machine_of(pod: &Pod) {
    let number = number_of(pod);
    output(CLUSTER, &["kill", &number]).await.expect("killed");
    output(CLUSTER, &["boot", &number]).await.expect("booted");
}

impl Frozen {
    /// Resumes it.
    pub async fn thaw(self) {
        output(CLUSTER, &["thaw", &self.number]).await.expect("thawed");
    }

    /// Has it restarted when this is dropped, also after a panic: a kubelet whose Kubernetes node was deleted does not register again.
    pub fn restarted_at_the_end(self) -> Restarted {
        let number = self.number.clone();
        Restarted { number, _frozen: self }
    }
}

/// A frozen Kubernetes node that is restarted when this is dropped.
pub struct Restarted {
    number: String,
    _frozen: Frozen,
}

impl Drop for Restarted {
    fn drop(&mut self) {
        for command in ["kill", "boot"] {
            let _ = std::process::Command::new(CLUSTER).args([command, &self.number]).output();
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // Also after a panic: the other scenarios need it. Thawing twice does no harm.
        let _ = std::process::Command::new(CLUSTER).args(["thaw", &self.number]).output();
    }
}
