//! The console over TLS.

use std::fs;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use common::ports::free_port;

use crate::fixture::OPEN;
use crate::server::Server;

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_the_certificate_decides_about_the_name_and_plain_text_is_refused() {
    let home = tempfile::tempdir().expect("a directory");
    let own = rcgen::generate_simple_self_signed(["locks.example".to_owned()]).expect("a certificate");
    fs::write(home.path().join("c.pem"), own.cert.pem()).expect("a file");
    fs::write(home.path().join("k.pem"), own.signing_key.serialize_pem()).expect("a file");
    let tls = "[tls]\ncertificate = 'c.pem'\nkey = 'k.pem'\nlisteners = 'tcp'\n";
    fs::write(home.path().join("f.toml"), format!("{tls}{OPEN}")).expect("a file");
    let console = format!("127.0.0.1:{}", free_port());
    let listen = ["--listen", "127.0.0.1:0", "--console-listen", &console];
    let server = Server::start_with(&home, &[&["--config", "f.toml"], listen.as_slice()].concat());
    assert!(server.said(&format!("console on https://{console}")));

    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(home.path().join("c.pem")).expect("a certificate");
    roots.add(certificate).expect("a root");
    let mut stream = connect(roots, &console).await;
    let request = "POST /fencepost.v1.AdminService/ListNamespaces HTTP/1.1\r\nHost: locks.example\r\nContent-Type: application/json\r\n\
                   Content-Length: 2\r\nConnection: close\r\n\r\n{}";
    stream.write_all(request.as_bytes()).await.expect("a request");
    let mut answer = Vec::new();
    // The server may close the connection without the alert that ends TLS.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("\"default\""),
        "{answer}"
    );

    let mut plain = TcpStream::connect(&console).await.expect("the port");
    plain.write_all(request.as_bytes()).await.expect("a request");
    let mut answer = Vec::new();
    // A TLS alert, or nothing.
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
}

async fn connect(roots: RootCertStore, address: &str) -> TlsStream<TcpStream> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut client = client
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = TcpStream::connect(address).await.expect("the port");
    let name = ServerName::try_from("locks.example").expect("a name");
    let connected = TlsConnector::from(Arc::new(client)).connect(name, stream).await;
    let connected = connected.expect("a handshake");
    assert_eq!(connected.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    connected
}
