//! Many leases, long names, many clients.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use crate::driver::{Client, PATIENCE, until};
use crate::server::Server;

/// For some hundred calls on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// For many beats on a busy machine.
const TTL_MS: u64 = 12_000;

/// Takes them all at once, and all are kept for more than their TTL.
fn keeps_all(client: &Client, names: &[String]) {
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    driver.tell("hold", "all", json!({"names": names, "ttl": TTL_MS}));
    let held = driver.event_within(LONG, "all", "held").1;
    assert_eq!(held["count"], names.len(), "{held}");
    sleep(Duration::from_millis(TTL_MS * 3 / 2));
    assert_eq!(server.in_use(), names.len(), "the server lost leases");
    driver.tell("drop_all", "drop", json!({}));
    let dropped: Value = driver.event_within(LONG, "drop", "ok").1;
    assert_eq!(dropped["count"], names.len(), "the client lost leases");
    server.until_all_free(PATIENCE);
}

pub fn long_names(client: &Client) {
    let names: Vec<String> = (0..120)
        .map(|number| format!("{number:03}{}", "n".repeat(509)))
        .collect();
    keeps_all(client, &names);
}

pub fn many_leases(client: &Client) {
    let names: Vec<String> = (0..1500).map(|number| format!("n{number}")).collect();
    keeps_all(client, &names);
}

/// Blocks that begin and end at once.
pub fn many_at_once(client: &Client) {
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    for number in 0..250 {
        driver.acquire(&format!("m{number}"), 20_000, 20_000);
    }
    for number in 0..250 {
        driver.granted(&format!("m{number}"));
    }
    for number in 0..250 {
        driver.tell("release", &format!("m{number}"), json!({}));
    }
    for number in 0..250 {
        driver.event(&format!("m{number}"), "released");
    }
    server.until_all_free(PATIENCE);
}

fn entries(id: u32, what: &str) -> usize {
    let folder = Path::new("/proc").join(id.to_string()).join(what);
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

pub fn churn(client: &Client) {
    const SPARE: usize = 20;
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    driver.tell("churn", "first", json!({"count": 20}));
    driver.event_within(LONG, "first", "ok");
    sleep(Duration::from_secs(1));
    let before = (entries(driver.id(), "task"), entries(driver.id(), "fd"));
    driver.tell("churn", "second", json!({"count": 200}));
    driver.event_within(LONG, "second", "ok");
    until(PATIENCE, "threads and descriptors come back", || {
        let after = (entries(driver.id(), "task"), entries(driver.id(), "fd"));
        (after.0 <= before.0 + SPARE && after.1 <= before.1 + SPARE).then_some(())
    });
    server.until_all_free(PATIENCE);
}
