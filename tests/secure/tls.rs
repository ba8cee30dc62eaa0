//! Handshakes: good ones, bad ones, slow ones, and those during which certificates change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fencepost::api::{Access, Settings};
use fencepost::tls::{ClientAuth, Tls, TlsSettings};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::authority::{Authority, UnverifiedToken, file};
use super::fixture::{Caller, Fixture, ask, until};

/// A server with certificates, and the authority that signs for all.
pub struct Secured {
    pub fixture: Fixture,
    pub tls: Tls,
    pub authority: Authority,
    folder: TempDir,
}

/// How a server of a test is told to shake hands.
#[derive(Debug, Clone, Copy)]
struct Terms {
    client_auth: ClientAuth,
    timeout: Duration,
    limit: usize,
    connections: usize,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            client_auth: ClientAuth::None,
            timeout: Duration::from_secs(20),
            limit: 1000,
            connections: 1000,
        }
    }
}

impl Secured {
    pub async fn start(access: Access, client_auth: ClientAuth) -> Self {
        let terms = Terms {
            client_auth,
            ..Terms::default()
        };
        Self::on(access, terms).await
    }

    async fn on(access: Access, terms: Terms) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let authority = Authority::new("the authority of a test");
        let files = authority.server().write(folder.path(), "server");
        let ca = file(folder.path(), "ca.pem", &authority.pem);
        let tls = Tls::open(TlsSettings {
            certificate: files.certificate,
            key: files.key,
            client_ca: Some(ca),
            client_auth: terms.client_auth,
            handshake_timeout: terms.timeout,
            handshake_limit: terms.limit,
        });
        let tls = tls.expect("good files");
        let settings = Settings {
            max_connections: terms.connections,
            // All of them are at one address here.
            peer_share: 100,
            ..Settings::default()
        };
        let fixture = Fixture::start(access, Some(tls.clone()), settings).await;
        Self {
            fixture,
            tls,
            authority,
            folder,
        }
    }

    /// A caller that knows the server, and shows this certificate.
    pub async fn caller(&self, own: Option<&UnverifiedToken>) -> Result<Caller, tonic::transport::Error> {
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.authority.pem));
        if let Some(own) = own {
            tls = tls.identity(Identity::from_pem(&own.certificate, &own.key));
        }
        let endpoint = Endpoint::from_shared(format!("https://{}", self.fixture.address))?;
        let channel = endpoint.tls_config(tls)?.connect().await?;
        Ok(Caller { channel, bearer: None })
    }

    /// Whether a client with this certificate is served.
    async fn serves(&self, own: Option<&UnverifiedToken>) -> bool {
        // A refusal may reach the client with its first call alone.
        match self.caller(own).await {
            Ok(caller) => caller.inspect("jobs", "a").await.is_ok(),
            Err(_) => false,
        }
    }

    /// A bare connection that says this of itself.
    async fn shake(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        protocols: &[&[u8]],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(self.authority.pem.as_bytes()).expect("PEM");
        roots.add(authority).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let socket = TcpStream::connect(&self.fixture.address).await?;
        let name = ServerName::try_from("localhost").expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, socket).await
    }

    async fn refused(&self, failed: u64) {
        until(&format!("{failed} handshakes have failed"), async || {
            self.tls.refused().failed == failed
        })
        .await;
    }
}

const BOTH: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];

