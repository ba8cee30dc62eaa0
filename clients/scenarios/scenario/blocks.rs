//! How a block ends: returns, failures, cancellation, interrupts, close, exit.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::driver::{Client, Driver, PATIENCE, until};
use crate::proxy::{Pass, Proxy};
use crate::server::Server;

/// For what needs one round trip, on a busy machine.
const SOON: Duration = Duration::from_secs(3);

/// A rival gets the lock at once.
fn is_free(client: &Client, server: &Server, name: &str) {
    let mut rival = client.start(&server.address);
    rival.hold(name, 10_000);
    rival.release(name);
}

pub fn failures(client: &Client) {
    assert!(!client.booms.is_empty(), "the driver's hello names no failure");
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    for (number, how) in client.booms.iter().enumerate() {
        let id = format!("a{number}");
        driver.hold(&id, 30_000);
        driver.tell("boom", &id, json!({"how": how}));
        driver.fails_as(&id, "boom");
        server.until_all_free(SOON);
    }
}

pub fn cancelled_wait(client: &Client) {
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    driver.hold("a", 30_000);
    driver.tell("acquire", "w", json!({"name": "a", "wait": -1, "ttl": 10_000}));
    server.until_waiters("a", 1);
    driver.tell("cancel", "w", json!({}));
    driver.fails_as("w", "cancelled");
    server.until_nobody_waits("a");
    driver.release("a");
    server.until_all_free(SOON);
}

pub fn cancelled_block(client: &Client) {
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    driver.hold("a", 30_000);
    driver.tell("cancel", "a", json!({}));
    driver.fails_as("a", "cancelled");
    server.until_all_free(SOON);
}

pub fn interrupted(client: &Client) {
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    driver.hold("a", 30_000);
    driver.tell("acquire", "w", json!({"name": "a", "wait": 30_000, "ttl": 10_000}));
    server.until_waiters("a", 1);
    driver.tell("interrupt", "w", json!({}));
    driver.fails_as("w", "interrupted");
    server.until_nobody_waits("a");
    driver.tell("interrupt", "a", json!({}));
    driver.fails_as("a", "interrupted");
    server.until_all_free(SOON);
}

/// Cancels at every moment between the call and its answer: each ends, and none leaves a lease.
pub fn cancels(client: &Client) {
    let server = Server::memory();
    let proxy = Proxy::before(&server.address);
    let delay = Pass::After(Duration::from_millis(10));
    proxy.all(delay, delay);
    let mut driver = client.start(&proxy.address);
    driver.hold("warm", 30_000);
    let count = if cfg!(feature = "soak") { 900 } else { 300 };
    for number in 0..count {
        let id = format!("c{number}");
        driver.tell("acquire", &id, json!({"name": id, "wait": 10_000, "ttl": 60_000}));
        sleep(Duration::from_micros(number % 50 * 1000));
        driver.tell("cancel", &id, json!({}));
    }
    for number in 0..count {
        driver.fails_as(&format!("c{number}"), "cancelled");
    }
    driver.release("warm");
    server.until_all_free(Duration::from_secs(10));
}

/// The grant happens while its answer cannot arrive, and then the caller gives up.
pub fn abandoned_grant(client: &Client) {
    let server = Server::memory();
    let proxy = Proxy::before(&server.address);
    let (mut driver, mut holder) = (client.start(&proxy.address), client.start(&server.address));
    driver.hold("warm", 30_000);
    holder.hold("a", 30_000);
    driver.acquire("a", 60_000, 30_000);
    server.until_waiters("a", 1);
    proxy.present(Pass::All, Pass::Nothing);
    holder.release("a");
    until(PATIENCE, "it is granted", || (server.holders("a") == 1).then_some(()));
    // The server has handed its answer over, so that it is not taken back by the end of the call alone.
    sleep(Duration::from_millis(300));
    driver.tell("cancel", "a", json!({}));
    driver.fails_as("a", "cancelled");
    until(Duration::from_secs(15), "it is undone", || {
        (server.holders("a") == 0).then_some(())
    });
}

