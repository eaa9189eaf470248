//! Sidecars: their answers, and a check that never two of them lead.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{PATIENCE, forward};

/// The port of a sidecar.
pub const PORT: u16 = 4040;
/// How often each sidecar is asked.
const EVERY: Duration = Duration::from_millis(100);
/// Timeout of a sidecar's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A sidecar's answer to `GET /`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Who leads, as far as the sidecar knows.
    pub name: Option<String>,
    /// The sidecar's own identity.
    #[serde(rename = "self")]
    pub own: String,
    /// Fencing token of the leader's grant.
    pub token: Option<u64>,
    /// Validity of the sidecar's own lease, in milliseconds.
    pub valid_for_ms: Option<u64>,
}

impl Answer {
    /// The token with which the sidecar claims to lead.
    pub fn claim(&self) -> Option<u64> {
        let leads = self.name.as_deref() == Some(&self.own) && self.valid_for_ms.is_some_and(|left| left > 0);
        self.token.filter(|_| leads)
    }
}

/// A sidecar that said it leads, at some time between `sent` and `received`.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Its pod.
    pub pod: String,
    /// The token of its grant.
    pub token: u64,
    /// Before the request.
    pub sent: Instant,
    /// After the answer.
    pub received: Instant,
}

/// One HTTP request to a pod: status and body.
pub async fn get(pods: &Api<Pod>, pod: &str, port: u16, path: &str) -> Result<(u16, String), String> {
    let exchange = async {
        let mut stream = forward::connect(pods, pod, port).await?;
        exchange(&mut stream, pod, path, "close").await
    };
    tokio::time::timeout(ANSWER_TIMEOUT, exchange).await.map_err(|_| format!("{pod}{path}: no answer in time"))?
}

async fn exchange(stream: &mut forward::Forward, host: &str, path: &str, then: &str) -> Result<(u16, String), String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: {then}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(|e| e.to_string())?;
    let mut answer = Vec::new();
    loop {
        if let Some(complete) = parse(&answer) {
            return Ok(complete);
        }
        let read = stream.read_buf(&mut answer).await.map_err(|e| e.to_string())?;
        if read == 0 {
            return Err(format!("{host}{path}: the answer ended early"));
        }
    }
}

/// Status and body of a response with `content-length`, once it is complete.
fn parse(bytes: &[u8]) -> Option<(u16, String)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    })?;
    (body.len() >= length).then(|| (status, body[..length].to_owned()))
}

/// The present answer of the sidecar of `pod`.
pub async fn ask(pods: &Api<Pod>, pod: &str) -> Result<Answer, String> {
    let (_, body) = get(pods, pod, PORT, "/").await?;
    serde_json::from_str(&body).map_err(|error| format!("{pod}: {error} in {body}"))
}

/// Asks all sidecars again and again until it is finished.
pub struct Watch {
    claims: Arc<Mutex<Vec<Claim>>>,
    pods: Api<Pod>,
    tasks: HashMap<String, JoinHandle<()>>,
}

impl Watch {
    /// Begins to ask the sidecars of these pods.
    pub fn start(pods: &Api<Pod>, names: impl IntoIterator<Item = String>) -> Self {
        let mut watch = Self { claims: Arc::default(), pods: pods.clone(), tasks: HashMap::new() };
        names.into_iter().for_each(|name| watch.add(name));
        watch
    }

    /// Begins to ask another sidecar, unless it is asked already.
    fn add(&mut self, pod: String) {
        if self.tasks.contains_key(&pod) {
            return;
        }
        let task = follow(self.pods.clone(), pod.clone(), Arc::clone(&self.claims));
        self.tasks.insert(pod, tokio::spawn(task));
    }

    /// Waits for a claim that is `wanted`, of any pod with this label: a pod that replaces another may lead next.
    pub async fn claim(&mut self, label: &str, what: &str, wanted: impl Fn(&Claim) -> bool) -> Claim {
        let begin = Instant::now();
        loop {
            // A failed list is tried again; pods on their way out have no address to ask.
            for pod in self.pods.list(&ListParams::default().labels(label)).await.into_iter().flatten() {
                self.add(pod.name_any());
            }
            if let Some(claim) = self.claims.lock().unwrap().iter().find(|c| wanted(c)) {
                return claim.clone();
            }
            assert!(begin.elapsed() < PATIENCE, "{what}: no such claim to lead in {PATIENCE:?}");
            tokio::time::sleep(EVERY / 2).await;
        }
    }

    /// Ends the watch, and returns all claims.
    pub fn finish(self) -> Vec<Claim> {
        self.tasks.values().for_each(JoinHandle::abort);
        self.claims.lock().unwrap().clone()
    }
}

async fn follow(pods: Api<Pod>, pod: String, claims: Arc<Mutex<Vec<Claim>>>) {
    loop {
        if let Ok(mut stream) = forward::connect(&pods, &pod, PORT).await {
            loop {
                let sent = Instant::now();
                let asked = tokio::time::timeout(ANSWER_TIMEOUT, exchange(&mut stream, &pod, "/", "keep-alive")).await;
                let Ok(Ok((_, body))) = asked else { break };
                let answer: Answer = serde_json::from_str(&body).expect("an answer of a sidecar");
                if let Some(token) = answer.claim() {
                    let claim = Claim { pod: pod.clone(), token, sent, received: Instant::now() };
                    claims.lock().unwrap().push(claim);
                }
                tokio::time::sleep(EVERY).await;
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Checks that nobody claims to lead after another has with a larger token, and that no token is claimed by two.
///
/// A claim was made at some time between request and answer, so only a claim that certainly came later counts as later.
pub fn assert_one_leader_at_a_time(claims: &[Claim]) {
    let mut owners: HashMap<u64, &str> = HashMap::new();
    for claim in claims {
        let owner = owners.entry(claim.token).or_insert(&claim.pod);
        assert_eq!(*owner, claim.pod, "two pods lead with the token {}", claim.token);
        let overtaken = claims.iter().find(|other| other.token > claim.token && other.received < claim.sent);
        assert!(overtaken.is_none(), "{claim:?} after {overtaken:?}");
    }
}
