//! Certificates, bearer tokens, rules and limits.

use std::fmt::Write;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::driver::{Client, PATIENCE};
use crate::server::{Certificates, Server};

/// For an error that no retry can mend, on a busy machine.
const SOON: Duration = Duration::from_secs(3);

pub fn wrong_authority(client: &Client) {
    let (right, wrong) = (Certificates::make(), Certificates::make());
    let server = Server::with(&right.config());
    let address = format!("https://{}", server.address);
    let mut driver = client.start_with(&address, &[("FENCEPOST_CA_FILE", &wrong.authority())]);
    let begin = Instant::now();
    driver.acquire("a", 10_000, 3000);
    let failed = driver.failed(PATIENCE, "a").1;
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "it took {:?}",
        begin.elapsed()
    );
    assert_eq!(failed["kind"], "unavailable", "{failed}");
    let mut driver = client.start_with(&address, &[("FENCEPOST_CA_FILE", &right.authority())]);
    driver.hold("a", 3000);
    sleep(Duration::from_secs(4));
    assert!(driver.check("a").is_some());
    driver.release("a");
}

/// What no repetition can mend: a certificate that is refused, and TLS against plain.
pub fn final_tls(client: &Client) {
    let (right, wrong) = (Certificates::make(), Certificates::make());
    let (secure, plain) = (Server::with(&right.config()), Server::memory());
    let cases = [
        (format!("https://{}", secure.address), wrong.authority()),
        (format!("https://{}", plain.address), right.authority()),
        (secure.address.clone(), String::new()),
    ];
    for (address, authority) in cases {
        let mut driver = client.start_with(&address, &[("FENCEPOST_CA_FILE", &authority)]);
        driver.acquire("a", 10_000, 60_000);
        let (_, failed) = driver.failed(Duration::from_secs(10), "a");
        assert_eq!(failed["kind"], "unavailable", "{address}: {failed}");
    }
}

/// The line of a bearer file for a token, named by its first letter.
fn line(token: &str) -> String {
    let hash = Sha256::digest(token).iter().fold(String::new(), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    });
    format!("{}:{hash}\n", &token[..1])
}

const RULES: &str = "[auth]\nbearer_file = \"bearers\"\n[[auth.rules]]\nidentities = [\"token:a\", \"token:b\"]\n\
    namespaces = [\"*\"]\nverbs = [\"acquire\", \"read\", \"admin\"]\n[[auth.rules]]\nidentities = [\"token:r\"]\n\
    namespaces = [\"*\"]\nverbs = [\"read\"]\n[namespaces.default]\n";
const TOKENS: [&str; 3] = ["a-token-of-many-bits", "b-token-of-many-bits", "r-token-of-many-bits"];

/// A server with these tokens, over TLS.
fn server(certificates: &Certificates) -> Server {
    let lines: String = TOKENS.iter().map(|token| line(token)).collect();
    let config = certificates.config() + RULES;
    let mut server = Server::with_files(&config, &[("bearers", &lines)]);
    let plain = server.address.clone();
    server.address = format!("https://{plain}");
    let token = server.write("cli-token", TOKENS[0]);
    server
        .environment
        .push(("FENCEPOST_CA_FILE".into(), certificates.authority()));
    server.environment.push(("FENCEPOST_BEARER_FILE".into(), token));
    server
}

pub fn bearer(client: &Client) {
    let certificates = Certificates::make();
    let server = server(&certificates);
    let file = server.write("token", TOKENS[0]);
    let authority = certificates.authority();
    let environment = [
        ("FENCEPOST_CA_FILE", authority.as_str()),
        ("FENCEPOST_BEARER_FILE", file.as_str()),
    ];
    let mut driver = client.start_with(&server.address, &environment);
    let token = driver.hold("a", 3000);
    driver.release("a");
    // A lease belongs to its identity: what follows is the new one's.
    server.write("token", TOKENS[1]);
    server.write("cli-token", TOKENS[1]);
    server.write("bearers", &line(TOKENS[1]));
    sleep(Duration::from_secs(4));
    assert!(driver.hold("b", 3000) > 0);
    sleep(Duration::from_secs(4));
    assert!(
        driver.check("b").is_some(),
        "its stream still shows the token {token}'s credentials"
    );
    driver.release("b");
}

