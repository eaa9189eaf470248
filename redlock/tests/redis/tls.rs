//! Servers behind TLS and on Unix sockets.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use redlock_engine::{
    Address, Client, ClientCertificate, Endpoint, Error, Health, LeaseOptions, LeaseState, Marker, MasterError, Reason,
    RedisMaster, Released, Renewal, TlsFiles, Wait,
};
use redlock_test_servers::server::{CALL_TIMEOUT, PATIENCE, Server, eventually, free_port, key};
use tempfile::TempDir;
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(10);
const HOST: &str = "127.0.0.1";

/// A certificate authority, and a folder of files.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let folder = tempfile::tempdir().expect("a folder for certificates");
        // A name that no other authority has.
        params.distinguished_name.push(DnType::CommonName, folder.path().display().to_string());
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        fs::write(folder.path().join("ca.crt"), certificate.pem()).expect("its file");
        Self { issuer: Issuer::new(params, key), folder }
    }

    fn certificate(&self) -> PathBuf {
        self.folder.path().join("ca.crt")
    }

    /// Files `<name>.crt` and `<name>.key` for a host.
    fn issue(&self, name: &str, host: &str) -> ClientCertificate {
        self.issue_with(name, &CertificateParams::new([host.to_owned()]).expect("a name"))
    }

    fn issue_with(&self, name: &str, params: &CertificateParams) -> ClientCertificate {
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("a certificate");
        let path = |kind| self.folder.path().join(format!("{name}.{kind}"));
        fs::write(path("crt"), signed.pem()).expect("its file");
        fs::write(path("key"), key.serialize_pem()).expect("its file");
        ClientCertificate { certificate: path("crt"), key: path("key") }
    }

    /// Files of a client that trusts this authority and has a certificate of it.
    fn files(&self) -> TlsFiles {
        TlsFiles { authorities: self.certificate(), client: Some(self.issue("client", "client")) }
    }
}

struct TlsServer {
    server: Server,
    port: u16,
}

impl TlsServer {
    /// An armed server with this certificate, which requires clients to have a certificate of the same authority.
    async fn start(authority: &Authority, shown: &ClientCertificate) -> Self {
        let port = free_port();
        let path = |path: &Path| path.display().to_string();
        let flags = [
            ("--tls-port", port.to_string()),
            ("--tls-ca-cert-file", path(&authority.certificate())),
            ("--tls-cert-file", path(&shown.certificate)),
            ("--tls-key-file", path(&shown.key)),
        ];
        let flags: Vec<_> = flags.iter().flat_map(|(flag, value)| [*flag, value.as_str()]).collect();
        let server = Server::start(&flags).await;
        server.arm().await;
        Self { server, port }
    }

    /// Shows another certificate on new connections.
    async fn show(&self, shown: &ClientCertificate) {
        let (certificate, key) = (shown.certificate.display(), shown.key.display());
        let () = self.server.run(&format!("CONFIG SET tls-cert-file {certificate} tls-key-file {key}")).await;
    }

    fn master(&self, files: TlsFiles) -> RedisMaster {
        let address = Address::Tls(HOST.to_owned(), self.port, files);
        RedisMaster::connect(Endpoint { address, ..self.server.endpoint(Marker::Required) })
    }

    /// The error of an attempt with this server as the only master.
    async fn refusal(&self, files: TlsFiles) -> MasterError {
        refusal(self.master(files)).await
    }
}

async fn refusal(master: RedisMaster) -> MasterError {
    // Longer than the timeout of a handshake, a second.
    let client = Client::new([master], Duration::from_secs(5)).expect("valid settings");
    match client.try_acquire(&key("a"), &LeaseOptions::new("x", TTL)).await {
        Err(Error::NoQuorum { mut failures, .. }) => failures.remove(0).error,
        other => panic!("{other:?}"),
    }
}

/// All operations of a lock, with two clients of the same three masters.
async fn a_lock_is_acquired_renewed_waited_for_and_released(one: Client, other: Client) {
    let renewal = Renewal::Every(Duration::from_millis(100));
    let options = LeaseOptions::new("one", TTL).renewal(renewal);
    // A TLS handshake may take longer than the call timeout.
    let lease = one.acquire(&key("a"), &options, Wait::For(PATIENCE)).await.expect("granted");
    let waiting =
        tokio::spawn(
            async move { other.acquire(&key("a"), &LeaseOptions::new("other", TTL), Wait::For(PATIENCE)).await },
        );
    let mut state = lease.state();
    let renewed = state.wait_for(|s| matches!(s, LeaseState::Held(grant) if grant.renewals >= 2 && grant.votes == 3));
    timeout(PATIENCE, renewed).await.expect("renewed in time").expect("a watchdog");
    assert_eq!(lease.release().await, Released::Freed);
    let lease = timeout(PATIENCE, waiting).await.expect("woken").expect("no panic").expect("granted");
    assert_eq!(lease.owner().identity(), "other");
}

#[tokio::test]
async fn a_lock_works_inside_tls_that_authenticates_both_sides() {
    let authority = Authority::new();
    let shown = authority.issue("server", HOST);
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(TlsServer::start(&authority, &shown).await);
    }
    let client =
        || Client::new(servers.iter().map(|s| s.master(authority.files())), CALL_TIMEOUT).expect("valid settings");
    a_lock_is_acquired_renewed_waited_for_and_released(client(), client()).await;
}

