//! Acquire and Release over five nodes on loopback: by the bare scripts of the same work at all five
//! through the same client library, and through the backend in process. In one run and in turn, round
//! by round: what is said is the median of the rounds, and of the ratios within each round.
//!
//! `cargo bench --bench redlock` fails when a figure misses its requirement; with `-- --quick` it only
//! shows them.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use fencepost::backend::redis_server::script::{Ask, Script};
use fencepost::backend::redis_server::settings::{OnEmptyStore, connection_info};
use fencepost::backend::redlock::settings::Quorum;
use fencepost::backend::redlock::{Store, scripts};
use fencepost::backend::{Backend, Health};
use fencepost::limits::Limits;
use fencepost::locks::{Acquire, Locks};
use fencepost::name::{Identity, LockName, Metadata, Mode, Namespace, Owner};
use redis::aio::MultiplexedConnection;

#[path = "../../tests/common/redis.rs"]
mod servers;
#[path = "../core/stats.rs"]
#[allow(dead_code, reason = "the bench of the core uses the rest")]
mod stats;

const CALLERS: usize = 64;
const NODES: usize = 5;
const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_secs(2);
const REQUIRED: f64 = 0.7;
/// The admission of the bare scripts: as good as any.
const EPOCH: &str = "bare";

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let reached = runtime.block_on(run());
    let quick = std::env::args().any(|argument| argument == "--quick");
    if !(reached || quick) {
        std::process::exit(1);
    }
}

/// Whether what is required was reached.
async fn run() -> bool {
    let nodes: [servers::RedisServer; NODES] = std::array::from_fn(|_| servers::RedisServer::start(&[]));
    for node in &nodes {
        node.cli(&["HSET", "bare:admitted", "epoch", EPOCH, "floor", "1", "used", "1"]);
    }
    let urls: Vec<String> = nodes.iter().map(servers::RedisServer::url).collect();
    let locks = replica(&urls).await;
    let (mut bare, mut backend) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        bare.push(rate(by_scripts(urls.clone(), round)).await);
        backend.push(rate(pairs(locks.clone())).await);
    }
    let ratios = stats::ratios(backend.iter().copied(), bare.iter().copied());
    println!("bare scripts, pairs: {}/s", stats::spread(&bare, 0));
    println!("through the backend, pairs: {}/s", stats::spread(&backend, 0));
    let reached = stats::median(ratios.clone()) >= REQUIRED;
    let word = if reached { "reached" } else { "MISSED" };
    let ratio = stats::spread(&ratios, 2);
    println!("pairs through the backend, of the bare scripts: {ratio}, required {REQUIRED}: {word}");
    reached
}

async fn rate(run: impl Future<Output = usize>) -> f64 {
    let began = Instant::now();
    run.await as f64 / began.elapsed().as_secs_f64()
}

async fn replica(urls: &[String]) -> Locks {
    let nodes = urls
        .iter()
        .map(|url| connection_info(url).expect("a good URL"))
        .collect();
    let mut quorum = Quorum::new(nodes);
    quorum.on_empty_store = OnEmptyStore::Admit;
    let namespace = Namespace::new("bench").expect("a good name");
    let backend: Arc<dyn Backend> = Store::open(quorum).namespace(&namespace);
    let mut health = backend.health();
    let served = health.wait_for(|health| *health == Health::Serving);
    served.await.expect("it serves");
    Locks::new(namespace, Limits::default(), backend)
}

/// What all callers have done together.
async fn all_done(callers: impl Iterator<Item = tokio::task::JoinHandle<usize>>) -> usize {
    let done = futures::future::join_all(callers).await;
    done.into_iter().map(|done| done.expect("no panic")).sum()
}

async fn pairs(locks: Locks) -> usize {
    let until = Instant::now() + TIME;
    all_done((0..CALLERS).map(|n| tokio::spawn(caller(locks.clone(), n, until)))).await
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

/// The very scripts of an uncontended pair at all nodes, and the answers of all.
async fn by_scripts(urls: Vec<String>, round: usize) -> usize {
    let mut nodes = Vec::new();
    for url in urls {
        let client = redis::Client::open(connection_info(&url).expect("a good URL")).expect("a client");
        nodes.push(client.get_multiplexed_async_connection().await.expect("a connection"));
    }
    let until = Instant::now() + TIME;
    all_done((0..CALLERS).map(|n| tokio::spawn(bare(nodes.clone(), (round, n), until)))).await
}

async fn bare(mut nodes: Vec<MultiplexedConnection>, (round, lock): (usize, usize), until: Instant) -> usize {
    let (name, mut done) = (format!("lock{lock}"), 0_u64);
    let key = format!("bare:ns:l:{name}");
    let text = |text: &str| text.as_bytes().to_vec();
    while Instant::now() < until {
        // Of an attempt that is over only its end is said.
        let id = format!("{round:02}{lock:06}{done:08}").into_bytes();
        let common = [text(EPOCH), text("bare:ns:c"), text(&name)];
        let mut vote = common.to_vec();
        vote.extend([id.clone(), text("0"), id.clone(), id.clone(), text("30302000"), hint()]);
        vote.extend([text("shown"), text("1"), text("100000")]);
        let numbers = at_all(&mut nodes, &scripts::LOCK, &key, &vote).await;
        // Otherwise it would have been less than the work of a pair.
        assert!(
            numbers.iter().all(|number| *number == numbers[0] && *number > 0),
            "votes differ: {numbers:?}"
        );
        let token = numbers.iter().max().expect("a number").to_string();
        let mut release = common.to_vec();
        release.extend([text("H"), id.clone(), id, text(""), text(&token), text("70000000")]);
        at_all(&mut nodes, &scripts::RELEASE, &key, &release).await;
        done += 1;
    }
    done as usize
}

/// The third word of each node's answer, where it is a number.
/// A number that all nodes can agree on, for they share this machine's clock.
fn hint() -> Vec<u8> {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("a clock");
    (now + Duration::from_millis(50)).as_micros().to_string().into_bytes()
}

async fn at_all(nodes: &mut [MultiplexedConnection], script: &Script, key: &str, args: &[Vec<u8>]) -> Vec<u64> {
    let calls = nodes.iter_mut().map(|node| async move {
        let ask = Ask {
            key: key.as_bytes(),
            beside: &[b"bare:admitted", b"bare:ns:names"],
            args,
            asking: false,
        };
        let answer = script.call(node, &ask).await.expect("an answer");
        let words = answer.as_sequence().expect("words");
        words
            .get(2)
            .and_then(|word| redis::from_redis_value_ref::<u64>(word).ok())
            .unwrap_or_default()
    });
    futures::future::join_all(calls).await
}
