//! What callers within their rights can make the server keep in its memory.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use fencepost::api::proto::{AcquireRequest, GetLockRequest};
use futures::future::join_all;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::fixture::{Attacker, Client, NAMESPACE, PATIENCE, ask, bearers, runtime, start, work};
use super::server::{Server, resident};

const LONG: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const GET_LOCK: &str = "/fencepost.v1.LockService/GetLock";
const KEEP_ALIVE: &str = "/fencepost.v1.LockService/KeepAlive";
/// How long the normal client works beside the attack.
const WORK: Duration = Duration::from_secs(2);

/// As much metadata as a claim may have, so far as the largest owner leaves it.
fn heavy(lock: &str, wait: Duration) -> AcquireRequest {
    let entries = (0..16).map(|number| (format!("{number:02}"), "x".repeat(254)));
    AcquireRequest {
        metadata: entries.collect::<BTreeMap<_, _>>().into_iter().collect(),
        ..ask(lock, wait)
    }
}

fn grown(server: &Server, before: u64) -> u64 {
    resident(server.id()).saturating_sub(before)
}

/// Waits until as many wait for a lock as should.
async fn until_waiting(client: &Client, lock: &str, is_right: impl Fn(u32) -> bool) -> u32 {
    let begun = Instant::now();
    loop {
        let waiting = state(client, lock).await.expect("it may look");
        if is_right(waiting) {
            return waiting;
        }
        assert!(begun.elapsed() < PATIENCE, "{waiting} wait");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn state(client: &Client, lock: &str) -> Result<u32, Status> {
    let ask = GetLockRequest {
        namespace: NAMESPACE.into(),
        name: lock.into(),
    };
    let answer = client.locks.clone().get_lock(client.with_token(ask)).await?;
    Ok(answer.into_inner().lock.expect("a state").waiter_count)
}

// G155
#[test]
fn waiters_with_all_the_metadata_that_they_may_have_fill_their_share_of_memory_and_no_more() {
    const WAITERS: usize = 2500;
    let _alone = super::alone();
    let home = tempfile::tempdir().expect("a directory");
    let limit = "[namespaces.default]\nwaiting_bytes_limit = 8388608\n";
    let server = start(&home, &format!("{}{limit}", bearers(&["attacker", "normal"])));
    runtime().block_on(async {
        let attacker = Client::connect(&server.address, Some("attacker")).await;
        let normal = Client::connect(&server.address, Some("normal")).await;
        attacker.acquire(ask("held", Duration::ZERO)).await.expect("it is free");
        let before = resident(server.id());
        let calls = (0..WAITERS).map(|_| {
            let attacker = attacker.clone();
            tokio::spawn(async move { attacker.acquire(heavy("held", LONG)).await })
        });
        let calls: Vec<_> = calls.collect();
        let refused = || calls.iter().filter(|call| call.is_finished()).count();
        let waiting = until_waiting(&normal, "held", |waiting| waiting as usize + refused() == WAITERS).await;
        let (grown, refused) = (grown(&server, before), refused());
        println!(
            "{waiting} wait, {refused} were refused, the server grew by {} MiB",
            grown / MIB
        );
        // 4 MiB of owners and metadata: one identity has half of what there may be.
        assert!((900..1030).contains(&waiting), "{waiting}");
        assert!(grown < 96 * MIB, "{grown}");
        work(&normal, WORK).await.well();
        let refused = calls
            .into_iter()
            .find(tokio::task::JoinHandle::is_finished)
            .expect("one");
        let refused = refused.await.expect("no panic").expect_err("it is refused");
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("waiting_bytes_limit"), "{refused}");
        // The other half is there for the others.
        let waited = normal.acquire(heavy("held", Duration::from_millis(200))).await;
        assert_eq!(waited.expect_err("it is held").code(), Code::Aborted);
        // Together more than is left: who brings little is not refused for what others bring.
        let little = AcquireRequest {
            metadata: [("m".to_owned(), "m".repeat(400))].into(),
            ..ask("held", Duration::from_millis(200))
        };
        let small = join_all((0..20).map(|_| normal.acquire(little.clone()))).await;
        for waited in small {
            assert_eq!(waited.expect_err("it is held").code(), Code::Aborted);
        }
    });
}

#[test]
fn callers_without_an_identity_may_use_all_waiting_bytes() {
    const WAITERS: u32 = 12;
    let home = tempfile::tempdir().expect("a directory");
    let server = start(&home, "[namespaces.default]\nwaiting_bytes_limit = 65536\n");
    runtime().block_on(async {
        let client = Client::connect(&server.address, None).await;
        client.acquire(ask("held", Duration::ZERO)).await.expect("it is free");
        // 49 kB: more than the half that one identity may use.
        for _ in 0..WAITERS {
            let client = client.clone();
            tokio::spawn(async move { client.acquire(heavy("held", LONG)).await });
        }
        let waiting = until_waiting(&client, "held", |waiting| waiting == WAITERS).await;
        assert_eq!(waiting, WAITERS);
    });
}

// G155
#[test]
fn answers_that_nobody_takes_are_small_however_many_claims_a_lock_has() {
    const CLAIMS: usize = 1000;
    const STALLED: usize = 300;
    let _alone = super::alone();
    let home = tempfile::tempdir().expect("a directory");
    let server = start(&home, &bearers(&["attacker", "normal"]));
    runtime().block_on(async {
        let client = Client::connect(&server.address, Some("attacker")).await;
        client
            .acquire(heavy("crowded", Duration::ZERO))
            .await
            .expect("it is free");
        for _ in 0..CLAIMS {
            let client = client.clone();
            tokio::spawn(async move { client.acquire(heavy("crowded", LONG)).await });
        }
        until_waiting(&client, "crowded", |waiting| waiting as usize == CLAIMS).await;
        let before = resident(server.id());
        let attacker = Attacker::connect(&server.address, Some("attacker"), 0).await;
        let ask = GetLockRequest {
            namespace: NAMESPACE.into(),
            name: "crowded".into(),
        };
        let calls = (0..STALLED).map(|_| attacker.call("/fencepost.v1.LockService/GetLock", &ask));
        let _stalled = join_all(calls).await;
        let normal = Client::connect(&server.address, Some("normal")).await;
        work(&normal, WORK).await.well();
        let grown = grown(&server, before);
        println!("{STALLED} stalled answers: the server grew by {} MiB", grown / MIB);
        assert!(grown < 160 * MIB, "{grown}");
    });
}

#[test]
fn large_beats_without_their_last_byte_fill_the_share_of_kept_leases_and_no_more() {
    const STREAMS: usize = 60;
    const BEAT: u32 = 2 << 20;
    let _alone = super::alone();
    let home = tempfile::tempdir().expect("a directory");
    let limit = "[server]\nkept_lease_limit = 4000\n";
    let server = start(&home, &format!("{limit}{}", bearers(&["attacker", "normal"])));
    runtime().block_on(async {
        let normal = Client::connect(&server.address, Some("normal")).await;
        let attacker = Attacker::connect(&server.address, Some("attacker"), 1 << 20).await;
        let before = resident(server.id());
        let mut beat = vec![0];
        beat.extend(BEAT.to_be_bytes());
        beat.resize(beat.len() + BEAT as usize - 1, 0);
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            let (answer, mut body) = attacker.open(KEEP_ALIVE).await.expect("the server takes it");
            body.send_data(beat.clone().into(), false).expect("sent");
            streams.push((answer, body));
        }
        // A stream that is refused ends, and its request with it.
        let ends = streams.iter_mut().map(|(answer, _)| async {
            let mut body = answer.await.ok()?.into_body();
            while let Some(Ok(_)) = body.data().await {}
            body.trailers().await.ok()?
        });
        let ends = join_all(ends.map(|end| timeout(PATIENCE / 4, end))).await;
        let ends: Vec<_> = ends.into_iter().filter_map(|end| end.ok().flatten()).collect();
        let grown = grown(&server, before);
        println!(
            "{} of {STREAMS} were refused, the server grew by {} MiB",
            ends.len(),
            grown / MIB
        );
        assert!(
            ends.iter().all(|end| end["fencepost-reason"] == "OVERLOADED"),
            "{ends:?}"
        );
        // Half of 4,000 leases with ids of 2 KiB each.
        assert_eq!(ends.len(), STREAMS - 1);
        assert!(grown < 24 * MIB, "{grown}");
        work(&normal, WORK).await.well();
    });
}

