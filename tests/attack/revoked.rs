//! Tokens that were taken away while something was in the way.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use sha2::{Digest, Sha256};
use tonic::Code;

use super::fixture::{Client, PATIENCE, ask, runtime, start};
use super::server::{Server, until};

/// Within which time a token that was taken away must be refused, once its file can be read.
const SOON: Duration = Duration::from_secs(10);

fn line(name: &str) -> String {
    let hash = Sha256::digest(format!("secret-{name}"));
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{name}:{digits}\n")
}

const READS_A_FILE: &str = "[auth]\nbearer_file = \"bearers\"\n[[auth.rules]]\nidentities = [\"token:*\"]\n\
    namespaces = [\"*\"]\nverbs = [\"acquire\", \"read\"]\n";

fn bearers(home: &Path, names: &[&str]) {
    let lines: String = names.iter().map(|name| line(name)).collect();
    fs::write(home.join("bearers.new"), lines).expect("a file");
    fs::rename(home.join("bearers.new"), home.join("bearers")).expect("a file");
}

/// How many descriptors a server may have open; answers how many it might before.
fn descriptors(server: &Server, most: Option<u64>) -> Option<u64> {
    let id = Pid::from_raw(server.id().cast_signed());
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let before = prlimit(
        id,
        Resource::Nofile,
        Rlimit {
            current: most,
            maximum: limit.maximum,
        },
    );
    before.expect("a child's limits can be set").current
}

// G152a
#[test]
fn a_token_is_refused_though_its_file_could_not_be_read_when_it_changed() {
    let _alone = super::alone();
    let home = tempfile::tempdir().expect("a directory");
    bearers(home.path(), &["stays", "goes"]);
    let server = start(&home, READS_A_FILE);
    runtime().block_on(async {
        let (stays, goes) = (
            Client::connect(&server.address, Some("stays")).await,
            Client::connect(&server.address, Some("goes")).await,
        );
        for (known, lock) in [(&stays, "a"), (&goes, "b")] {
            known.acquire(ask(lock, Duration::ZERO)).await.expect("known");
        }
        // It can open nothing more, as when a crowd has taken all descriptors.
        let before = descriptors(&server, Some(3));
        bearers(home.path(), &["stays"]);
        until("it says that it cannot read", || {
            server.said("Too many open files").then_some(())
        });
        descriptors(&server, before);
        let begun = Instant::now();
        loop {
            let lock = format!("b{}", begun.elapsed().as_micros());
            match goes.acquire(ask(&lock, Duration::ZERO)).await {
                Err(status) if status.code() == Code::Unauthenticated => break,
                answer => assert!(begun.elapsed() < SOON, "it still counts: {answer:?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        println!("refused {:?} after the file could be read", begun.elapsed());
        stays.acquire(ask("c", Duration::ZERO)).await.expect("it still counts");
    });
}

#[test]
fn who_waits_with_a_token_that_was_taken_away_is_not_granted() {
    let _alone = super::alone();
    let home = tempfile::tempdir().expect("a directory");
    bearers(home.path(), &["stays", "goes"]);
    let server = start(&home, READS_A_FILE);
    runtime().block_on(async {
        let stays = Client::connect(&server.address, Some("stays")).await;
        let goes = Client::connect(&server.address, Some("goes")).await;
        let held = stays.acquire(ask("a", Duration::ZERO)).await.expect("it is free");
        let waiter = tokio::spawn(async move { goes.acquire(ask("a", PATIENCE)).await });
        let next = stays.clone();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let next = tokio::spawn(async move { next.acquire(ask("a", PATIENCE)).await });
        bearers(home.path(), &["stays"]);
        until("the change is taken up", || {
            server.said("configuration is in force").then_some(())
        });
        stays.release(&held.lease_id).await.expect("it is held");
        let refused = waiter.await.expect("no panic").expect_err("it was revoked");
        assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
        next.await.expect("no panic").expect("it is next");
    });
}
