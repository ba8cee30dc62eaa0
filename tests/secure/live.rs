//! What a running program takes up of its files, and what its metrics tell of those whom it turned away.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fencepost::api::proto::ForceReleaseRequest;
use fencepost::api::proto::admin_service_client::AdminServiceClient;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tonic::Status;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::asks::reason;
use super::authority::{Authority, UnverifiedToken, file};
use super::fixture::{Caller, ask, detail, until};
use super::program::{Program, config};
use super::signer::{Signer, claims, jwks};

pub const APPLIED: &str = "fencepost_config_reloads_total ";
pub const FAILED: &str = "fencepost_config_reload_failed ";

/// How to reach a program and what it shows.
#[derive(Clone)]
pub struct Reach {
    port: String,
    authority: String,
}

impl Reach {
    pub fn of(program: &Program) -> Self {
        Self {
            port: program.port.clone(),
            authority: program.authority.pem.clone(),
        }
    }

    /// A new connection, as whoever this is.
    pub async fn caller(&self, bearer: &str, own: Option<&UnverifiedToken>) -> Result<Caller, tonic::transport::Error> {
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.authority));
        if let Some(own) = own {
            tls = tls.identity(Identity::from_pem(&own.certificate, &own.key));
        }
        let endpoint = Endpoint::from_shared(format!("https://localhost:{}", self.port))?;
        let channel = endpoint.tls_config(tls)?.connect().await?;
        let bearer = (!bearer.is_empty()).then(|| bearer.to_owned());
        Ok(Caller { channel, bearer })
    }

    pub async fn token(&self) -> Caller {
        self.caller("the-token", None).await.expect("a connection")
    }

    /// Whether a client with this certificate is served.
    pub async fn serves(&self, own: &UnverifiedToken) -> bool {
        // A refusal may reach the client with its first call alone.
        match self.caller("", Some(own)).await {
            Ok(caller) => caller.inspect("default", "a").await.is_ok(),
            Err(_) => false,
        }
    }
}

/// A blocking connection over TLS, which has shaken hands.
fn shaken(port: &str, authority: &str, protocol: &[u8]) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(authority.as_bytes()).expect("PEM");
    roots.add(authority).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("settings");
    let socket = TcpStream::connect(format!("127.0.0.1:{port}")).expect("the port");
    let mut stream = StreamOwned::new(connection, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).expect("a handshake");
    }
    stream
}

/// The certificate that a port shows.
pub fn shown(port: &str, authority: &str, protocol: &[u8]) -> Vec<u8> {
    let stream = shaken(port, authority, protocol);
    stream.conn.peer_certificates().expect("a certificate")[0].to_vec()
}

impl Program {
    /// What its metrics say, over TLS and without a certificate.
    fn metrics(&self) -> String {
        let mut stream = shaken(&self.watch_port, &self.authority.pem, b"http/1.1");
        let ask = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(ask.as_bytes()).expect("a request");
        let mut answer = Vec::new();
        // The server may leave without a farewell.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).expect("text")
    }

    /// The value of a series.
    pub fn figure(&self, series: &str) -> Option<f64> {
        let metrics = self.metrics();
        let line = metrics.lines().find_map(|line| line.strip_prefix(series))?;
        line.trim().parse().ok()
    }

    pub async fn shows(&self, series: &str, at_least: f64) {
        until(&format!("{series} is {at_least}"), async || {
            self.figure(series).is_some_and(|value| value >= at_least)
        })
        .await;
    }

    /// Another configuration in its file.
    pub fn configure(&self, change: impl FnOnce(String) -> String) {
        file(self.folder(), "f.toml", &change(config(self.folder())));
    }

    fn hang_up(&self) {
        let sent = Command::new("kill")
            .args(["-s", "HUP", &self.id().to_string()])
            .status();
        assert!(sent.expect("kill runs").success());
    }
}

