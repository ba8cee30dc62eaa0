//! Which servers a command trusts, and what it says where one side speaks TLS and the other does not.

use std::path::{Path, PathBuf};
use std::process::Output;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;

use crate::cli::program::{asking, run, text};
use crate::cli::server::Server;

/// A certificate and its key, in files.
struct Own {
    params: CertificateParams,
    key: KeyPair,
    certificate: PathBuf,
    key_file: PathBuf,
}

/// What `openssl req -x509` makes: a certificate of a CA, signed by itself, for this host.
fn of_openssl(host: &str) -> CertificateParams {
    let mut params = CertificateParams::new([host.to_owned()]).expect("a host");
    params.distinguished_name.push(DnType::CommonName, host);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

/// Writes it into a folder, signed by another one or by itself.
fn written(folder: &Path, name: &str, params: CertificateParams, issuer: Option<&Own>) -> Own {
    let key = KeyPair::generate().expect("a key");
    let signed = match issuer {
        Some(issuer) => params.signed_by(&key, &Issuer::from_params(&issuer.params, &issuer.key)),
        None => params.self_signed(&key),
    };
    let file = |end: &str, pem: String| {
        let path = folder.join(format!("{name}.{end}"));
        std::fs::write(&path, pem).expect("written");
        path
    };
    let certificate = file("pem", signed.expect("a certificate").pem());
    let key_file = file("key", key.serialize_pem());
    Own {
        params,
        key,
        certificate,
        key_file,
    }
}

/// A server that presents this certificate.
fn server(home: &TempDir, own: &Own) -> Server {
    let config = format!(
        "[tls]\ncertificate = {:?}\nkey = {:?}\nlisteners = \"all\"\n",
        own.certificate, own.key_file
    );
    let file = home.path().join("fencepost.toml");
    std::fs::write(&file, config).expect("written");
    let file = file.to_str().expect("a path");
    Server::start_with(home, &["--config", file, "--listen", "127.0.0.1:0"])
}

fn get(address: &str, arguments: &[&str]) -> Output {
    run(asking(address, [&["get", "default/a"], arguments].concat()))
}

#[track_caller]
fn refused(output: &Output, code: i32, words: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(words), "{words:?}: {said}");
}

/// Asks a server with this certificate by TLS, with this CA file.
fn asked(home: &TempDir, own: &Own, ca: &Path) -> Output {
    let server = server(home, own);
    get(
        &format!("https://{}", server.address),
        &["--ca", ca.to_str().expect("a path")],
    )
}

#[test]
fn a_server_may_present_the_certificate_that_is_named_as_ca() {
    let home = tempfile::tempdir().expect("a directory");
    let own = written(home.path(), "own", of_openssl("127.0.0.1"), None);
    let output = asked(&home, &own, &own.certificate);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    // Also among others in the file.
    let other = written(home.path(), "other", of_openssl("127.0.0.1"), None);
    let both = [&other.certificate, &own.certificate].map(|file| std::fs::read_to_string(file).expect("read"));
    std::fs::write(home.path().join("both.pem"), both.concat()).expect("written");
    let output = asked(&home, &own, &home.path().join("both.pem"));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn a_certificate_that_is_not_named_has_another_host_or_has_expired_is_refused() {
    let home = tempfile::tempdir().expect("a directory");
    let own = written(home.path(), "own", of_openssl("127.0.0.1"), None);
    let other = written(home.path(), "other", of_openssl("127.0.0.1"), None);
    refused(&asked(&home, &own, &other.certificate), 1, "is that of a CA");
    // The name is its issuer's own, and it is another certificate of a CA that it has signed.
    let signed = written(home.path(), "signed", of_openssl("127.0.0.1"), Some(&other));
    refused(&asked(&home, &signed, &other.certificate), 1, "is that of a CA");
    let elsewhere = written(home.path(), "elsewhere", of_openssl("other.example"), None);
    refused(
        &asked(&home, &elsewhere, &elsewhere.certificate),
        1,
        "not valid for name",
    );
    let mut expired = of_openssl("127.0.0.1");
    expired.not_after = date_time_ymd(2020, 1, 1);
    let expired = written(home.path(), "expired", expired, None);
    refused(&asked(&home, &expired, &expired.certificate), 1, "expired");
    let mut nameless = of_openssl("127.0.0.1");
    nameless.subject_alt_names.clear();
    let nameless = written(home.path(), "nameless", nameless, None);
    refused(&asked(&home, &nameless, &nameless.certificate), 1, "names no host");
    // What a CA has signed is trusted by its CA alone.
    let mut leaf = of_openssl("127.0.0.1");
    leaf.is_ca = IsCa::NoCa;
    let leaf = written(home.path(), "leaf", leaf, Some(&other));
    let output = asked(&home, &leaf, &other.certificate);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    refused(&asked(&home, &leaf, &own.certificate), 1, "no CA certificate");
}

#[test]
fn an_error_says_which_side_speaks_tls() {
    let home = tempfile::tempdir().expect("a directory");
    let own = written(home.path(), "own", of_openssl("127.0.0.1"), None);
    let ca = own.certificate.to_str().expect("a path");
    let encrypted = server(&home, &own);
    refused(&get(&encrypted.address, &[]), 123, "write https:// before the address");
    let plain = tempfile::tempdir().expect("a directory");
    let plain = Server::start(&plain);
    let address = format!("https://{}", plain.address);
    refused(&get(&address, &["--ca", ca]), 123, "without https://");
    let key = home.path().join("encrypted.key");
    std::fs::write(
        &key,
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
    )
    .expect("written");
    let key = key.to_str().expect("a path");
    let output = get(
        &format!("https://{}", encrypted.address),
        &["--ca", ca, "--cert", ca, "--key", key],
    );
    refused(&output, 1, "the key is encrypted");
}
