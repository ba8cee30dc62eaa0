//! Connections by the thousand: of nobody while the system allows few open files, and of one token.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::fixture::{Attacker, Client, PATIENCE, ask, bearers, runtime, start, start_with, work};
use super::server::{Server, until};

/// The beginning of HTTP/2, and settings that change nothing.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// What the system lets the server open in the tests.
const OPEN_FILES: u64 = 256;
/// Idle connections of nobody: more than that.
const IDLE: usize = 1_100;
const WORK: Duration = Duration::from_secs(2);

/// Starts a server below these limits of open files: what it has, and what it may raise that to.
fn start_below(home: &tempfile::TempDir, soft: u64, hard: u64, config: &str) -> Server {
    let mut prlimit = std::process::Command::new("prlimit");
    prlimit.arg(format!("--nofile={soft}:{hard}"));
    let memory = "[namespaces.default.embedded]\npath = \":memory:\"\n";
    std::fs::write(
        home.path().join("f.toml"),
        format!("data_dir = \"d\"\n{config}{memory}"),
    )
    .expect("a file");
    Server::start_by(prlimit, home, &["--config", "f.toml", "--listen", "127.0.0.1:0"])
}

/// The soft limit of open files of a process.
fn open_files(process: u32) -> u64 {
    let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).expect("a process");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()).expect("a limit");
    soft.parse().expect("a number")
}

/// Connects and calls nothing.
async fn idle(address: &str) -> Option<TcpStream> {
    let mut socket = TcpStream::connect(address).await.ok()?;
    socket.write_all(GREETING).await.ok()?;
    Some(socket)
}

#[test]
fn the_limit_of_open_files_is_raised_to_what_the_system_allows() {
    let home = tempfile::tempdir().expect("a directory");
    let server = start_below(&home, 64, OPEN_FILES, "");
    assert_eq!(open_files(server.id()), OPEN_FILES);
}

/// The processor time that a process has used.
fn worked(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("a process");
    let after_name = stat.rsplit(") ").next().expect("a name in brackets");
    let ticks = after_name
        .split(' ')
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().expect("ticks"));
    Duration::from_millis(10 * ticks.sum::<u64>())
}

#[test]
fn a_server_that_can_open_no_file_does_not_spin_and_serves_again_when_it_can() {
    let home = tempfile::tempdir().expect("a directory");
    let server = start_below(&home, OPEN_FILES, OPEN_FILES, "");
    let process = server.id().to_string();
    let allow = |files: u64| {
        let soft = format!("--nofile={files}:");
        let set = std::process::Command::new("prlimit")
            .args(["--pid", &process, &soft])
            .status();
        assert!(set.expect("prlimit runs").success());
    };
    runtime().block_on(async {
        let early = Client::connect(&server.address, None).await;
        assert!(work_on(early.clone(), "early").await);
        allow(4);
        let waiting = idle(&server.address).await.expect("the system accepts it");
        until("the log says so", || server.said("cannot accept").then_some(()));
        let before = worked(server.id());
        assert!(work_on(early, "early").await, "open connections are served");
        tokio::time::sleep(WORK).await;
        let took = worked(server.id()) - before;
        println!("{took:?} of processor time");
        assert!(took < WORK / 10, "{took:?}");
        allow(OPEN_FILES);
        let late = timeout(PATIENCE, served(&server.address)).await.expect("it is served");
        assert!(work_on(late, "late").await);
        drop(waiting);
    });
}

// G154
#[test]
fn idle_connections_of_nobody_keep_nobody_out_where_few_files_may_be_open() {
    let home = tempfile::tempdir().expect("a directory");
    // Both are at one address here.
    let config = format!("[server]\npeer_share = 100\n{}", bearers(&["a"]));
    let server = start_below(&home, OPEN_FILES, OPEN_FILES, &config);
    assert!(server.said("the connection limit is lowered"), "the log says so");
    runtime().block_on(async {
        let early = Client::connect(&server.address, Some("a")).await;
        early.acquire(ask("early", Duration::ZERO)).await.expect("it is free");
        let mut crowd = Vec::new();
        for _ in 0..IDLE {
            crowd.extend(idle(&server.address).await);
        }
        let late = timeout(WORK, served(&server.address)).await.expect("it is served");
        let (early, late) = tokio::join!(work_on(early, "1"), work_on(late, "2"));
        assert!(early && late);
        assert!(!server.said("cannot accept"), "open files were left");
        drop(crowd);
    });
}

/// A client whose first call succeeded. A connection that arrives while the server still closes others at its limit may
/// be closed too; the client then connects again.
async fn served(address: &str) -> Client {
    loop {
        let client = Client::connect(address, Some("a")).await;
        match client.acquire(ask("late", Duration::ZERO)).await {
            Ok(lease) => {
                client.release(&lease.lease_id).await.expect("it is held");
                return client;
            }
            Err(status) => assert!(status.message().contains("transport"), "{status}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Takes a lock and gives it back for a while.
async fn work_on(client: Client, lock: &str) -> bool {
    for _ in 0..20 {
        let lease = client.acquire(ask(lock, PATIENCE)).await.expect("it is free");
        client.release(&lease.lease_id).await.expect("it is held");
    }
    true
}

/// How many connections the server takes.
const MOST: usize = 64;

// G155
#[test]
fn connections_of_one_token_leave_others_their_share() {
    let home = tempfile::tempdir().expect("a directory");
    let limits = format!(
        "[server]\nconnection_limit = {MOST}\npeer_share = 100\n{}",
        bearers(&["a", "b"])
    );
    let server = start(&home, &limits);
    runtime().block_on(async {
        let mut served = 0;
        let mut crowd = Vec::new();
        for _ in 0..2 * MOST {
            let Ok(attacker) = timeout(PATIENCE, Attacker::try_connect(&server.address, Some("a"))).await else {
                continue;
            };
            let Some(attacker) = attacker else { continue };
            served += usize::from(attacker.is_served().await);
            crowd.push(attacker);
        }
        println!("{served} of {} connections of one token are served", 2 * MOST);
        assert_eq!(served, MOST / 2, "half of them are the share of one identity");
        let normal = Client::connect(&server.address, Some("b")).await;
        work(&normal, WORK).await.well();
    });
}

// G155
#[test]
fn connections_of_one_address_leave_others_their_share() {
    let home = tempfile::tempdir().expect("a directory");
    let memory = "[namespaces.default.embedded]\npath = \":memory:\"\n";
    let server = start_with(&home, &format!("[server]\nconnection_limit = {MOST}\n{memory}"));
    runtime().block_on(async {
        let mut crowd = Vec::new();
        for _ in 0..2 * MOST {
            crowd.extend(idle(&server.address).await);
        }
        let mut closed = 0;
        for socket in &mut crowd {
            let mut bytes = Vec::new();
            closed += usize::from(
                timeout(Duration::from_millis(20), socket.read_to_end(&mut bytes))
                    .await
                    .is_ok(),
            );
        }
        assert_eq!(closed, 2 * MOST - MOST / 2, "half of them are the share of one address");
    });
}
