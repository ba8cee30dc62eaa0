//! What servers and stores do to a client: restart, drain, failover, force, quarantine.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::driver::{Client, PATIENCE, until};
use crate::proxy::{Pass, Proxy};
use crate::server::{Redis, Server};

/// For what is told at once, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(2);

pub fn restart(client: &Client) {
    let mut server = Server::with("");
    let mut driver = client.start(&server.address);
    let token = driver.hold("a", 6000);
    for _ in 0..3 {
        server.kill();
        sleep(Duration::from_millis(500));
        server.restart();
        sleep(Duration::from_secs(2));
        assert_eq!(driver.check("a"), Some(token));
        assert_eq!(server.holders("a"), 1);
    }
    driver.release("a");
    server.until_all_free(PATIENCE);
}

fn both(one: &Server, other: &Server) -> String {
    format!("{},{}", one.address, other.address)
}

pub fn drain(client: &Client) {
    let redis = Redis::start();
    let (mut one, other) = (Server::with(&redis.config()), Server::with(&redis.config()));
    let (mut driver, mut holder) = (client.start(&both(&one, &other)), client.start(&other.address));
    holder.hold("busy", 20_000);
    let token = driver.hold("a", 4000);
    driver.acquire("busy", 4000, 20_000);
    one.until_waiters("busy", 1);
    one.drain();
    sleep(Duration::from_secs(5));
    assert_eq!(driver.check("a"), Some(token));
    assert_eq!(other.holders("a"), 1);
    holder.release("busy");
    driver.granted("busy");
    driver.release("busy");
    driver.release("a");
    other.until_all_free(PATIENCE);
}

/// How many wait for a lock while its servers are restarted.
const WAITERS: usize = 30;

/// Each server in turn, and the first once more while the queue moves.
pub fn rolling(client: &Client) {
    let redis = Redis::start();
    let mut servers: Vec<_> = (0..3).map(|_| Server::with(&redis.config())).collect();
    let addresses: Vec<_> = servers.iter().map(|server| server.address.clone()).collect();
    let mut drivers: Vec<_> = (0..3)
        .map(|first| client.start(&[&addresses[first..], &addresses[..first]].concat().join(",")))
        .collect();
    let mut holder = client.start(&addresses.join(","));
    holder.hold("busy", 20_000);
    for waiter in 0..WAITERS {
        let fields = json!({"name": "busy", "ttl": 20_000, "wait": 120_000});
        drivers[waiter % 3].tell("acquire", &waiter.to_string(), fields);
        servers[0].until_waiters("busy", waiter as u64 + 1);
    }
    let restart = |server: &mut Server| {
        server.drain();
        server.restart();
    };
    servers.iter_mut().for_each(restart);
    holder.release("busy");
    for waiter in 0..WAITERS {
        // Nobody else releases before: one that is granted out of turn ends this.
        drivers[waiter % 3].granted(&waiter.to_string());
        if waiter == WAITERS / 2 {
            restart(&mut servers[0]);
        }
        drivers[waiter % 3].release(&waiter.to_string());
    }
    servers[0].until_all_free(PATIENCE);
}

pub fn failover(client: &Client) {
    let redis = Redis::start();
    let (mut one, other) = (Server::with(&redis.config()), Server::with(&redis.config()));
    let (mut driver, mut holder) = (client.start(&both(&one, &other)), client.start(&other.address));
    holder.hold("busy", 30_000);
    let token = driver.hold("a", 6000);
    driver.acquire("busy", 6000, 30_000);
    one.until_waiters("busy", 1);
    one.kill();
    sleep(Duration::from_secs(7));
    assert_eq!(driver.check("a"), Some(token));
    assert_eq!(other.holders("a"), 1);
    holder.release("busy");
    driver.granted("busy");
    driver.release("busy");
    driver.release("a");
    other.until_all_free(PATIENCE);
}

fn granted_within(client: &Client, address: &str, time: Duration) {
    let mut driver = client.start(address);
    let begin = Instant::now();
    driver.acquire("a", 10_000, 15_000);
    driver.granted("a");
    assert!(begin.elapsed() < time, "it took {:?}", begin.elapsed());
    driver.release("a");
}

pub fn dead_first_address(client: &Client) {
    let server = Server::memory();
    let proxy = Proxy::before(&server.address);
    proxy.refuse(true);
    granted_within(
        client,
        &format!("{},{}", proxy.address, server.address),
        Duration::from_secs(3),
    );
}

pub fn silent_first_address(client: &Client) {
    let server = Server::memory();
    let proxy = Proxy::before(&server.address);
    proxy.all(Pass::Nothing, Pass::Nothing);
    granted_within(
        client,
        &format!("{},{}", proxy.address, server.address),
        Duration::from_secs(9),
    );
}

pub fn forced(client: &Client) {
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    let token = driver.hold("a", 30_000);
    server.force("a", token);
    let (_, lost) = driver.event_within(AT_ONCE, "a", "lost");
    assert_eq!(lost["cause"], "forced");
    assert_eq!(driver.check("a"), None);
    assert_eq!(driver.fails_as("a", "lost")["reason"], "LEASE_LOST");
}

pub fn forced_elsewhere(client: &Client) {
    let redis = Redis::start();
    let (one, other) = (Server::with(&redis.config()), Server::with(&redis.config()));
    let mut driver = client.start(&one.address);
    let token = driver.hold("a", 6000);
    other.force("a", token);
    // At the latest with the next renewal.
    driver.event_within(Duration::from_secs(2) + AT_ONCE, "a", "lost");
    driver.fails_as("a", "lost");
}

pub fn quarantine(client: &Client) {
    let redis = Redis::start();
    let config = redis.config().replace("admit", "quarantine").replace(
        "[namespaces.default]",
        "[namespaces.default]\nttl_max = \"6s\"\nttl_default = \"6s\"",
    );
    let server = Server::with(&config);
    server.admit();
    let mut driver = client.start(&server.address);
    driver.hold("a", 3000);
    let _redis = redis.replace();
    // Its time runs out, because no renewal is confirmed.
    driver.event_within(Duration::from_secs(5), "a", "lost");
    driver.fails_as("a", "lost");
    driver.tell("acquire", "b", json!({"name": "b", "ttl": 3000}));
    assert_eq!(driver.fails_as("b", "unavailable")["reason"], "BACKEND_QUARANTINED");
    server.admit();
    driver.hold("c", 3000);
    driver.release("c");
    until(PATIENCE, "nothing is left", || (server.in_use() == 0).then_some(()));
}
