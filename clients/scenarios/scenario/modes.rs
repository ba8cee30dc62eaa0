//! Semaphores, readers and writers, several locks, elections, metadata.

use std::thread::sleep;
use std::time::Duration;

use serde_json::json;

use crate::driver::{Client, Driver, PATIENCE, until};
use crate::server::Server;

pub fn semaphore(client: &Client) {
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    let ids: Vec<String> = (0..12).map(|number| format!("s{number}")).collect();
    for id in &ids {
        driver.tell(
            "acquire",
            id,
            json!({"name": "s", "wait": 30_000, "ttl": 10_000, "mode": {"permits": 1, "limit": 5}}),
        );
    }
    let mut released = 0;
    while released < ids.len() {
        let inside = |driver: &Driver| -> Vec<String> {
            let is_in =
                |id: &&String| !driver.all(id, &["granted"]).is_empty() && driver.all(id, &["released"]).is_empty();
            ids.iter().filter(is_in).cloned().collect()
        };
        let expected = (ids.len() - released).min(5);
        let inside = driver.until(PATIENCE, "as many as fit", |driver| {
            Some(inside(driver)).filter(|all| all.len() >= expected)
        });
        assert_eq!(inside.len(), expected);
        assert_eq!(server.holders("s"), expected as u64);
        driver.release(&inside[0]);
        released += 1;
    }
    server.until_all_free(PATIENCE);
}

pub fn readers_and_writer(client: &Client) {
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    let begin = |driver: &mut Driver, id: &str, mode: &str| {
        driver.tell(
            "acquire",
            id,
            json!({"name": "rw", "wait": 20_000, "ttl": 10_000, "mode": mode}),
        );
    };
    for reader in ["r1", "r2", "r3"] {
        begin(&mut driver, reader, "shared");
        driver.granted(reader);
    }
    begin(&mut driver, "w", "exclusive");
    server.until_waiters("rw", 1);
    begin(&mut driver, "r4", "shared");
    server.until_waiters("rw", 2);
    for reader in ["r1", "r2", "r3"] {
        assert!(driver.all("w", &["granted"]).is_empty());
        driver.release(reader);
    }
    driver.granted("w");
    assert!(driver.all("r4", &["granted"]).is_empty());
    driver.release("w");
    driver.granted("r4");
    driver.release("r4");
    server.until_all_free(PATIENCE);
}

pub fn several(client: &Client) {
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    let rounds = if cfg!(feature = "soak") { 20 } else { 3 };
    for round in 0..rounds {
        let ids: Vec<String> = (0..16).map(|number| format!("t{round}-{number}")).collect();
        for (number, id) in ids.iter().enumerate() {
            // Two of four, in both orders.
            let names = [
                format!("l{}", number % 4),
                format!("l{}", (number + 1 + number / 4 % 3) % 4),
            ];
            driver.tell("acquire", id, json!({"names": names, "wait": 30_000, "ttl": 10_000}));
        }
        for _ in &ids {
            let id = driver.until(PATIENCE, "one more is granted", |driver| {
                let is_in =
                    |id: &&String| !driver.all(id, &["granted"]).is_empty() && driver.all(id, &["released"]).is_empty();
                ids.iter().find(is_in).cloned()
            });
            assert_eq!(driver.event(&id, "granted")["tokens"].as_array().map(Vec::len), Some(2));
            driver.release(&id);
        }
    }
    server.until_all_free(PATIENCE);
}

fn campaign(driver: &mut Driver, id: &str) {
    driver.tell(
        "campaign",
        id,
        json!({"name": "e", "value": format!("value of {id}"), "ttl": 10_000, "wait": 20_000}),
    );
}

pub fn election(client: &Client) {
    let server = Server::memory();
    let (mut one, mut other) = (client.start(&server.address), client.start(&server.address));
    campaign(&mut one, "one");
    let first = one.granted("one");
    campaign(&mut other, "other");
    server.until_waiters("e", 1);
    assert!(other.all("other", &["granted"]).is_empty());
    one.release("one");
    assert!(other.granted("other") > first);
    other.release("other");
    server.until_all_free(PATIENCE);
}

fn observes(client: &Client, leaders: usize) {
    let mut server = Server::with("");
    let (mut driver, mut observer) = (client.start(&server.address), client.start(&server.address));
    observer.tell("observe", "o", json!({"name": "e"}));
    observer.event("o", "leader");
    for number in 0..leaders {
        let id = format!("c{number}");
        campaign(&mut driver, &id);
        let token = driver.granted(&id);
        let value = format!("value of {id}");
        observer.wait(PATIENCE, "the leader", |event| {
            event["id"] == "o" && event["token"] == token && event["value"] == *value
        });
        match number % 3 {
            0 => driver.release(&id),
            1 => {
                server.force("e", token);
                driver.fails_as(&id, "lost");
            }
            _ => {
                server.kill();
                sleep(Duration::from_millis(300));
                server.restart();
                until(PATIENCE, "the lease lives on", || {
                    (server.holders("e") == 1).then_some(())
                });
                driver.release(&id);
            }
        }
    }
    let seen = observer.all("o", &["leader"]);
    let tokens: Vec<u64> = seen.iter().filter_map(|(_, event)| event["token"].as_u64()).collect();
    assert!(tokens.is_sorted(), "{tokens:?}");
    observer.tell("cancel", "o", json!({}));
    observer.exit(Duration::from_secs(5));
}

pub fn observe(client: &Client) {
    observes(client, 4);
}

pub fn observe_long(client: &Client) {
    observes(client, 20);
}

pub fn metadata(client: &Client) {
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    driver.tell(
        "acquire",
        "a",
        json!({"name": "a", "ttl": 10_000, "metadata": {"build": "77"}}),
    );
    driver.granted("a");
    let holder = server.lock("a")["holders"][0].clone();
    assert_eq!(holder["metadata"], json!({"build": "77"}), "{holder}");
    assert_eq!(holder["owner"], client.name.as_str());
    driver.release("a");
}
