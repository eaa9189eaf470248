//! A sidecar whose log cannot be written leads, renews and releases like any other.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redlock_test_servers::server::{PATIENCE, eventually, free_port, gone_everywhere, held_everywhere, key};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::agent::cluster;

const TTL: Duration = Duration::from_secs(2);

/// A sidecar as a process, which logs all it can to `stderr`.
fn start(secret: &Path, address: SocketAddr, stderr: impl Into<Stdio>) -> Child {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_redlock"));
    agent.args(["agent", "--lock=web", "--identity=web-0", "--log-level=trace", "--ttl=2s"]);
    agent.arg("--listen").arg(address.to_string()).arg("--secret-dir").arg(secret);
    agent.stderr(stderr).stdout(Stdio::null()).stdin(Stdio::null()).kill_on_drop(true).spawn().expect("a sidecar")
}

async fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let answer = timeout(Duration::from_secs(2), reqwest::get(format!("http://{address}{path}"))).await.ok()?.ok()?;
    Some((answer.status().as_u16(), answer.text().await.ok()?))
}

#[tokio::test]
async fn a_log_that_is_not_read_or_closed_or_on_a_full_disk_costs_no_lead_and_no_release() {
    let (servers, secret) = cluster(3).await;
    let (unread, mut full) = io::pipe().expect("a pipe");
    // As much as a pipe takes, and not a byte more: else this would wait for a reader.
    full.write_all(&vec![b'x'; 65_536]).expect("room in a pipe");
    let (closed, broken) = io::pipe().expect("a pipe");
    drop(closed);
    let disk = OpenOptions::new().write(true).open("/dev/full").expect("a full disk");
    for (name, stderr) in [("unread", Stdio::from(full)), ("closed", Stdio::from(broken)), ("full", Stdio::from(disk))]
    {
        let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
        let mut agent = start(secret.path(), address, stderr);
        eventually(name, async || (get(address, "/leader").await?.0 == 200).then_some(())).await;
        let owner = eventually("its key", async || servers[0].get(&key("web")).await).await;
        let owner = owner.parse().expect("an owner");
        // It renews beyond its TTL, while connections break, of which it tells.
        for server in &servers {
            let _: i64 = server.run("CLIENT KILL USER ns-tests").await;
        }
        sleep(2 * TTL).await;
        held_everywhere(&servers, &key("web"), &owner).await;
        let lost = async || {
            let metrics = get(address, "/metrics").await?.1;
            let line = metrics.lines().find(|line| line.starts_with("redlock_agent_log_lines_lost_total "))?.to_owned();
            // The first line is on its way into the pipe for ever.
            (name == "unread" || !line.ends_with(" 0")).then_some(())
        };
        eventually("lost lines", lost).await;

        let pid = i32::try_from(agent.id().expect("it runs")).expect("a pid");
        kill(Pid::from_raw(pid), Signal::SIGTERM).expect("a process of ours");
        let ended = timeout(PATIENCE, agent.wait()).await.expect("an end").expect("its status");
        assert_eq!(ended.code(), Some(0), "{name}");
        gone_everywhere(&servers, &key("web")).await;
    }
    drop(unread);
}
