//! A link between client and server that a test can slow down, hold and cut, and that counts bytes and connections.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redlock_engine::{Address, Client, Endpoint, Marker, RedisMaster};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::server::{CALL_TIMEOUT, Server, until_connected};

/// What happens to bytes under way. None is lost or changed, as with TCP: only a cut ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// They pass.
    Pass,
    /// They pass after this time.
    Late(Duration),
    /// They wait until this changes.
    Hold,
    /// They pass up to a request with this word. That request, and all after it, wait until this changes.
    HoldFrom(&'static str),
}

/// A link to one server.
pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
    listening: JoinHandle<()>,
}

struct Shared {
    requests: watch::Sender<Flow>,
    answers: watch::Sender<Flow>,
    /// Counts up at each cut.
    cuts: watch::Sender<u64>,
    refusing: watch::Sender<bool>,
    received: AtomicU64,
    /// Whether a request has been held.
    holds: AtomicBool,
    accepted: Mutex<Vec<Instant>>,
}

impl Proxy {
    /// A link to the server on this port, through which all bytes pass.
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let own_port = listener.local_addr().expect("its address").port();
        let shared = Arc::new(Shared {
            requests: watch::Sender::new(Flow::Pass),
            answers: watch::Sender::new(Flow::Pass),
            cuts: watch::Sender::new(0),
            refusing: watch::Sender::new(false),
            received: AtomicU64::new(0),
            holds: AtomicBool::new(false),
            accepted: Mutex::default(),
        });
        let listening = tokio::spawn(listen(listener, port, Arc::clone(&shared)));
        Self { port: own_port, shared, listening }
    }

    /// A link to each server, and a client that is connected through them.
    pub async fn to_all(servers: &[Server]) -> (Vec<Self>, Client) {
        Self::to_all_within(servers, CALL_TIMEOUT).await
    }

    /// The same, with this call timeout.
    pub async fn to_all_within(servers: &[Server], call_timeout: Duration) -> (Vec<Self>, Client) {
        let links = futures::future::join_all(servers.iter().map(|s| Self::to(s.port))).await;
        let masters: Vec<_> = links.iter().zip(servers).map(|(l, s)| RedisMaster::connect(l.endpoint(s))).collect();
        let client = Client::new(masters, call_timeout).expect("valid settings");
        until_connected(&client).await;
        (links, client)
    }

    /// The server as a master behind this link.
    pub fn endpoint(&self, server: &Server) -> Endpoint {
        Endpoint { address: Address::Tcp("127.0.0.1".to_owned(), self.port), ..server.endpoint(Marker::Required) }
    }

    /// Sets what happens to requests from now on.
    pub fn requests(&self, flow: Flow) {
        self.shared.requests.send_replace(flow);
    }

    /// Sets what happens to answers from now on.
    pub fn answers(&self, flow: Flow) {
        self.shared.answers.send_replace(flow);
    }

    /// Accepts connections and reads from them, but lets nothing pass either way.
    pub fn swallow(&self) {
        self.requests(Flow::Hold);
        self.answers(Flow::Hold);
    }

    /// Resets all connections, and each new one at once.
    pub fn cut(&self) {
        self.shared.refusing.send_replace(true);
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Lets all pass again, after a cut on new connections.
    pub fn heal(&self) {
        self.requests(Flow::Pass);
        self.answers(Flow::Pass);
        self.shared.refusing.send_replace(false);
    }

    /// Bytes that clients have sent so far.
    pub fn received(&self) -> u64 {
        self.shared.received.load(Ordering::SeqCst)
    }

    /// Whether a request has been held so far.
    pub fn holds(&self) -> bool {
        self.shared.holds.load(Ordering::SeqCst)
    }

    /// Connections that clients have made so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.lock().expect("no panic under this lock").len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }
}

async fn listen(listener: TcpListener, port: u16, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        shared.accepted.lock().expect("no panic under this lock").push(Instant::now());
        // Connections end by a reset.
        client.set_zero_linger().expect("an option of a socket");
        if !*shared.refusing.borrow() {
            tokio::spawn(carry(client, port, Arc::clone(&shared)));
        }
    }
}

async fn carry(client: TcpStream, port: u16, shared: Arc<Shared>) {
    let mut cuts = shared.cuts.subscribe();
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("an option of a socket");
    }
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::select! {
        () = pump(from_client, to_server, shared.requests.subscribe(), Some(&shared)) => {}
        () = pump(from_server, to_client, shared.answers.subscribe(), None) => {}
        _ = cuts.changed() => {}
    }
}

/// Copies bytes one way until the stream ends. It reads on while they wait, as a network's buffers do.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut flow: watch::Receiver<Flow>,
    log: Option<&Shared>,
) {
    let (arrived, mut waiting) = mpsc::unbounded_channel();
    let read = async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n @ 1..) = from.read(&mut buffer).await {
            log.inspect(|log| _ = log.received.fetch_add(n as u64, Ordering::SeqCst));
            if arrived.send((Instant::now(), buffer[..n].to_vec())).is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((at, bytes)) = waiting.recv().await {
            let passes = |flow: &Flow| match flow {
                Flow::Pass | Flow::Late(_) => true,
                Flow::Hold => false,
                Flow::HoldFrom(word) => !bytes.windows(word.len()).any(|w| w == word.as_bytes()),
            };
            if !passes(&flow.borrow()) {
                log.inspect(|log| log.holds.store(true, Ordering::SeqCst));
            }
            let Ok(flow) = flow.wait_for(passes).await.map(|flow| *flow) else { return };
            if let Flow::Late(by) = flow {
                sleep_until(at + by).await;
            }
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(read, write);
}
