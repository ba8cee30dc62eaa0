//! What the network does to a client: silence, delay, resets, proxies, and a client that stands still itself.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::driver::{Client, Driver, PATIENCE, until};
use crate::ports::free_port;
use crate::proxy::{Pass, Proxy};
use crate::server::{Nginx, Server};

/// How much later than its time a loss may be told on a busy machine.
const SLACK: Duration = Duration::from_millis(800);
/// The idle limit of proxies, and more.
const LONG_WAIT: Duration = Duration::from_secs(70);

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// The lock is held all the time, by the client and at the server, and is released in the end.
fn keeps(driver: &mut Driver, server: &Server, name: &str, time: Duration) {
    let token = server.lock(name)["holders"][0]["fencingToken"].clone();
    let end = Instant::now() + time;
    while Instant::now() < end {
        assert!(driver.all(name, &["lost"]).is_empty(), "it was lost");
        assert!(driver.check(name).is_some(), "it does not count as held");
        assert_eq!(
            server.lock(name)["holders"][0]["fencingToken"],
            token,
            "the server lost it"
        );
        sleep(ms(200));
    }
    driver.release(name);
    server.until_all_free(PATIENCE);
}

fn silent(client: &Client, up: Pass, down: Pass, ttl: u64) {
    let server = Server::memory();
    let proxy = Proxy::before(&server.address);
    let mut driver = client.start(&proxy.address);
    driver.hold("a", ttl);
    sleep(ms(ttl / 2));
    proxy.present(up, down);
    keeps(&mut driver, &server, "a", ms(ttl * 2));
}

pub fn silent_connection(client: &Client) {
    silent(client, Pass::Nothing, Pass::Nothing, 6000);
}

pub fn silent_connection_10_s(client: &Client) {
    silent(client, Pass::Nothing, Pass::Nothing, 10_000);
}

pub fn silent_connection_30_s(client: &Client) {
    silent(client, Pass::Nothing, Pass::Nothing, 30_000);
}

pub fn silence_up(client: &Client) {
    silent(client, Pass::Nothing, Pass::All, 6000);
}

pub fn silence_down(client: &Client) {
    silent(client, Pass::All, Pass::Nothing, 6000);
}

pub fn delay(client: &Client) {
    let server = Server::memory();
    let proxy = Proxy::before(&server.address);
    let delay = Pass::After(ms(750));
    proxy.all(delay, delay);
    let mut driver = client.start(&proxy.address);
    driver.hold("a", 10_000);
    keeps(&mut driver, &server, "a", ms(15_000));
}

pub fn resets(client: &Client) {
    let server = Server::memory();
    let proxy = Proxy::before(&server.address);
    let mut driver = client.start(&proxy.address);
    driver.hold("a", 4000);
    for _ in 0..16 {
        sleep(ms(350));
        proxy.cut();
    }
    keeps(&mut driver, &server, "a", ms(1000));
}

/// The connection breaks, and new ones are refused for a while. The wait has its place when it comes back.
pub fn broken_wait(client: &Client) {
    let server = Server::memory();
    let proxy = Proxy::before(&server.address);
    let mut drivers = [&server.address, &proxy.address, &server.address].map(|address| client.start(address));
    for (number, driver) in drivers.iter_mut().enumerate() {
        driver.acquire("a", 20_000, 60_000);
        match number {
            0 => drop(driver.granted("a")),
            _ => server.until_waiters("a", number as u64),
        }
    }
    let [holder, first, second] = &mut drivers;
    proxy.refuse(true);
    proxy.cut();
    holder.release("a");
    sleep(ms(2000));
    proxy.refuse(false);
    first.granted("a");
    assert!(second.all("a", &["granted"]).is_empty(), "nobody overtakes it");
    first.release("a");
    second.granted("a");
    second.release("a");
    server.until_all_free(PATIENCE);
}

