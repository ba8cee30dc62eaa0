//! Memory that a crowd of waiters took goes back to the system when the crowd has left.

use std::time::{Duration, Instant};

use super::server::{Server, resident};
use super::traffic::{Client, alone, ask, connect, runtime, take, until_waiting};

/// How many wait and leave.
const CROWD: u32 = if cfg!(feature = "soak") { 30_000 } else { 12_000 };
/// How many Acquires are sent at once.
const BATCH: u32 = 500;
const CONNECTIONS: usize = 10;
const WAIT: Duration = Duration::from_secs(120);
/// Within which time the memory goes back, and how much of it may stay, in bytes.
const RETURNED_WITHIN: Duration = Duration::from_secs(if cfg!(feature = "soak") { 60 } else { 10 });
const MAY_STAY: u64 = 64 << 20;
const POLL: Duration = Duration::from_millis(200);
/// Room for the crowd, which has one identity and one address.
const CONFIG: &str = "[server]\nidentity_share = 100\npeer_share = 100\n[namespaces.default]\nqueue_limit = 100_000\n\
                      [namespaces.default.embedded]\npath = \":memory:\"\n";

/// Lets a crowd wait for a lock, and says how much memory the server then had.
async fn crowd(server: &Server, clients: &[Client]) -> u64 {
    let mut calls = Vec::new();
    // At once, the client would send thousands of heads before the first message, and the server waits for a message
    // for 5 s.
    for batch in 1..=CROWD / BATCH {
        for at in 0..BATCH as usize {
            let client = clients[at % CONNECTIONS].clone();
            calls.push(tokio::spawn(async move { take(&client, ask("held", WAIT)).await }));
        }
        until_waiting(&clients[0], batch * BATCH).await;
    }
    let peak = resident(server.id());
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    until_waiting(&clients[0], 0).await;
    peak
}

/// The memory of the server once it is this little, or when the time is over.
async fn settled(server: &Server, bound: u64) -> (u64, Duration) {
    let began = Instant::now();
    loop {
        let now = resident(server.id());
        if now <= bound || began.elapsed() >= RETURNED_WITHIN {
            return (now, began.elapsed());
        }
        tokio::time::sleep(POLL).await;
    }
}

// G71
#[test]
fn what_a_crowd_took_is_given_back_within_a_minute() {
    let _alone = alone();
    let home = tempfile::tempdir().expect("a directory");
    std::fs::write(home.path().join("f.toml"), format!("data_dir = \"d\"\n{CONFIG}")).expect("a file");
    let server = Server::start_with(&home, &["--config", "f.toml", "--listen", "127.0.0.1:0"]);
    runtime().block_on(async {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(connect(&server.address).await);
        }
        take(&clients[0], ask("held", Duration::ZERO))
            .await
            .expect("it is free");
        let before = resident(server.id());
        let peak = crowd(&server, &clients).await;
        assert!(
            peak > before + MAY_STAY,
            "{CROWD} waiters took too little to show anything: {before} to {peak}"
        );
        let (after, took) = settled(&server, before + MAY_STAY).await;
        println!("{CROWD} waiters: {before} bytes before, {peak} with them, {after} after {took:?}");
        assert!(
            after <= before + MAY_STAY,
            "{} bytes stay after {took:?}",
            after - before
        );
    });
}
