//! Tokens by the thousand that nobody signed.

use std::time::Duration;

use fencepost::api::proto::GetLockRequest;
use tokio_util::sync::CancellationToken;

use super::fixture::{Attacker, Client, NAMESPACE, runtime, start, work};
use super::signer::{Signer, claims, jwks};

const CONNECTIONS: usize = 8;
/// How many forged tokens each connection shows at a time.
const AT_ONCE: usize = 200;
const TIME: Duration = Duration::from_secs(4);

// G154
#[test]
fn forged_tokens_hold_nobody_else_up() {
    let _alone = super::alone();
    let home = tempfile::tempdir().expect("a directory");
    let forger = Signer::es256("one");
    jwks(home.path(), &[&Signer::es256("one")]);
    let server = start(
        &home,
        &format!(
            "{}\n[auth.jwt]\njwks_file = \"jwks.json\"\nissuer = \"https://issuer.example\"\naudiences = [\"fencepost\"]\n",
            super::fixture::bearers(&["normal"])
        ),
    );
    runtime().block_on(async {
        let over = CancellationToken::new();
        let floods = (0..CONNECTIONS).map(|connection| {
            let tokens = (0..AT_ONCE).map(|number| forger.token(&claims(&format!("{connection}-{number}"))));
            let (tokens, address, over) = (tokens.collect::<Vec<_>>(), server.address.clone(), over.clone());
            tokio::spawn(async move { flood(&address, tokens, &over).await })
        });
        let floods: Vec<_> = floods.collect();
        let normal = Client::connect(&server.address, Some("normal")).await;
        let fared = work(&normal, TIME).await;
        over.cancel();
        let mut refused = 0;
        for flood in floods {
            refused += flood.await.expect("no panic");
        }
        println!("{refused} forged tokens were refused beside it");
        assert!(refused >= CONNECTIONS * AT_ONCE, "{refused}");
        fared.well();
    });
}

/// Shows forged tokens over one connection until it is over. Answers how many were refused.
async fn flood(address: &str, tokens: Vec<String>, over: &CancellationToken) -> usize {
    let ask = GetLockRequest {
        namespace: NAMESPACE.into(),
        name: "a".into(),
    };
    let mut refused = 0;
    let attacker = Attacker::connect(address, None, 65_535).await;
    while !over.is_cancelled() {
        let mut calls = Vec::new();
        for token in &tokens {
            let call = attacker
                .showing(token)
                .call("/fencepost.v1.LockService/GetLock", &ask)
                .await;
            calls.push(call.expect("a connection"));
        }
        for call in calls {
            let answer = call.await.expect("an answer");
            assert_eq!(answer.headers().get("grpc-status").expect("a refusal"), "16");
            refused += 1;
        }
    }
    refused
}

impl Attacker {
    /// The same connection with another token.
    fn showing(&self, token: &str) -> Self {
        self.with_authorization(&format!("Bearer {token}"))
    }
}
