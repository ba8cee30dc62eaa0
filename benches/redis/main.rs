//! Acquire and Release against one Redis on loopback: by bare scripts of the same work through the same
//! client library, through the backend in process, and through gRPC at the real server; and the
//! hand-offs of a hot lock. All in one run and in turn, round by round: what is said is the median of
//! the rounds, and of the ratios within each round.
//!
//! `cargo bench --bench redis` fails when a figure misses its requirement; with `-- --quick` it only
//! shows them.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::backend::redis::{Store, scripts};
use fencepost::backend::redis_server::script::Ask;
use fencepost::backend::redis_server::settings::{OnEmptyStore, Servers, Settings, connection_info};
use fencepost::backend::{Backend, Health};
use fencepost::limits::Limits;
use fencepost::locks::{Acquire, Locks};
use fencepost::name::{Identity, LockName, Metadata, Mode, Namespace, Owner};

#[path = "../core/client.rs"]
#[allow(dead_code, reason = "the bench of the core uses the rest")]
mod client;
mod process;
#[path = "../../tests/common/redis.rs"]
mod servers;
#[path = "../core/stats.rs"]
#[allow(dead_code, reason = "the bench of the core uses the rest")]
mod stats;

/// Why the bench ended.
type Failure = Box<dyn std::error::Error + Send + Sync>;

const CALLERS: usize = 64;
const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_secs(2);

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let reached = runtime.block_on(run());
    let quick = std::env::args().any(|argument| argument == "--quick");
    if !(reached || quick) {
        std::process::exit(1);
    }
}

/// What one measurement gave.
struct Figures {
    rate: f64,
    /// Of this process, of the lock server and of Redis, in µs of CPU time for each.
    cpu: [f64; 3],
    /// What Redis read and wrote on its sockets for each.
    turns: [f64; 2],
}

/// Whether everything that is required was reached.
async fn run() -> bool {
    let redis = servers::RedisServer::start(&[]);
    let server = process::Server::start(Path::new(env!("CARGO_BIN_EXE_fencepost")), &redis.url());
    let locks = replica(&redis.url()).await;
    let remote = client::connect(&server.address).await.expect("the server answers");
    let (mut bare, mut backend, mut grpc, mut hot) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(measure(&redis, &server, || by_scripts(redis.url())).await);
        backend.push(measure(&redis, &server, || pairs(locks.clone(), false)).await);
        grpc.push(measure(&redis, &server, || remotely(remote.clone())).await);
        hot.push(measure(&redis, &server, || pairs(locks.clone(), true)).await);
    }
    show("bare scripts, pairs", &bare);
    show("through the backend, pairs", &backend);
    show("through gRPC, pairs", &grpc);
    show("one hot lock, hand-offs", &hot);
    let rates = |all: &[Figures]| all.iter().map(|one| one.rate).collect::<Vec<_>>();
    let of_bare = |these: &[Figures]| stats::ratios(rates(these).into_iter(), rates(&bare).into_iter());
    let hand_offs = rates(&hot);
    let judged = [
        ("pairs through the backend, of the bare scripts", of_bare(&backend), 0.7),
        ("pairs through gRPC, of the bare scripts", of_bare(&grpc), 0.3),
        ("hand-offs a second of one hot lock", hand_offs, 3_000.0),
    ];
    let reached = judged.map(|(what, rounds, least)| {
        let reached = stats::median(rounds.clone()) >= least;
        let word = if reached { "reached" } else { "MISSED" };
        println!("{what}: {}, required {least}: {word}", stats::spread(&rounds, 2));
        reached
    });
    reached.iter().all(|reached| *reached)
}

fn show(what: &str, rounds: &[Figures]) {
    let middle = |of: &dyn Fn(&Figures) -> f64| stats::median(rounds.iter().map(of).collect());
    let rate = stats::spread(&rounds.iter().map(|one| one.rate).collect::<Vec<_>>(), 0);
    let [own, server, redis] = [0, 1, 2].map(|at| middle(&|one| one.cpu[at]));
    let [reads, writes] = [0, 1].map(|at| middle(&|one| one.turns[at]));
    println!(
        "{what}: {rate}/s; us of CPU each: {own:.0} here, {server:.0} in the server, {redis:.0} in Redis; \
         Redis read {reads:.2} and wrote {writes:.2} times each"
    );
}

async fn measure<F: Future<Output = usize>>(
    redis: &servers::RedisServer,
    server: &process::Server,
    run: impl FnOnce() -> F,
) -> Figures {
    let cpu = || [process::own_cpu(), server.cpu(), process::redis_cpu(redis)];
    let turns = || ["total_reads_processed", "total_writes_processed"].map(|field| redis.info("stats", field));
    let (cpu_before, turns_before, began) = (cpu(), turns(), Instant::now());
    let done = run().await as f64;
    let (rate, cpu, turns) = (done / began.elapsed().as_secs_f64(), cpu(), turns());
    Figures {
        rate,
        cpu: std::array::from_fn(|at| (cpu[at] - cpu_before[at]) * 1e6 / done),
        turns: std::array::from_fn(|at| (turns[at] - turns_before[at]) as f64 / done),
    }
}

async fn replica(url: &str) -> Locks {
    let mut settings = Settings::new(Servers::Standalone(connection_info(url).expect("a good URL")));
    settings.on_empty_store = OnEmptyStore::Admit;
    let namespace = Namespace::new("bench").expect("a good name");
    let backend: Arc<dyn Backend> = Store::open(settings).namespace(&namespace);
    let mut health = backend.health();
    health
        .wait_for(|health| *health == Health::Serving)
        .await
        .expect("it serves");
    Locks::new(namespace, Limits::default(), backend)
}

/// What all callers have done together.
async fn all_done(callers: impl Iterator<Item = tokio::task::JoinHandle<usize>>) -> usize {
    let done = futures::future::join_all(callers).await;
    done.into_iter().map(|done| done.expect("no panic")).sum()
}

async fn remotely(locks: client::Locks) -> usize {
    let until = Instant::now() + TIME;
    let caller = |n: usize| {
        let (mut locks, ask) = (
            locks.clone(),
            client::ask(process::NAMESPACE, format!("lock{n}"), "bench", Duration::ZERO),
        );
        tokio::spawn(async move {
            let mut done = 0;
            while Instant::now() < until {
                client::pair(&mut locks, ask.clone()).await.expect("a pair");
                done += 1;
            }
            done
        })
    };
    all_done((0..CALLERS).map(caller)).await
}

async fn pairs(locks: Locks, hot: bool) -> usize {
    let until = Instant::now() + TIME;
    all_done((0..CALLERS).map(|n| tokio::spawn(caller(locks.clone(), if hot { 0 } else { n }, until)))).await
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

/// The very functions of an uncontended pair, which the replicas' handshakes have loaded, with arguments made
/// beforehand.
async fn by_scripts(url: String) -> usize {
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
                    beside: &[],
                    args: &enter,
                    asking: false,
                };
                let held = scripts::ACQUIRE
                    .call_function(&mut connection, &ask)
                    .await
                    .expect("an answer");
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
                    beside: &[],
                    args: &leave,
                    asking: false,
                };
                scripts::RELEASE
                    .call_function(&mut connection, &ask)
                    .await
                    .expect("an answer");
                done += 1;
            }
            done as usize
        })
    });
    all_done(callers).await
}
