//! Threads within the network of a pod or of a Kubernetes node: what they ask there is not cut off with its machine.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};

/// Timeout of connecting and of each answer.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// A process of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// The uid of its pod.
    pub(crate) pod: String,
    /// Its arguments.
    pub(crate) arguments: Vec<String>,
}

/// The processes of that name in pods, on all machines of the local cluster.
pub(crate) fn processes(name: &str) -> Vec<Process> {
    let all = fs::read_dir("/proc").expect("processes").filter_map(Result::ok);
    all.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let read = |file: &str| fs::read_to_string(entry.path().join(file)).ok();
        if read("comm")?.trim() != name {
            return None;
        }
        let pod = pod_of(&read("cgroup")?)?;
        let arguments = read("cmdline")?.split('\0').map(str::to_owned).collect();
        Some(Process { pid, pod, arguments })
    })
    .collect()
}

/// Whether the process still runs.
pub(crate) fn runs(pid: i32) -> bool {
    // A zombie has no command line any more.
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

/// The uid of the pod in whose control group a process is.
fn pod_of(control_group: &str) -> Option<String> {
    let rest = &control_group[control_group.rfind("pod")? + 3..];
    let uid: String = rest.chars().take_while(|c| c.is_ascii_hexdigit() || matches!(c, '-' | '_')).collect();
    (uid.len() == 36).then(|| uid.replace('_', "-"))
}

/// Runs `body` in a thread in the network of the process `pid`. `None` if that has ended.
pub(crate) fn spawn(pid: i32, body: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    let network = File::open(format!("/proc/{pid}/ns/net")).ok()?;
    Some(std::thread::spawn(move || {
        setns(network, CloneFlags::CLONE_NEWNET).expect("root may enter the network of a pod");
        body();
    }))
}

/// Connects to a port of the pod in whose network this thread is.
pub(crate) fn connect(port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The body of the answer to `GET /` of the pod in whose network this thread is.
pub(crate) fn get(port: u16) -> std::io::Result<String> {
    let mut stream = connect(port)?;
    stream.write_all(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_of_a_process_is_in_its_control_group() {
        let uid = "0b6c1c9e-5d0e-4a53-9f0c-3d9a1a2b3c01";
        let slice = format!("0::/kubepods.slice/kubepods-burstable-pod{}.slice/x", uid.replace('-', "_"));
        for group in [format!("0::/kubepods/burstable/pod{uid}/5e8f"), slice] {
            assert_eq!(pod_of(&group).as_deref(), Some(uid), "{group}");
        }
        assert_eq!(pod_of("0::/user.slice"), None);
    }
}
