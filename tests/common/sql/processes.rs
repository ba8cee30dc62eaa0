//! Servers on one database, as their users run them, of which one is killed or stands still.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fencepost_client::Client;
use futures::future::join;
use tempfile::TempDir;

use crate::forwarder::Forwarder;
use crate::harness::{durable, in_statement, namespace, settings};
use crate::killed::{DEAD, SHORT, go_on_at_another, kill_one_of_three, leases_of_the_killed_run_out};
use crate::process::Server;
use crate::record_steps::READY;
use crate::register::Register;
use crate::replicas::{nothing_is_left, replica};
use crate::servers::available;

// G54
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_frees_no_lease_and_its_waiters_hold_nobody_up() {
    if !available() {
        return;
    }
    let server = durable();
    let held_up = kill_one_of_three(&namespace(&server.address())).await;
    // A machine that stands still for a moment is no service that is late.
    assert!(held_up < 2 * DEAD, "{held_up:?}");
}

// G163
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_killed_server_go_on_at_another() {
    if !available() {
        return;
    }
    let server = durable();
    // The killed server's holder keeps its TTL, then its waiters their few seconds.
    let longest = go_on_at_another(&namespace(&server.address())).await;
    assert!(longest < SHORT + 2 * DEAD, "{longest:?}");
    nothing_is_left(&replica(settings(&server)).await, &server).await;
}

// G139
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_a_killed_server_that_ran_out_is_known_to_have_expired_at_another() {
    if !available() {
        return;
    }
    let server = durable();
    leases_of_the_killed_run_out(&namespace(&server.address())).await;
}

/// How long a server stands still: longer than a lease lives, and than others take to find it dead. In the long form also
/// longer than a commit may be late.
const STILL: Duration = Duration::from_secs(if cfg!(feature = "soak") { 65 } else { 8 });
/// How long it is left alone before and afterwards.
const CALM: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(3);
const OWNERS: [&str; 2] = ["of the one that stops", "of the other"];

pub fn start(namespace: &str) -> (TempDir, Server) {
    let home = tempfile::tempdir().expect("a directory");
    std::fs::write(
        home.path().join("f.toml"),
        format!("[namespaces.faults]\n{namespace}\n"),
    )
    .expect("a file");
    let server = Server::start_with(&home, &["--listen", "127.0.0.1:0", "--config", "f.toml"]);
    (home, server)
}

fn signal(server: &Server, name: &str) {
    let sent = std::process::Command::new("kill")
        .args(["-s", name, &server.id().to_string()])
        .status();
    assert!(sent.expect("kill runs").success());
}

/// Writes to the register under a lock, over and over: whoever is sure to hold is never refused. Says how often the lock
/// was granted since `is_late`: at least once, unless it is never granted again.
async fn write(
    client: Client,
    owner: &'static str,
    register: Arc<Register>,
    [is_late, is_over]: [Arc<AtomicBool>; 2],
) -> u32 {
    let (mut late, end) = (0, Instant::now() + STILL + READY);
    while (late == 0 || !is_over.load(Ordering::Relaxed)) && Instant::now() < end {
        let Ok(guard) = client.acquire("faults", "hot", owner).ttl(TTL).wait(TTL).await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        late += u32::from(is_late.load(Ordering::Relaxed));
        for _ in 0..3 {
            let taken = register.write(guard.fencing_token());
            // Sure after the write, it was sure at the write.
            assert!(taken || !guard.is_held(), "unsafe: a sure holder was refused");
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        // It ends by its TTL if that fails.
        let _ = guard.release().await;
    }
    late
}

/// A server stands still with a commit in flight, which reaches the database meanwhile or only `afterwards`.
async fn stands_still(arrives_afterwards: bool) {
    let server = durable();
    let way = Forwarder::before(server.port()).await;
    let ((_home, one), (_other_home, other)) =
        (start(&namespace(&way.address())), start(&namespace(&server.address())));
    let (register, flags) = (Arc::<Register>::default(), <[Arc<AtomicBool>; 2]>::default());
    let mut clients = Vec::new();
    for (server, owner) in [(&one, OWNERS[0]), (&other, OWNERS[1])].repeat(3) {
        let client = Client::connect(&[server.address.parse().expect("an address")])
            .await
            .expect("it accepts");
        clients.push(tokio::spawn(write(client, owner, Arc::clone(&register), flags.clone())));
    }
    tokio::time::sleep(CALM).await;
    let owner = in_statement(OWNERS[0]);
    way.holds(move |part| part.windows(owner.len()).any(|bytes| bytes == owner));
    way.is_holding().await;
    signal(&one, "STOP");
    if !arrives_afterwards {
        way.go_on();
    }
    tokio::time::sleep(STILL).await;
    signal(&one, "CONT");
    way.go_on();
    tokio::time::sleep(CALM).await;
    flags[0].store(true, Ordering::Relaxed);
    tokio::time::sleep(CALM).await;
    flags[1].store(true, Ordering::Relaxed);
    for client in clients {
        let late = client.await.expect("no client failed");
        assert!(late > 0, "one is never granted again");
    }
    assert!(register.writes() > 100, "{}", register.writes());
    nothing_is_left(&replica(settings(&server)).await, &server).await;
}

// G139
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_a_server_stands_still_with_a_commit_in_flight() {
    if !available() {
        return;
    }
    join(stands_still(false), stands_still(true)).await;
}