// G204
#[test]
fn messages_of_one_identity_without_their_last_byte_fill_its_share_and_no_more() {
    const CONNECTIONS: usize = 10;
    const CALLS: usize = 100;
    const MESSAGE: u32 = 60_000;
    /// Each byte of an incomplete message counts twice, and half of 4 MiB is for one identity. Those that arrive at once may
    /// share that so that some more are refused.
    const FIT: std::ops::RangeInclusive<usize> = 9..=(2 << 20) / (2 * MESSAGE as usize) + 1;
    let _alone = super::alone();
    let home = tempfile::tempdir().expect("a directory");
    let limit = "[server]\npeer_share = 100\nunsent_bytes_limit = 4194304\n";
    let server = start(&home, &format!("{limit}{}", bearers(&["attacker", "normal"])));
    runtime().block_on(async {
        let normal = Client::connect(&server.address, Some("normal")).await;
        let mut message = vec![0];
        message.extend(MESSAGE.to_be_bytes());
        message.resize(MESSAGE as usize, b'x');
        let mut calls = Vec::new();
        for _ in 0..CONNECTIONS {
            let attacker = Attacker::connect(&server.address, Some("attacker"), 1 << 20).await;
            for _ in 0..CALLS / CONNECTIONS {
                let (answer, mut body) = attacker.open(GET_LOCK).await.expect("the server takes it");
                body.send_data(message.clone().into(), false).expect("sent");
                calls.push((answer, body));
            }
        }
        // The others are answered once the time for their messages has passed.
        let answers = calls.iter_mut().map(|(answer, _)| timeout(WORK, answer));
        let answers: Vec<_> = join_all(answers).await.into_iter().flatten().flatten().collect();
        println!("{} of {CALLS} were refused", answers.len());
        for answer in &answers {
            assert_eq!(answer.headers()["fencepost-reason"], "OVERLOADED");
        }
        assert!(FIT.contains(&(CALLS - answers.len())), "{}", answers.len());
        normal
            .acquire(heavy("large", Duration::ZERO))
            .await
            .expect("others have a share");
    });
}

// G194
#[test]
fn a_connection_over_http_1_with_open_headers_takes_what_the_chart_computes_for_it() {
    const CONNECTIONS: u64 = 400;
    /// As `connection_limit` counts in the chart.
    const EACH: u64 = 32 << 10;
    let _alone = super::alone();
    let home = tempfile::tempdir().expect("a directory");
    let server = start(&home, "[server]\npeer_share = 100\n");
    for bytes in [31 << 10, (16 << 10) - 200] {
        let before = resident(server.id());
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(bytes));
        let mut open = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut stream = TcpStream::connect(&server.address).expect("the port");
            // A server that refuses so much may close before all was sent.
            for part in head.as_bytes().chunks(1 << 10) {
                let _ = stream.write_all(part);
            }
            open.push(stream);
        }
        // The last one has been read when the next is answered.
        let mut last = TcpStream::connect(&server.address).expect("the port");
        last.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("a request");
        last.read_exact(&mut [0; 12]).expect("an answer");
        let grown = grown(&server, before);
        println!(
            "{CONNECTIONS} heads of {bytes} bytes: the server grew by {} KiB",
            grown >> 10
        );
        assert!(grown < CONNECTIONS * EACH, "{grown}");
    }
}