// G159
#[tokio::test(flavor = "multi_thread")]
async fn certificates_in_changed_files_are_shown_within_moments_and_no_call_fails() {
    let program = Program::start();
    let (over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers = (0..4).map(|number| {
        let (reach, over, done) = (Reach::of(&program), over.clone(), done.clone());
        tokio::spawn(async move {
            let kept = reach.token().await;
            while !over.load(Ordering::Relaxed) {
                // Every second one makes a new connection each time.
                let caller = if number % 2 == 0 {
                    kept.clone()
                } else {
                    reach.token().await
                };
                caller.inspect("default", "ci/a").await.expect("served");
                done.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    for year in 2100..2103 {
        let signed = program.authority.server_until(year);
        signed.write(program.folder(), "server");
        let fresh = CertificateDer::from_pem_slice(signed.certificate.as_bytes()).expect("PEM");
        for (port, protocol) in [(&program.port, &b"h2"[..]), (&program.watch_port, b"http/1.1")] {
            until("it is shown", async || {
                shown(port, &program.authority.pem, protocol) == *fresh
            })
            .await;
        }
        let expiry = fencepost::auth::certificate::expiry(&fresh).expect("an expiry");
        let expiry = format!("fencepost_certificate_expiry_timestamp_seconds {expiry}\n");
        until("its expiry is shown", async || program.metrics().contains(&expiry)).await;
        let before = done.load(Ordering::Relaxed);
        until("calls go on", async || done.load(Ordering::Relaxed) > before + 5).await;
    }
    over.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.expect("no call failed");
    }
    assert!(program.figure(APPLIED) >= Some(3.0));
}

// G152b
#[tokio::test(flavor = "multi_thread")]
async fn other_authorities_of_clients_count_from_the_next_connection_on() {
    let program = Program::start();
    let (reach, uri) = (Reach::of(&program), "spiffe://example.org/ops");
    let old = program.authority.client(uri);
    let kept = reach.caller("", Some(&old)).await.expect("a connection");
    kept.inspect("default", "a").await.expect("served");
    let other = Authority::new("the next authority");
    let new = other.client(uri);
    assert!(!reach.serves(&new).await);
    file(program.folder(), "ca.pem", &other.pem);
    until("it is served", async || reach.serves(&new).await).await;
    assert!(!reach.serves(&old).await);
    kept.inspect("default", "a").await.expect("an open connection stays");
}

#[track_caller]
fn denied(answer: Result<impl std::fmt::Debug, Status>, why: &str) {
    assert_eq!(reason(&answer.expect_err(why)), why);
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_and_limits_change_at_a_hang_up_for_the_calls_after_it() {
    let program = Program::start();
    let caller = Reach::of(&program).token().await;
    let lease = caller.acquire(ask("default", "ci/a")).await.expect("allowed");
    denied(caller.acquire(ask("default", "ci/b")).await, "OVERLOADED");
    denied(caller.acquire(ask("default", "all/a")).await, "PERMISSION_DENIED");
    program.configure(|text| {
        text.replace("\"ci/\"", "\"all/\"")
            .replace("lease_limit = 1", "lease_limit = 3")
    });
    program.hang_up();
    program.shows(APPLIED, 1.0).await;
    for name in ["all/a", "all/b"] {
        caller.acquire(ask("default", name)).await.expect("allowed now");
    }
    // What counted before counts on.
    denied(caller.acquire(ask("default", "all/c")).await, "OVERLOADED");
    denied(caller.release(&lease).await, "PERMISSION_DENIED");
    program.configure(|text| {
        let hash = text
            .split("ci:")
            .nth(1)
            .and_then(|rest| rest.get(..64))
            .expect("a hash")
            .to_owned();
        text.replace(&hash, &"0".repeat(64))
    });
    program.hang_up();
    until("the token is not accepted", async || {
        let looked = caller.inspect("default", "ci/a").await;
        looked.is_err_and(|status| reason(&status) == "UNAUTHENTICATED")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_and_keys_in_changed_files_count_within_moments() {
    let program = Program::start();
    let (one, two) = (Signer::es256("one"), Signer::ed25519("two"));
    jwks(program.folder(), &[&one]);
    file(program.folder(), "bearers", "# nobody yet\n");
    let folder = program.folder().display().to_string();
    program.configure(|text| {
        let rule = "identities = [\"token:ci\"]";
        let everybody = "identities = [\"token:*\", \"jwt:*\"]";
        let text = text.replace(rule, everybody).replace("[auth]", &format!("[auth]\nbearer_file = \"{folder}/bearers\""));
        format!(
            "{text}\n[auth.jwt]\njwks_file = \"{folder}/jwks.json\"\nissuer = \"https://issuer.example\"\naudiences = [\"fencepost\"]\n"
        )
    });
    program.shows(APPLIED, 1.0).await;
    let caller = Reach::of(&program).token().await;
    let (signed, later) = (
        caller.showing(&one.token(&claims("a"))),
        caller.showing(&two.token(&claims("a"))),
    );
    let secret = caller.showing("secret-new");
    signed.inspect("default", "ci/a").await.expect("a key of the file");
    for unknown in [&later, &secret] {
        denied(unknown.inspect("default", "ci/a").await, "UNAUTHENTICATED");
    }
    jwks(program.folder(), &[&two]);
    // Of what `sha256sum` makes of the secret.
    let hash = <sha2::Sha256 as sha2::Digest>::digest("secret-new");
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    file(program.folder(), "bearers", &format!("new:{digits}\n"));
    for known in [&later, &secret] {
        until("it is accepted", async || {
            known.inspect("default", "ci/a").await.is_ok()
        })
        .await;
    }
    denied(signed.inspect("default", "ci/a").await, "UNAUTHENTICATED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_no_good_is_refused_visibly_until_it_is_mended() {
    let program = Program::start();
    let good = fs::read_to_string(program.folder().join("server.key")).expect("the key");
    file(program.folder(), "server.key", "no PEM");
    program.shows(FAILED, 1.0).await;
    program.logged("the changed configuration is rejected");
    Reach::of(&program)
        .token()
        .await
        .inspect("default", "ci/a")
        .await
        .expect("served");
    file(program.folder(), "server.key", &good);
    until("it is mended", async || program.figure(FAILED) == Some(0.0)).await;
    // A file that only the refused configuration names is looked at too.
    let later = program.folder().join("later.pem");
    program.configure(|text| text.replace("ca.pem", "later.pem"));
    program.shows(FAILED, 1.0).await;
    fs::write(later, &program.authority.pem).expect("the file");
    until("it is there", async || program.figure(FAILED) == Some(0.0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_turned_away_is_counted_and_the_server_serves_on() {
    let program = Program::start();
    let reach = Reach::of(&program);
    for cause in ["failed", "timeout", "evicted"] {
        let series = format!("fencepost_handshakes_refused_total{{cause=\"{cause}\"}}");
        assert_eq!(program.figure(&series), Some(0.0), "{cause}");
    }
    // In plain text, on either port.
    for port in [&program.port, &program.watch_port] {
        let mut plain = TcpStream::connect(format!("127.0.0.1:{port}")).expect("the port");
        plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("bytes");
        let _ = plain.read_to_end(&mut Vec::new());
    }
    let stranger = Authority::new("somebody else").client("spiffe://example.org/ops");
    assert!(!reach.serves(&stranger).await);
    program
        .shows("fencepost_handshakes_refused_total{cause=\"failed\"}", 3.0)
        .await;

    let caller = reach.token().await;
    let nobody = Caller {
        bearer: None,
        ..caller.clone()
    };
    denied(nobody.inspect("default", "ci/a").await, "UNAUTHENTICATED");
    denied(
        caller.showing("forged").inspect("default", "ci/a").await,
        "UNAUTHENTICATED",
    );
    denied(caller.inspect("default", "a").await, "PERMISSION_DENIED");
    caller.acquire(ask("default", "ci/a")).await.expect("allowed");
    let over = caller.acquire(ask("default", "ci/b")).await.expect_err("one alone");
    assert_eq!(detail(&over, "limit"), "leases");
    for (series, value) in [
        ("fencepost_unauthenticated_total{cause=\"missing\"}", 1.0),
        ("fencepost_unauthenticated_total{cause=\"invalid\"}", 1.0),
        ("fencepost_unauthenticated_total{cause=\"expired\"}", 0.0),
        (
            "fencepost_quota_refusals_total{limit=\"leases\",namespace=\"default\",scope=\"identity\"}",
            1.0,
        ),
        (
            "fencepost_requests_total{method=\"GetLock\",namespace=\"default\",reason=\"PERMISSION_DENIED\"}",
            1.0,
        ),
        (
            "fencepost_requests_total{method=\"GetLock\",namespace=\"unknown\",reason=\"UNAUTHENTICATED\"}",
            2.0,
        ),
    ] {
        assert_eq!(program.figure(series), Some(value), "{series}");
    }
    caller.inspect("default", "ci/a").await.expect("it serves on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_cut_short_opens_the_server_to_nobody() {
    let program = Program::start();
    let nobody = Reach::of(&program).caller("", None).await.expect("a connection");
    denied(nobody.inspect("default", "ci/a").await, "UNAUTHENTICATED");
    program.configure(|text| {
        let (before, _) = text.split_once("[auth]").expect("a table");
        before.to_owned()
    });
    program.hang_up();
    program.shows(FAILED, 1.0).await;
    let line = program.logged("the changed configuration is rejected");
    assert!(line.contains("auth can only change with a restart"), "{line}");
    denied(nobody.inspect("default", "ci/a").await, "UNAUTHENTICATED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_elsewhere_keeps_no_old_certificate_and_no_revoked_token_in_use() {
    let program = Program::start();
    let folder = program.folder().display().to_string();
    let hash = <sha2::Sha256 as sha2::Digest>::digest("secret-new");
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    file(program.folder(), "bearers", &format!("ci:{digits}\n"));
    program.configure(|text| text.replace("[auth]", &format!("[auth]\nbearer_file = \"{folder}/bearers\"")));
    program.shows(APPLIED, 1.0).await;
    let caller = Reach::of(&program).token().await.showing("secret-new");
    caller.inspect("default", "ci/a").await.expect("known");

    file(program.folder(), "f.toml", "no TOML");
    program.shows(FAILED, 1.0).await;
    let signed = program.authority.server();
    signed.write(program.folder(), "server");
    let fresh = CertificateDer::from_pem_slice(signed.certificate.as_bytes()).expect("PEM");
    until("it is shown", async || {
        shown(&program.port, &program.authority.pem, b"h2") == *fresh
    })
    .await;
    file(program.folder(), "bearers", "# nobody\n");
    until("the token is not accepted", async || {
        let looked = caller.inspect("default", "ci/a").await;
        looked.is_err_and(|status| reason(&status) == "UNAUTHENTICATED")
    })
    .await;
    assert_eq!(program.figure(FAILED), Some(1.0), "the fault is still there");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_level_of_the_log_hides_the_audit() {
    let program = Program::start();
    let own = program.authority.client("spiffe://example.org/ops");
    let ops = Reach::of(&program).caller("", Some(&own)).await.expect("a connection");
    program.configure(|text| format!("{text}\n[log]\nlevel = \"off\"\n"));
    program.shows(APPLIED, 1.0).await;
    let lease = ops.acquire(ask("default", "ci/a")).await.expect("it is free");
    let mut admin = AdminServiceClient::new(ops.channel.clone());
    let force = |name: &str| ForceReleaseRequest {
        namespace: "default".into(),
        name: name.into(),
        fencing_token: lease.fencing_token,
        reason: String::new(),
    };
    admin.force_release(ops.request(force("ci/a"))).await.expect("forced");
    let line = program.logged("fencepost::audit");
    assert!(line.contains("force_release") && line.contains("done"), "{line}");
    // Whatever a caller sends, it is a line of bounded length.
    let long = admin.force_release(ops.request(force(&"x".repeat(20_000)))).await;
    long.expect_err("no such name");
    let line = program.logged("fencepost::audit");
    assert!(line.len() < 3000, "{} bytes", line.len());
}