#[tokio::test(flavor = "multi_thread")]
async fn tls_1_3_and_1_2_are_spoken_with_http_2_inside() {
    let secured = Secured::start(Access::default(), ClientAuth::None).await;
    let caller = secured.caller(None).await.expect("a connection");
    let lease = caller.acquire(ask("jobs", "a")).await.expect("it is free");
    caller.release(&lease).await.expect("it is held");
    for version in BOTH {
        let stream = secured.shake(&[version], &[b"h2"]).await.expect("a handshake");
        let connection = stream.get_ref().1;
        assert_eq!(connection.protocol_version(), Some(version.version));
        assert_eq!(connection.alpn_protocol(), Some(&b"h2"[..]));
    }
    assert_eq!(secured.tls.refused().failed, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_speaks_either_version_of_http_and_no_other_protocol() {
    let secured = Secured::start(Access::default(), ClientAuth::None).await;
    assert!(secured.shake(&BOTH, &[b"smtp"]).await.is_err());
    secured.refused(1).await;
    for (offered, taken) in [
        (&[&b"http/1.1"[..]][..], Some(&b"http/1.1"[..])),
        (&[], None),
        (&[b"http/1.1", b"h2"], Some(b"h2")),
    ] {
        let mut stream = secured.shake(&BOTH, offered).await.expect("a handshake");
        assert_eq!(stream.get_ref().1.alpn_protocol(), taken);
        if taken == Some(b"h2") {
            continue;
        }
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .await
            .expect("it is sent");
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.expect("an answer");
        assert_eq!(&head, b"HTTP/1.1 405");
    }
    assert!(secured.serves(None).await);
}

// G191
#[tokio::test(flavor = "multi_thread")]
async fn over_tls_a_wait_over_http_1_ends_whose_client_is_gone() {
    let secured = Secured::start(Access::default(), ClientAuth::None).await;
    let caller = secured.caller(None).await.expect("a connection");
    caller.acquire(ask("jobs", "a")).await.expect("it is free");
    let body = r#"{"namespace":"jobs","name":"a","owner":"gone","wait":"3600s"}"#;
    let head = "POST /fencepost.v1.LockService/Acquire HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n";
    let length = body.len();
    for tail in ["", "\r\n"] {
        let mut stream = secured.shake(&BOTH, &[b"http/1.1"]).await.expect("a handshake");
        let request = format!("{head}Content-Length: {length}\r\n\r\n{body}{tail}");
        stream.write_all(request.as_bytes()).await.expect("it is sent");
        let waiters = async || caller.inspect("jobs", "a").await.expect("it may look").waiter_count;
        until("it waits", async || waiters().await == 1).await;
        drop(stream);
        let gone = Instant::now();
        until("it left", async || waiters().await == 0).await;
        assert!(gone.elapsed() < Duration::from_secs(5), "{:?}", gone.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_in_the_clear_is_refused_and_the_server_serves_on() {
    let secured = Secured::start(Access::default(), ClientAuth::None).await;
    for (number, word) in (1..).zip([&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], b"GET / HTTP/1.1\r\n\r\n"]) {
        let mut socket = TcpStream::connect(&secured.fixture.address).await.expect("a port");
        socket.write_all(word).await.expect("it is sent");
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
        secured.refused(number).await;
    }
    assert!(secured.serves(None).await);
}

/// The first message of a client that speaks TLS 1.1 at most.
fn hello_1_1() -> Vec<u8> {
    let random = [7; 32];
    let suites = [0xc0, 0x13, 0xc0, 0x09, 0x00, 0x2f];
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).expect("a short message");
    // It names its signatures as TLS 1.2 wants it, so that nothing but its version is wrong.
    let signatures = [0, 13, 0, 8, 0, 6, 4, 3, 4, 1, 8, 4];
    let extensions = [&[0, length(&signatures)][..], &signatures].concat();
    let parameters = [&[0, length(&suites)][..], &suites, &[1, 0], &extensions].concat();
    // Its version, and no session.
    let hello = [&[3, 2][..], &random, &[0], &parameters].concat();
    let message = [&[1, 0, 0, length(&hello)][..], &hello].concat();
    [&[22, 3, 1, 0, length(&message)][..], &message].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_tls_1_1_is_told_that_it_is_too_old() {
    let secured = Secured::start(Access::default(), ClientAuth::None).await;
    let mut socket = TcpStream::connect(&secured.fixture.address).await.expect("a port");
    socket.write_all(&hello_1_1()).await.expect("it is sent");
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    // A fatal alert about the version, and nothing else.
    let [21, 3, _, 0, 2, 2, 70] = answer[..] else {
        panic!("{answer:?}")
    };
    secured.refused(1).await;
    assert!(secured.serves(None).await);
}

// G150
#[tokio::test(flavor = "multi_thread")]
async fn only_a_good_client_certificate_is_taken_where_one_is_required() {
    let secured = Secured::start(Access::default(), ClientAuth::Required).await;
    let uri = "spiffe://example.org/a";
    let stranger = Authority::new("somebody else");
    let bad = [
        None,
        Some(stranger.client(uri)),
        Some(secured.authority.expired_client(uri)),
        // Signed for servers, not for clients.
        Some(secured.authority.server()),
    ];
    for (number, own) in (1..).zip(&bad) {
        assert!(!secured.serves(own.as_ref()).await, "{number}");
        until("it is counted", async || secured.tls.refused().failed >= number).await;
    }
    assert!(secured.serves(Some(&secured.authority.client(uri))).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_optional_client_certificate_must_be_good_if_there_is_one() {
    let secured = Secured::start(Access::default(), ClientAuth::Optional).await;
    assert!(secured.serves(None).await);
    let uri = "spiffe://example.org/a";
    assert!(secured.serves(Some(&secured.authority.client(uri))).await);
    assert!(!secured.serves(Some(&Authority::new("somebody else").client(uri))).await);
    assert!(!secured.serves(Some(&secured.authority.expired_client(uri))).await);
}

// G154
#[tokio::test(flavor = "multi_thread")]
async fn half_open_handshakes_by_the_hundred_keep_nobody_out_and_are_counted() {
    let terms = Terms {
        timeout: Duration::from_secs(8),
        limit: 100,
        connections: 5,
        ..Terms::default()
    };
    let secured = Secured::on(Access::default(), terms).await;
    let mut half_open = Vec::new();
    for number in 0..300 {
        let mut socket = TcpStream::connect(&secured.fixture.address).await.expect("a port");
        if number % 2 == 0 {
            // The beginning of a record, and never the rest.
            socket.write_all(&[22, 3, 1, 2, 0, 1]).await.expect("it is sent");
        }
        half_open.push(socket);
        if number % 100 == 99 {
            assert!(secured.serves(None).await, "after {number}");
        }
    }
    until("all are refused", async || {
        let refused = secured.tls.refused();
        refused.evicted + refused.timed_out >= 300
    })
    .await;
    let refused = secured.tls.refused();
    assert!(refused.evicted > 0 && refused.timed_out > 0, "{refused:?}");
    for socket in &mut half_open {
        assert!(!matches!(socket.read(&mut [0]).await, Ok(1..)), "it is closed");
    }
    assert!(secured.serves(None).await);
}

/// Takes and gives back locks over one connection, or over a new one each time, until it is told to end.
async fn load(secured: Arc<Secured>, number: usize, over: Arc<AtomicBool>, done: Arc<AtomicU64>) {
    let name = format!("a{number}");
    let kept = secured.caller(None).await.expect("a connection");
    while !over.load(Ordering::Relaxed) {
        let caller = match number % 2 {
            0 => kept.clone(),
            _ => secured.caller(None).await.expect("a connection"),
        };
        let lease = caller.acquire(ask("jobs", &name)).await.expect("it is free");
        caller.release(&lease).await.expect("it is held");
        done.fetch_add(1, Ordering::Relaxed);
    }
}

// G159
#[tokio::test(flavor = "multi_thread")]
async fn certificates_change_under_load_and_no_call_fails() {
    let secured = Arc::new(Secured::start(Access::default(), ClientAuth::None).await);
    let (over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..6)
        .map(|number| tokio::spawn(load(secured.clone(), number, over.clone(), done.clone())))
        .collect();
    for _ in 0..20 {
        let files = secured.authority.server().write(secured.folder.path(), "server");
        secured.tls.reload().expect("good files");
        let shown = std::fs::read(files.certificate).expect("the file");
        let stream = secured.shake(&BOTH, &[b"h2"]).await.expect("a handshake");
        let certificates = stream.get_ref().1.peer_certificates().expect("a certificate");
        assert_eq!(certificates[0], CertificateDer::from_pem_slice(&shown).expect("PEM"));
        let before = done.load(Ordering::Relaxed);
        until("calls go on", async || done.load(Ordering::Relaxed) > before + 5).await;
    }
    over.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.expect("no call failed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_make_no_tls_are_refused_and_the_old_ones_stay() {
    let secured = Secured::start(Access::default(), ClientAuth::None).await;
    let folder = secured.folder.path();
    let other = secured.authority.server();
    let good = secured.authority.server();
    for (certificate, key) in [
        ("", good.key.as_str()),
        ("no PEM", &good.key),
        (&good.certificate, ""),
        (&good.certificate, &other.key),
    ] {
        file(folder, "server.pem", certificate);
        file(folder, "server.key", key);
        let refused = secured.tls.reload().expect_err("no pair").to_string();
        assert!(refused.contains("server."), "it names the file: {refused}");
        assert!(secured.serves(None).await);
    }
    std::fs::remove_file(folder.join("server.pem")).expect("a file");
    assert!(secured.tls.reload().is_err());
    assert!(secured.serves(None).await);
    good.write(folder, "server");
    secured.tls.reload().expect("a pair");
    assert!(secured.serves(None).await);
}
