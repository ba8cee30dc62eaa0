//! What was taken away counts no more, also where another file is no good at the same moment.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::asks::reason;
use super::authority::{Authority, file};
use super::fixture::{Caller, until};
use super::live::{APPLIED, FAILED, Reach, shown};
use super::program::Program;
use super::signer::{Signer, claims, jwks};

/// A line of a bearer file.
fn line(name: &str) -> String {
    let hash = <sha2::Sha256 as sha2::Digest>::digest(format!("secret-{name}"));
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{name}:{digits}\n")
}

/// Lets a program read the files `bearers` and `jwks.json` of its folder.
async fn reads_files(program: &Program) {
    let folder = program.folder().display().to_string();
    program.configure(|text| {
        let text = text.replace("identities = [\"token:ci\"]", "identities = [\"token:*\", \"jwt:*\"]");
        let text = text.replace("[auth]", &format!("[auth]\nbearer_file = \"{folder}/bearers\""));
        format!(
            "{text}\n[auth.jwt]\njwks_file = \"{folder}/jwks.json\"\nissuer = \"https://issuer.example\"\naudiences = [\"fencepost\"]\n"
        )
    });
    program.shows(APPLIED, 1.0).await;
}

/// Callers that the program knows: by the bearers `stays` and `goes`, and by tokens of each signer.
async fn known_callers(program: &Program, one: &Signer, two: &Signer) -> [Caller; 4] {
    jwks(program.folder(), &[one, two]);
    file(program.folder(), "bearers", &(line("stays") + &line("goes")));
    reads_files(program).await;
    let token = Reach::of(program).token().await;
    let [by_one, by_two] = [one, two].map(|signer| token.showing(&signer.token(&claims("a"))));
    let callers = [
        token.showing("secret-stays"),
        token.showing("secret-goes"),
        by_one,
        by_two,
    ];
    for known in &callers {
        known.inspect("default", "ci/a").await.expect("known");
    }
    callers
}

// G152a
#[tokio::test(flavor = "multi_thread")]
async fn bad_lines_and_bad_keys_keep_no_token_that_is_gone_and_are_named() {
    let program = Program::start();
    let (one, two) = (Signer::es256("one"), Signer::ed25519("two"));
    let [stays, goes, by_one, by_two] = known_callers(&program, &one, &two).await;

    // A line that is none, one that is no text, and one that gives the hash of another to somebody else.
    let stolen = line("stays").replace("stays", "mallory");
    let lines = [
        b"the-very-secret\n\xff\xfe\n".as_slice(),
        line("stays").as_bytes(),
        stolen.as_bytes(),
    ]
    .concat();
    std::fs::write(program.folder().join("bearers"), lines).expect("a file");
    refused(&goes).await;
    let said: Vec<String> = (0..3)
        .map(|_| program.logged("a file cannot be used as it is"))
        .collect();
    for (number, said) in [1, 2, 4].iter().zip(&said) {
        assert!(said.contains(&format!("bearers:{number}: ")), "line {number}: {said}");
        assert!(!said.contains("the-very-secret"), "{said}");
    }
    let state = stays.acquire(super::fixture::ask("default", "ci/who")).await;
    state.expect("still known");
    let held = stays.inspect("default", "ci/who").await.expect("still known");
    assert_eq!(held.holders[0].identity, "token:stays");

    // A key of a kind that nobody knows beside the one that is left.
    let unknown = serde_json::json!({ "kty": "new", "kid": "later" });
    let keys = serde_json::json!({ "keys": [unknown, 7, two.jwk()] });
    file(program.folder(), "jwks.json", &keys.to_string());
    refused(&by_one).await;
    by_two.inspect("default", "ci/a").await.expect("still known");
}

// G152b
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_certificate_keeps_no_withdrawn_authority_in_use() {
    let program = Program::start();
    let (reach, uri) = (Reach::of(&program), "spiffe://example.org/ops");
    let old = program.authority.client(uri);
    assert!(reach.serves(&old).await);
    let other = Authority::new("the next authority");
    let new = other.client(uri);
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    file(program.folder(), "ca.pem", &format!("{broken}{}", other.pem));
    until("the old one is not served", async || !reach.serves(&old).await).await;
    assert!(reach.serves(&new).await);
    program.shows(FAILED, 1.0).await;
}

// G152a
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_none_keep_no_revoked_token_in_use() {
    let program = Program::start();
    let (one, two) = (Signer::es256("one"), Signer::ed25519("two"));
    let [stays, goes, by_one, by_two] = known_callers(&program, &one, &two).await;

    file(program.folder(), "jwks.json", "{");
    file(program.folder(), "bearers", &line("stays"));
    refused(&goes).await;
    program.shows(FAILED, 1.0).await;
    for known in [&stays, &by_one, &by_two] {
        known.inspect("default", "ci/a").await.expect("still known");
    }

    file(program.folder(), "bearers", &("no hash\n".to_owned() + &line("stays")));
    jwks(program.folder(), &[&two]);
    refused(&by_one).await;
    for known in [&stays, &by_two] {
        known.inspect("default", "ci/a").await.expect("still known");
    }
    assert_eq!(program.figure(FAILED), Some(1.0), "the fault is still there");
    let said = program.logged("a file cannot be used as it is");
    assert!(said.contains("jwks.json"), "{said}");
}

/// Waits until nobody knows this caller any more.
async fn refused(caller: &Caller) {
    until("it is not accepted", async || {
        let looked = caller.inspect("default", "ci/a").await;
        looked.is_err_and(|status| reason(&status) == "UNAUTHENTICATED")
    })
    .await;
}

// G152b
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_fits_no_certificate_keeps_no_withdrawn_authority_in_use() {
    let program = Program::start();
    let (reach, uri) = (Reach::of(&program), "spiffe://example.org/ops");
    let old = program.authority.client(uri);
    assert!(reach.serves(&old).await);
    let other = Authority::new("the next authority");
    let new = other.client(uri);
    let before = shown(&program.port, &program.authority.pem, b"h2");
    file(program.folder(), "server.key", &program.authority.server().key);
    file(program.folder(), "ca.pem", &other.pem);
    until("the old one is not served", async || !reach.serves(&old).await).await;
    assert!(reach.serves(&new).await);
    assert_eq!(shown(&program.port, &program.authority.pem, b"h2"), before);
    program.shows(FAILED, 1.0).await;

    file(program.folder(), "ca.pem", "no PEM");
    let signed = program.authority.server();
    signed.write(program.folder(), "server");
    let fresh = CertificateDer::from_pem_slice(signed.certificate.as_bytes()).expect("PEM");
    until("the new pair is shown", async || {
        shown(&program.port, &program.authority.pem, b"h2") == *fresh
    })
    .await;
    assert!(reach.serves(&new).await);
    assert!(!reach.serves(&old).await);
}