#[tokio::test]
async fn a_lock_works_over_unix_sockets() {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Server::start(&["--unixsocket", "redis.sock"]).await);
    }
    for server in &servers {
        server.arm().await;
    }
    let master = |server: &Server| {
        let address = Address::Unix(server.folder().join("redis.sock"));
        RedisMaster::connect(Endpoint { address, ..server.endpoint(Marker::Required) })
    };
    let client = || Client::new(servers.iter().map(master), CALL_TIMEOUT).expect("valid settings");
    a_lock_is_acquired_renewed_waited_for_and_released(client(), client()).await;
    let gone = servers[0].folder().join("no.sock");
    let master = Endpoint { address: Address::Unix(gone), ..servers[0].endpoint(Marker::Required) };
    assert!(matches!(refusal(RedisMaster::connect(master)).await, MasterError::Unreachable(_)));
}

#[tokio::test]
async fn a_server_whose_certificate_is_not_valid_gives_no_vote_and_the_error_says_why() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = TlsServer::start(&authority, &authority.issue("server", HOST)).await;
    let client = authority.issue("client", "client");
    let stranger = TlsFiles { authorities: other.certificate(), client: Some(client) };
    let mut expired = CertificateParams::new([HOST.to_owned()]).expect("a name");
    expired.not_after = rcgen::date_time_ymd(2001, 1, 1);
    for (shown, files, word) in [
        (authority.issue("known", HOST), stranger, "UnknownIssuer"),
        (authority.issue("elsewhere", "redis.example.org"), authority.files(), "not valid for name"),
        (authority.issue_with("expired", &expired), authority.files(), "expired"),
    ] {
        server.show(&shown).await;
        let error = server.refusal(files).await;
        assert_eq!(error.reason(), Reason::Auth, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(server.server.get(&key("a")).await, None);
}

#[tokio::test]
async fn a_server_that_rejects_our_certificate_is_not_reported_as_down() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = TlsServer::start(&authority, &authority.issue("server", HOST)).await;
    for (client, word) in [(None, "CertificateRequired"), (Some(other.issue("client", "client")), "UnknownCA")] {
        let error = server.refusal(TlsFiles { authorities: authority.certificate(), client }).await;
        assert_eq!(error.reason(), Reason::Auth, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[tokio::test]
async fn a_connection_with_tls_on_one_side_only_gives_no_vote() {
    let authority = Authority::new();
    let TlsServer { server, port } = TlsServer::start(&authority, &authority.issue("server", HOST)).await;
    let master = |address| RedisMaster::connect(Endpoint { address, ..server.endpoint(Marker::Required) });
    // A server without TLS answers the handshake with an error, or waits for the end of the line.
    let error = refusal(master(Address::Tls(HOST.to_owned(), server.port, authority.files()))).await;
    assert!(matches!(error, MasterError::Misconfigured(_) | MasterError::Timeout), "{error}");
    // A server with TLS closes the connection without an answer.
    let error = refusal(master(Address::Tcp(HOST.to_owned(), port))).await;
    assert!(matches!(error, MasterError::Unreachable(_)), "{error}");
    assert_eq!(server.run::<i64>("DBSIZE").await, 1, "the marker, and no key of a lock");
}

#[tokio::test]
async fn unusable_files_are_named_and_read_again() {
    let authority = Authority::new();
    let server = TlsServer::start(&authority, &authority.issue("server", HOST)).await;
    let files = authority.files();
    let missing = authority.folder.path().join("missing.crt");
    let error = server.refusal(TlsFiles { authorities: missing.clone(), ..files.clone() }).await;
    assert_eq!(error.reason(), Reason::Auth, "{error}");
    assert!(error.to_string().contains("missing.crt"), "{error}");
    fs::write(&missing, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").expect("a file");
    let error = server.refusal(TlsFiles { authorities: missing.clone(), ..files.clone() }).await;
    assert_eq!(error.reason(), Reason::Auth, "{error}");
    let master = server.master(TlsFiles { authorities: missing.clone(), ..files });
    fs::copy(authority.certificate(), &missing).expect("the right file");
    eventually("connected", async || matches!(master.health(), Health::Up { .. }).then_some(())).await;
}

#[tokio::test]
async fn rotated_certificates_are_used_for_the_next_connection() {
    let (old, new) = (Authority::new(), Authority::new());
    let server = TlsServer::start(&old, &old.issue("server", HOST)).await;
    let files = old.files();
    let client = Client::new([server.master(files.clone())], CALL_TIMEOUT).expect("valid settings");
    let lease = client.acquire(&key("a"), &LeaseOptions::new("x", TTL), Wait::For(PATIENCE)).await.expect("granted");
    // The server changes to a new authority, and its clients' connections end.
    let authorities = new.certificate().display().to_string();
    server.show(&new.issue("server", HOST)).await;
    let () = server.server.run(&format!("CONFIG SET tls-ca-cert-file {authorities}")).await;
    let _: i64 = server.server.run("CLIENT KILL TYPE normal SKIPME yes").await;
    eventually("the old files are refused", async || {
        matches!(client.masters()[0].health(), Health::Down(MasterError::Auth(_))).then_some(())
    })
    .await;
    fs::copy(new.certificate(), &files.authorities).expect("the new authority");
    let (fresh, held) = (new.issue("client", "client"), files.client.expect("a certificate"));
    fs::copy(fresh.key, held.key).expect("the new key");
    fs::copy(fresh.certificate, held.certificate).expect("the new certificate");
    eventually("connected again", async || matches!(client.masters()[0].health(), Health::Up { .. }).then_some(()))
        .await;
    assert_eq!(lease.release().await, Released::Freed);
}