/// After its loop was blocked beyond the TTL, the client counts the lease as held only if the server kept it.
pub fn blocked(client: &Client) {
    let server = Server::memory();
    let (mut driver, mut rival) = (client.start(&server.address), client.start(&server.address));
    driver.hold("a", 2000);
    rival.acquire("a", 30_000, 30_000);
    server.until_waiters("a", 1);
    driver.tell("block", "a", json!({"ms": 4000}));
    let event = |driver: &Driver, kind| !driver.all("a", &[kind]).is_empty();
    driver.until(PATIENCE, "the end of the block", |driver| {
        event(driver, "ok").then_some(())
    });
    let has_passed = event(&rival, "granted");
    let held = driver.check("a");
    assert!(
        !has_passed || held.is_none(),
        "check says {held:?} after the rival's grant"
    );
}

pub fn slow_callback(client: &Client) {
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    driver.hold("b", 3000);
    let token = driver.hold("a", 30_000);
    driver.tell("slow_callback", "a", json!({"ms": 8000}));
    driver.event("a", "ok");
    server.force("a", token);
    driver.event("a", "lost");
    sleep(Duration::from_secs(5));
    assert!(
        driver.check("b").is_some() && server.holders("b") == 1,
        "the callback stopped its renewals"
    );
    driver.release("b");
}

pub fn forked(client: &Client) {
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    let token = driver.hold("a", 3000);
    for when in ["before", "inside", "after"] {
        driver.tell("fork", when, json!({"when": when, "name": format!("f-{when}")}));
        assert_eq!(driver.event(when, "forked")["child"], "refused", "{when}");
    }
    sleep(Duration::from_secs(4));
    assert_eq!(driver.check("a"), Some(token));
    assert_eq!(server.holders("a"), 1, "a child released its parent's lock");
    driver.release("a");
    server.until_all_free(Duration::from_secs(5));
}

pub fn held(client: &Client) {
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    driver.hold("a", 30_000);
    driver.tell("acquire", "b", json!({"name": "a", "ttl": 10_000}));
    assert_eq!(driver.fails_as("b", "held")["reason"], "LOCK_HELD");
    driver.release("a");
    is_free(client, &server, "a");
}

pub fn timeout(client: &Client) {
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    driver.hold("a", 30_000);
    let begin = Instant::now();
    driver.tell("acquire", "b", json!({"name": "a", "ttl": 10_000, "wait": 1500}));
    assert_eq!(driver.fails_as("b", "timeout")["reason"], "WAIT_TIMEOUT");
    let took = begin.elapsed();
    assert!((Duration::from_millis(1400)..SOON).contains(&took), "it took {took:?}");
    driver.release("a");
}

/// Longer than a timer of 32 bits in ms.
pub fn long_ttl(client: &Client) {
    const DAYS_25: u64 = 25 * 86_400_000;
    let server = Server::with("[namespaces.default]\nttl_max = \"1year\"\n");
    let mut driver = client.start(&server.address);
    driver.hold("a", DAYS_25);
    sleep(Duration::from_millis(700));
    assert!(driver.check("a").is_some());
    assert!(driver.all("a", &["lost"]).is_empty());
    driver.release("a");
    server.until_all_free(SOON);
}

pub fn close(client: &Client) {
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    for name in ["a", "b", "c"] {
        driver.hold(name, 60_000);
    }
    let begin = Instant::now();
    for id in ["close", "again"] {
        driver.tell("close", id, json!({}));
        driver.event(id, "closed");
    }
    assert!(
        begin.elapsed() < Duration::from_secs(7),
        "it took {:?}",
        begin.elapsed()
    );
    server.until_all_free(SOON);
    driver.tell("acquire", "late", json!({"name": "late", "ttl": 10_000}));
    driver.fails_as("late", "closed");
    driver.exit(SOON);
}

pub fn close_without_a_server(client: &Client) {
    let server = Server::memory();
    let proxy = Proxy::before(&server.address);
    let mut driver = client.start(&proxy.address);
    driver.hold("a", 60_000);
    proxy.refuse(true);
    sleep(Duration::from_millis(500));
    let begin = Instant::now();
    driver.tell("close", "close", json!({}));
    driver.event("close", "closed");
    assert!(
        begin.elapsed() < Duration::from_secs(8),
        "it took {:?}",
        begin.elapsed()
    );
    driver.exit(SOON);
}

pub fn exit(client: &Client) {
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    driver.hold("a", 30_000);
    driver.release("a");
    driver.exit(Duration::from_secs(5));
}