/// The server grants, and the answer never arrives: the retry finds the same grant.
pub fn lost_answer(client: &Client) {
    let server = Server::memory();
    let proxy = Proxy::before(&server.address);
    let mut driver = client.start(&proxy.address);
    driver.hold("warm", 20_000);
    proxy.present(Pass::All, Pass::Nothing);
    driver.acquire("a", 20_000, 15_000);
    let token = until(PATIENCE, "the server grants", || {
        server.lock("a")["holders"][0]["fencingToken"]
            .as_str()
            .map(str::to_owned)
    });
    proxy.cut();
    assert_eq!(driver.granted("a").to_string(), token);
    assert_eq!(server.lock("a")["holders"][0]["holds"], 1);
    driver.release("a");
    driver.release("warm");
    server.until_all_free(PATIENCE);
}

pub fn hang(client: &Client) {
    let server = Server::memory();
    let mut driver = client.start(&server.address);
    driver.hold("a", 3000);
    sleep(ms(1500));
    server.signal(Signal::SIGSTOP);
    let stopped = Instant::now();
    let (lost, _) = driver.event_within(ms(3000) + SLACK, "a", "lost");
    assert!(
        lost - stopped > ms(900),
        "it was told {:?} after the stop, before its time",
        lost - stopped
    );
    assert_eq!(driver.check("a"), None);
    driver.fails_as("a", "lost");
    server.signal(Signal::SIGCONT);
    driver.hold("b", 3000);
    driver.release("b");
}

/// A client that was stopped beyond its TTL never writes with a token that another client has passed.
pub fn stopped_client(client: &Client) {
    let server = Server::memory();
    let (mut driver, mut rival) = (client.start(&server.address), client.start(&server.address));
    let old = driver.hold("a", 2000);
    driver.signal(Signal::SIGSTOP);
    let new = rival.hold("a", 10_000);
    assert!(new > old);
    driver.signal(Signal::SIGCONT);
    assert_eq!(
        driver.check("a"),
        None,
        "it would write with the token {old} after {new}"
    );
    driver.fails_as("a", "lost");
    rival.release("a");
}

pub fn waits_through_nginx(client: &Client) {
    let server = Server::memory();
    let nginx = Nginx::before(&server.address);
    let (mut holder, mut driver) = (client.start(&server.address), client.start(&nginx.address));
    holder.hold("busy", 60_000);
    driver.hold("a", 4000);
    for number in 0..160 {
        driver.tell(
            "acquire",
            &format!("w{number}"),
            json!({"name": "busy", "wait": 40_000, "ttl": 10_000}),
        );
    }
    server.until_waiters("busy", 100);
    sleep(ms(5000));
    assert!(
        driver.check("a").is_some() && server.holders("a") == 1,
        "its renewals were held up"
    );
    let begin = Instant::now();
    driver.release("a");
    assert!(begin.elapsed() < ms(3000), "its release took {:?}", begin.elapsed());
    for number in 0..160 {
        driver.tell("cancel", &format!("w{number}"), json!({}));
    }
    for number in 0..160 {
        driver.fails_as(&format!("w{number}"), "cancelled");
    }
    holder.release("busy");
    server.until_all_free(PATIENCE);
}

/// nginx cuts a call that is silent for 60 s.
pub fn long_wait_through_nginx(client: &Client) {
    let server = Server::memory();
    let nginx = Nginx::before(&server.address);
    let (mut holder, mut driver) = (client.start(&server.address), client.start(&nginx.address));
    holder.hold("a", 20_000);
    driver.acquire("a", 10_000, 120_000);
    server.until_waiters("a", 1);
    let since = server.lock("a")["waiters"][0]["since"].clone();
    sleep(LONG_WAIT);
    let lock = server.lock("a");
    assert_eq!(lock["waiters"][0]["since"], since, "it lost its place: {lock}");
    holder.release("a");
    driver.granted("a");
    driver.release("a");
    server.until_all_free(PATIENCE);
}

/// A proxy that the environment names sees none of the locks. The address is not one of the loopback addresses, which no
/// client asks a proxy for.
pub fn proxy_variables(client: &Client) {
    let server = Server::memory();
    let address = server.address.replace("127.0.0.1", "0.0.0.0");
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let names = [
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "grpc_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ];
    let environment: Vec<_> = names.iter().map(|name| (*name, nobody.as_str())).collect();
    let mut driver = client.start_with(&address, &environment);
    driver.hold("a", 10_000);
    driver.release("a");
}