/// The token of an identity is replaced in its file, and the one before is revoked a little earlier.
pub fn replaced_token(client: &Client) {
    let of_service = |token: &str| line(token).replacen(&token[..1], "svc", 1);
    let config = RULES.replace("\"token:a\", \"token:b\"", "\"token:svc\", \"token:b\"");
    let certificates = Certificates::make();
    let files = [("bearers", &*of_service(TOKENS[0]))];
    let server = Server::with_files(&(certificates.config() + &config), &files);
    let file = server.write("token", TOKENS[0]);
    let authority = certificates.authority();
    let environment = [
        ("FENCEPOST_CA_FILE", authority.as_str()),
        ("FENCEPOST_BEARER_FILE", file.as_str()),
    ];
    let address = format!("https://{}", server.address);
    let mut driver = client.start_with(&address, &environment);
    let first = driver.hold("e", 20_000);
    driver.tell("observe", "observer", json!({"name": "e"}));
    driver.event("observer", "leader");
    for number in 0..20 {
        let fields = json!({"name": "e", "ttl": 20_000, "wait": 60_000});
        driver.tell("acquire", &format!("w{number}"), fields);
    }
    sleep(Duration::from_secs(1));
    server.write("bearers", &of_service(TOKENS[1]));
    sleep(Duration::from_secs(3));
    server.write("token", TOKENS[1]);
    sleep(Duration::from_secs(4));
    assert_eq!(driver.check("e"), Some(first));
    driver.release("e");
    driver.wait(PATIENCE, "the next leader", |event| {
        event["id"] == "observer" && event["token"].as_u64().is_some_and(|token| token > first)
    });
    let waits: Vec<String> = (0..20).map(|number| format!("w{number}")).collect();
    for _ in 0..waits.len() {
        let granted = driver.until(PATIENCE, "the next grant", |driver| {
            let is_in =
                |id: &&String| !driver.all(id, &["granted"]).is_empty() && driver.all(id, &["released"]).is_empty();
            waits.iter().find(is_in).cloned()
        });
        driver.release(&granted);
    }
    assert!(driver.all("observer", &["failed"]).is_empty());
}

pub fn denied(client: &Client) {
    let certificates = Certificates::make();
    let server = server(&certificates);
    let authority = certificates.authority();
    for (token, kind) in [(TOKENS[2], "denied"), ("unknown", "unauthenticated")] {
        let file = server.write("token", token);
        let environment = [
            ("FENCEPOST_CA_FILE", authority.as_str()),
            ("FENCEPOST_BEARER_FILE", file.as_str()),
        ];
        let mut driver = client.start_with(&server.address, &environment);
        driver.acquire("a", 3000, 15_000);
        let begin = Instant::now();
        driver.fails_as("a", kind);
        assert!(begin.elapsed() < SOON, "it took {:?}", begin.elapsed());
    }
}

pub fn overloaded(client: &Client) {
    /// Longer than all steps take beside other scenarios, in ms: a virtual machine is slow with its first refusal.
    const LONG: u64 = 60_000;
    let server = Server::with("[namespaces.default]\nwaiter_limit = 1\n");
    let (mut driver, mut holder) = (client.start(&server.address), client.start(&server.address));
    holder.hold("busy", LONG);
    holder.hold("other", LONG);
    holder.tell("acquire", "first", json!({"name": "busy", "ttl": LONG, "wait": LONG}));
    server.until_waiters("busy", 1);
    driver.acquire("other", LONG, LONG.cast_signed());
    sleep(Duration::from_millis(1500));
    assert!(driver.all("other", &["failed"]).is_empty(), "it gave up");
    holder.release("busy");
    holder.granted("first");
    holder.release("other");
    driver.granted("other");
    driver.release("other");
    holder.release("first");
    server.until_all_free(PATIENCE);
}

/// Two addresses, because another server would not help: a queue is the lock's, and not the server's.
pub fn queue_full(client: &Client) {
    let (server, other) = (
        Server::with("[namespaces.default]\nqueue_limit = 2\n"),
        Server::memory(),
    );
    let both = format!("{},{}", server.address, other.address);
    let (mut driver, mut holder) = (client.start(&both), client.start(&server.address));
    holder.hold("a", 20_000);
    holder.tell("acquire", "w", json!({"name": "a", "ttl": 10_000, "wait": 20_000}));
    server.until_waiters("a", 1);
    driver.tell(
        "acquire",
        "patient",
        json!({"name": "a", "ttl": 10_000, "wait": 20_000}),
    );
    driver.acquire("a", 10_000, 1500);
    assert_eq!(driver.fails_as("a", "overloaded")["reason"], "QUEUE_FULL");
    assert!(driver.all("patient", &["failed"]).is_empty(), "it gave up");
    holder.tell("cancel", "w", json!({}));
    holder.fails_as("w", "cancelled");
    server.until_waiters("a", 1);
    holder.release("a");
    driver.granted("patient");
    assert_eq!(server.holders("a"), 1);
    driver.release("patient");
    server.until_all_free(PATIENCE);
}
