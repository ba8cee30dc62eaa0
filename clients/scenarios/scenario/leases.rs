//! When leases are renewed and end: losses that are told early, locks that stay taken, renewals of those that are due.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::driver::{Client, PATIENCE};
use crate::ports::free_port;
use crate::proxy::{Pass, Proxy};
use crate::server::Server;

/// A client that is cut off tells the loss of its lease before another client is granted the lock.
pub fn early_loss(client: &Client) {
    let server = Server::memory();
    let proxy = Proxy::before(&server.address);
    let (mut driver, mut rival) = (client.start(&proxy.address), client.start(&server.address));
    driver.hold("a", 6000);
    rival.acquire("a", 10_000, 30_000);
    server.until_waiters("a", 1);
    sleep(Duration::from_millis(2500));
    proxy.all(Pass::Nothing, Pass::Nothing);
    let granted = rival.event_within(PATIENCE, "a", "granted").0;
    let lost = driver.event_within(PATIENCE, "a", "lost").0;
    assert!(
        granted > lost + Duration::from_millis(30),
        "it was told {:?} after the next grant",
        lost.saturating_duration_since(granted)
    );
    assert!(
        granted - lost < Duration::from_millis(1500),
        "it was told {:?} too early",
        granted - lost
    );
    rival.release("a");
}

/// A job that is over keeps its lock taken for as long as it asked, and not for the TTL, also if its process exits.
pub fn at_least(client: &Client) {
    let server = Server::memory();
    let (mut driver, mut rival) = (client.start(&server.address), client.start(&server.address));
    let begin = Instant::now();
    driver.tell("once", "job", json!({"name": "job", "at_least": 3000}));
    driver.event("job", "ok");
    driver.exit(Duration::from_secs(5));
    assert_eq!(server.holders("job"), 1, "it was free at once");
    rival.acquire("job", 10_000, 25_000);
    rival.event_within(Duration::from_secs(15), "job", "granted");
    assert!(begin.elapsed() >= Duration::from_secs(3), "it was free too soon");
    rival.release("job");
}

/// How many renewals the store was asked for.
fn renewals(metrics: &str) -> f64 {
    let mut stream = TcpStream::connect(metrics).expect("the server's metrics");
    stream
        .write_all(b"GET /metrics HTTP/1.0\r\nhost: metrics\r\n\r\n")
        .expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let is_renewal =
        |line: &&str| line.starts_with("fencepost_backend_request_duration_seconds_count") && line.contains("renew");
    let counts = text.lines().filter(is_renewal);
    counts
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

/// Locks that are held for a moment cause no renewals of those that are held for long.
pub fn short_locks(client: &Client) {
    const LEASES: usize = 300;
    /// Of which a third is the time between two renewals.
    const TTL: u64 = 60_000;
    let metrics = format!("127.0.0.1:{}", free_port());
    let server = Server::with(&format!("metrics_listen = \"{metrics}\"\n"));
    let mut driver = client.start(&server.address);
    let names: Vec<String> = (0..LEASES).map(|number| format!("n{number}")).collect();
    driver.tell("hold", "all", json!({"names": names, "ttl": TTL}));
    assert_eq!(driver.event_within(PATIENCE * 2, "all", "held").1["count"], LEASES);
    sleep(Duration::from_secs(3));
    let (before, begin, mut count) = (renewals(&metrics), Instant::now(), 0);
    while begin.elapsed() < Duration::from_secs(12) {
        count += 1;
        let id = format!("short{count}");
        driver.tell("acquire", &id, json!({"name": "short", "ttl": TTL}));
        driver.granted(&id);
        sleep(Duration::from_millis(600));
        driver.release(&id);
    }
    // One beat of all of them is due within this time, or two at its ends.
    let renewed = renewals(&metrics) - before;
    let due = LEASES as f64 * (1.0 + begin.elapsed().as_secs_f64() / 20.0);
    assert!(
        renewed <= due * 1.2,
        "{renewed} renewals beside {count} short locks, and {due} are due"
    );
    driver.tell("drop_all", "drop", json!({}));
    driver.event_within(PATIENCE * 2, "drop", "ok");
    server.until_all_free(PATIENCE);
}
