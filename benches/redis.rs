//! Acquire and Release through the backend against bare scripts of the same work through the same
//! client library, and the hand-offs of a hot lock: against one Redis on loopback, in one run.
//!
//! `cargo bench --bench redis`

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::backend::redis::{Store, scripts};
use fencepost::backend::redis_server::script::Ask;
use fencepost::backend::redis_server::settings::{FirstStart, Servers, Settings, connection_info};
use fencepost::backend::{Backend, Health};
use fencepost::limits::Limits;
use fencepost::locks::{Acquire, Locks};
use fencepost::name::{Identity, LockName, Metadata, Mode, Namespace, Owner};

#[path = "../tests/common/redis.rs"]
mod servers;

const CALLERS: usize = 64;
const TIME: Duration = Duration::from_secs(3);

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(run());
}

async fn run() {
    let server = servers::RedisServer::start(&[]);
    let bare = measure("bare scripts, pairs", &server, || bare(server.url())).await;
    let backend = measure("through the backend, pairs", &server, || pairs(server.url(), false)).await;
    println!("the backend reaches {:.2} of the bare scripts", backend / bare);
    measure("one hot lock, hand-offs", &server, || pairs(server.url(), true)).await;
}

async fn measure<F: Future<Output = usize>>(what: &str, server: &servers::RedisServer, run: impl FnOnce() -> F) -> f64 {
    let cpu = || {
        server
            .cli(&["INFO", "cpu"])
            .lines()
            .find_map(|line| line.strip_prefix("used_cpu_user:")?.trim().parse::<f64>().ok())
            .unwrap_or_default()
    };
    let (before, began) = (cpu(), Instant::now());
    let done = run().await;
    let rate = done as f64 / began.elapsed().as_secs_f64();
    let micros = (cpu() - before) * 1e6 / done as f64;
    println!("{what}: {rate:.0}/s, {micros:.0} us of the server's CPU each");
    rate
}

async fn pairs(url: String, hot: bool) -> usize {
    let mut settings = Settings::new(Servers::Standalone(connection_info(&url).expect("a good URL")));
    settings.first_start = FirstStart::Admit;
    let namespace = Namespace::new("bench").expect("a good name");
    let backend: Arc<dyn Backend> = Store::open(settings).namespace(&namespace);
    let mut health = backend.health();
    health
        .wait_for(|health| *health == Health::Serving)
        .await
        .expect("it serves");
    let locks = Locks::new(namespace, Limits::default(), backend);
    let until = Instant::now() + TIME;
    let callers = (0..CALLERS).map(|n| tokio::spawn(caller(locks.clone(), if hot { 0 } else { n }, until)));
    futures::future::join_all(callers)
        .await
        .into_iter()
        .map(|done| done.expect("no panic"))
        .sum()
}

async fn caller(locks: Locks, lock: usize, until: Instant) -> usize {
    let ask = Acquire {
        lock: LockName::new(&format!("lock{lock}")).expect("a good name"),
        owner: Owner::new("bench").expect("a good name"),
        identity: Identity::anonymous(),
        mode: Mode::Exclusive,
        ttl: Some(Duration::from_secs(30)),
        wait: Duration::from_secs(30),
        request_id: None,
        reentrant: false,
        metadata: Metadata::default(),
    };
    let mut done = 0;
    while Instant::now() < until {
        let lease = locks.acquire(ask.clone()).await.expect("a grant").delivered();
        locks.release(&lease.key).await.expect("a release");
        done += 1;
    }
    done
}

/// The very scripts of an uncontended pair, with arguments made beforehand.
async fn bare(url: String) -> usize {
    let client = redis::Client::open(connection_info(&url).expect("a good URL")).expect("a client");
    let connection = client.get_multiplexed_async_connection().await.expect("a connection");
    let until = Instant::now() + TIME;
    let callers = (0..CALLERS).map(|n| {
        let mut connection = connection.clone();
        tokio::spawn(async move {
            let key = format!("bare:{n}").into_bytes();
            let mut done = 0u64;
            while Instant::now() < until {
                let id = format!("{n:08}{done:08}").into_bytes();
                let text = |text: &str| text.as_bytes().to_vec();
                let all = format!("{}", 1u64 << 40);
                let mut enter = vec![
                    text("bare:"),
                    text("lock"),
                    text("replica"),
                    id.clone(),
                    id.clone(),
                    id.clone(),
                ];
                enter.extend(
                    [
                        "0", "x", &all, &all, "0", "30000000", "shown", "owner", "1", "20000", "100000", "1000",
                    ]
                    .map(text),
                );
                let ask = Ask {
                    key: &key,
                    args: &enter,
                    asking: false,
                };
                let held = scripts::ENTER.call(&mut connection, &ask).await.expect("an answer");
                let token = held
                    .as_sequence()
                    .and_then(|held| redis::from_redis_value_ref::<u64>(&held[4]).ok());
                let token = token.expect("a token").to_string();
                let leave = vec![
                    text("bare:"),
                    text("lock"),
                    text("replica"),
                    text("H"),
                    id.clone(),
                    text(&token),
                    id,
                    text(""),
                    text(""),
                ];
                let ask = Ask {
                    key: &key,
                    args: &leave,
                    asking: false,
                };
                scripts::LEAVE.call(&mut connection, &ask).await.expect("an answer");
                done += 1;
            }
            done as usize
        })
    });
    futures::future::join_all(callers)
        .await
        .into_iter()
        .map(|done| done.expect("no panic"))
        .sum()
}
