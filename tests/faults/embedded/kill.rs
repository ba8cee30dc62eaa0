//! kill -9 right after an OK: what was answered is still so after a restart.

use std::time::{Duration, Instant};

use crate::client::{Ask, Caller, Held, why};
use crate::rounds;
use crate::server::{Home, Server};

const TTL: Duration = Duration::from_secs(60);

/// A server that is killed and started again, over and over.
struct Victim {
    home: Home,
    server: Option<Server>,
    caller: Caller,
    slowest: Duration,
}

impl Victim {
    fn new() -> Self {
        let home = Home::new();
        let server = home.start();
        Self {
            caller: Caller::of(&server),
            server: Some(server),
            home,
            slowest: Duration::ZERO,
        }
    }

    fn crash(&mut self) {
        self.server.take().expect("it runs").kill();
        let start = Instant::now();
        let server = self.home.start();
        self.slowest = self.slowest.max(start.elapsed());
        self.caller = Caller::of(&server);
        self.server = Some(server);
    }

    /// Takes a lock and crashes as soon as the answer is there.
    async fn take_and_crash(&mut self, name: &str) -> Held {
        let held = self.caller.take(name, TTL).await;
        self.crash();
        held
    }

    /// Gives a lease back and crashes as soon as the answer is there.
    async fn release_and_crash(&mut self, held: &Held) {
        self.caller.release(held).await.expect("it is released");
        self.crash();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_was_answered_outlives_a_kill() {
    let rounds = rounds(50, 1000);
    let mut victim = Victim::new();
    let mut last = 0;
    for round in 0..rounds {
        let held = victim.take_and_crash("lock").await;
        assert!(held.token > last, "round {round}: token {} after {last}", held.token);
        last = held.token;
        assert_eq!(victim.caller.refusal("lock").await, "LOCK_HELD", "round {round}");
        let left = victim.caller.renew(&held, None).await;
        assert_eq!(left.expect("the old lease is renewed"), TTL, "round {round}");
        let other = victim.caller.take("other", TTL).await;
        assert!(other.token > last, "round {round}: token {} after {last}", other.token);
        last = other.token;
        victim.caller.release(&other).await.expect("it is released");
        victim.release_and_crash(&held).await;
        // A Release may be repeated, and what it named stays gone.
        victim.caller.release(&held).await.expect("its release is remembered");
        let gone = victim.caller.renew(&held, None).await.expect_err("it is gone");
        assert_eq!(why(&gone), "LEASE_LOST", "round {round}");
    }
    println!(
        "{rounds} kills after an Acquire and {rounds} after a Release; slowest start {:?}",
        victim.slowest
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_longer_ttl_that_was_answered_outlives_a_kill() {
    let mut victim = Victim::new();
    for round in 0..5 {
        let held = victim.caller.take("lock", Duration::from_secs(1)).await;
        victim.caller.renew(&held, Some(TTL)).await.expect("it is renewed");
        victim.crash();
        let left = victim.caller.look("lock").await.holders.remove(0).remaining_ttl;
        let left: Duration = left.expect("a time").try_into().expect("not negative");
        assert!(left > TTL - Duration::from_secs(10), "round {round}: {left:?}");
        victim.caller.release(&held).await.expect("it is released");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_lease_whose_server_was_killed_still_ends() {
    let mut victim = Victim::new();
    let ttl = Duration::from_secs(1);
    let held = victim.caller.take("lock", ttl).await;
    victim.crash();
    let next = Ask::once(ttl).waiting(Duration::from_secs(5));
    let next = victim.caller.acquire("lock", next).await.expect("it ends in time");
    assert!(Instant::now() >= held.sure_until, "its holder was still sure of it");
    assert!(next.token > held.token, "{next:?} after {held:?}");
    let gone = victim.caller.renew(&held, None).await.expect_err("it has ended");
    assert_eq!(why(&gone), "LEASE_LOST");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_retry_after_a_kill_finds_its_lease() {
    let mut victim = Victim::new();
    let ask = || Ask::once(TTL).named("again");
    let held = victim.caller.acquire("lock", ask()).await.expect("it is free");
    victim.crash();
    let found = victim.caller.acquire("lock", ask()).await.expect("its own claim");
    assert_eq!((&found.id, found.token), (&held.id, held.token));
    victim.release_and_crash(&held).await;
    let refused = victim.caller.acquire("lock", ask()).await.expect_err("it was released");
    assert_eq!(why(&refused), "ALREADY_RELEASED");
}
