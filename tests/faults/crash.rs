//! SIGKILL right after an OK: what was answered is there after the restart.

use std::time::{Duration, Instant};

use fencepost::api::proto::Lease;
use tonic::Code::{Aborted, FailedPrecondition};

use crate::client::{Client, TTL, ask, living, named, reason, refused, time, waiting};
use crate::history::{Held, History};
use crate::server::{Home, Server};

/// How often the server is killed.
const KILLS: u64 = if cfg!(feature = "soak") { 1_000 } else { 50 };
/// The lock of every round.
const LOCK: &str = "lock";
const WAIT: Duration = Duration::from_secs(10);

/// What was answered last before the kill.
#[derive(Debug, Clone, Copy)]
enum Last {
    Grant,
    Release,
    LongerTtl,
    HandOff,
}

impl Last {
    const ALL: [Self; 4] = [Self::Grant, Self::Release, Self::LongerTtl, Self::HandOff];

    /// Does it.
    async fn run(self, client: &Client, round: &str) -> Answered {
        let sent = Instant::now();
        let lease = client.acquire(named(round, ask(LOCK, round))).await;
        let mut held = Held::new(lease, sent);
        let mut given_back = Vec::new();
        match self {
            Self::Grant => {}
            Self::Release => {
                held.gives_up();
                client.release(&held.lease).await;
            }
            Self::LongerTtl => {
                let renewed = client.try_renew(&held.lease, Some(2 * TTL)).await;
                assert_eq!(time(renewed.expect("renewed").ttl), 2 * TTL);
            }
            Self::HandOff => {
                let next = hand_off(client, &mut held, round).await;
                given_back.push(std::mem::replace(&mut held, next));
            }
        }
        Answered {
            last: self,
            held,
            given_back,
        }
    }
}

/// The lease of a waiter that the holder's release made room for.
async fn hand_off(client: &Client, held: &mut Held, round: &str) -> Held {
    let (sent, waiter) = (Instant::now(), client.clone());
    let request = waiting(WAIT, named(round, ask(LOCK, "next")));
    let call = tokio::spawn(async move { waiter.acquire(request).await });
    client.until_waiting(LOCK, 1).await;
    held.gives_up();
    client.release(&held.lease).await;
    Held::new(call.await.expect("no panic"), sent)
}

/// What a round was answered, and must still be so after the kill.
struct Answered {
    last: Last,
    held: Held,
    given_back: Vec<Held>,
}

impl Answered {
    /// Asserts on the restarted server that all of it still holds, and leaves the lock free.
    async fn check(&self, client: &Client, round: &str) {
        for held in &self.given_back {
            given_back_stays_so(client, &held.lease, &held.lease.owner, round).await;
        }
        let lease = &self.held.lease;
        if matches!(self.last, Last::Release) {
            assert_eq!(client.inspect(LOCK).await.holder_count, 0);
            return given_back_stays_so(client, lease, &lease.owner, round).await;
        }
        assert!(self.held.is_sure(), "the round took longer than a TTL");
        refused(client.try_acquire(ask(LOCK, "another")).await, Aborted, "LOCK_HELD");
        let again = client.acquire(named(round, ask(LOCK, &lease.owner))).await;
        assert_eq!(again.lease_id, lease.lease_id, "the request id finds its own lease");
        let renewed = client.try_renew(lease, None).await.expect("it is renewed");
        assert_eq!(renewed.fencing_token, lease.fencing_token);
        let ttl = if matches!(self.last, Last::LongerTtl) {
            2 * TTL
        } else {
            TTL
        };
        assert_eq!(time(renewed.ttl), ttl);
        client.release(lease).await;
    }
}

async fn given_back_stays_so(client: &Client, lease: &Lease, owner: &str, round: &str) {
    assert!(!client.holds(lease).await);
    client.release(lease).await;
    let retry = client.try_acquire(named(round, ask(LOCK, owner))).await;
    refused(retry, FailedPrecondition, "ALREADY_RELEASED");
    let renewal = client.try_renew(lease, None).await.expect_err("it was given back");
    assert_eq!(reason(&renewal), "LEASE_LOST");
}

/// Restarts a killed server, and says how long that took.
async fn restart(home: &Home, slowest: &mut Duration) -> Server {
    let start = Instant::now();
    let server = home.start().await;
    *slowest = start.elapsed().max(*slowest);
    server
}

// G83
#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_survives_a_kill() {
    let (home, mut history, mut slowest) = (Home::with_file(), History::default(), Duration::ZERO);
    let mut server = home.start().await;
    let begun = Instant::now();
    for round in 0..KILLS {
        let name = format!("round {round}");
        let last = Last::ALL[usize::try_from(round).expect("few rounds") % Last::ALL.len()];
        let answered = last.run(&server.client(), &name).await;
        server.kill();
        server = restart(&home, &mut slowest).await;
        answered.check(&server.client(), &name).await;
        let mut held = answered.held;
        held.gives_up();
        history.note(held);
        answered.given_back.into_iter().for_each(|held| history.note(held));
    }
    history.judge();
    println!(
        "{KILLS} kills right after an OK in {:?}: {} leases, slowest restart {slowest:?}",
        begun.elapsed(),
        history.all().count()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_that_was_shown_survives_a_kill() {
    let home = Home::with_file();
    let server = home.start().await;
    let client = server.client();
    let short = Duration::from_millis(200);
    let lease = client.acquire(living(short, ask(LOCK, "a"))).await;
    tokio::time::sleep(short).await;
    let renewal = client.try_renew(&lease, None).await;
    refused(renewal, FailedPrecondition, "LEASE_LOST");
    server.kill();
    let server = home.start().await;
    refused(
        server.client().try_renew(&lease, None).await,
        FailedPrecondition,
        "LEASE_LOST",
    );
    let next = server.client().acquire(ask(LOCK, "b")).await;
    assert!(next.fencing_token > lease.fencing_token);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_order_keeps_as_much_as_a_kill() {
    let home = Home::with_file();
    let server = home.start().await;
    let lease = server.client().acquire(ask(LOCK, "a")).await;
    server.stop();
    let server = home.start().await;
    refused(server.client().try_acquire(ask(LOCK, "b")).await, Aborted, "LOCK_HELD");
    server.client().release(&lease).await;
    let next = server.client().acquire(ask(LOCK, "b")).await;
    assert!(next.fencing_token > lease.fencing_token);
}
