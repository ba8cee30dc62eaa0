//! RedLock over five nodes, beside bare scripts of the same work at all five through the same client library.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use fencepost::backend::redis_server::script::{Script, ScriptCall};
use fencepost::backend::redis_server::settings::{OnEmptyStore, connection_info};
use fencepost::backend::redlock::settings::Quorum;
use fencepost::backend::redlock::{Store, scripts};
use redis::aio::MultiplexedConnection;

use crate::Failure;
use crate::own::{self, PROCESS};
use crate::process::Server;
use crate::redis_servers::{cpu, servers::RedisServer};
use crate::side::{Bench, Bound, Caller, Figure, Side};

const NODES: usize = 5;
const BARE: &str = "bare scripts at all nodes";
/// The admission of the bare scripts: as good as any.
const EPOCH: &str = "bare";

/// The bench.
pub async fn bench(program: &Path) -> Result<Bench, Failure> {
    let nodes: Arc<[RedisServer; NODES]> = Arc::new(std::array::from_fn(|_| RedisServer::start(&[])));
    for node in nodes.iter() {
        node.cli(&["HSET", "bare:admitted", "epoch", EPOCH, "floor", "1", "used", "1"]);
    }
    let urls: Vec<String> = nodes.iter().map(RedisServer::url).collect();
    let table = "backend = 'redlock'\n[namespaces.bench.redlock]\nprefix = 'remote'\non_empty_store = 'admit'";
    let server = Server::start(program, &format!("{table}\nnodes = {urls:?}"))?;
    let infos = urls.iter().map(|url| connection_info(url).expect("a good URL"));
    let mut quorum = Quorum::new(infos.collect());
    quorum.on_empty_store = OnEmptyStore::Admit;
    let backend = Store::open(quorum).namespace(&own::namespace());
    let mut sides = own::sides(&server, own::locks(backend).await?).await?;
    sides.push(bare_side(&urls).await?);
    let measured = Arc::clone(&nodes);
    Ok(Bench {
        what: "RedLock, five nodes".into(),
        server,
        sides,
        store_cpu: Box::new(move || measured.iter().map(cpu).sum()),
        count: None,
        size: None,
        bounds: vec![Bound {
            callers: 64,
            hot: false,
            side: PROCESS,
            figure: Figure::Beside(BARE, 0.7),
        }],
        servers: Box::new(nodes),
    })
}

async fn bare_side(urls: &[String]) -> Result<Side, Failure> {
    let mut nodes = Vec::new();
    for url in urls {
        let client = redis::Client::open(connection_info(url)?)?;
        nodes.push(client.get_multiplexed_async_connection().await?);
    }
    Ok(Side::new(BARE, move |turn| {
        let nodes = nodes.clone();
        async move { Ok(turn.all("bare", |caller| bare(nodes.clone(), turn.round, caller)).await) }
    })
    .only_own())
}

/// The very scripts of an uncontended pair at all nodes, and the answers of all.
async fn bare(mut nodes: Vec<MultiplexedConnection>, round: usize, caller: Caller) -> usize {
    let (name, mut done) = (caller.lock.as_str(), 0_usize);
    let key = format!("bare:ns:l:{name}");
    let text = |text: &str| text.as_bytes().to_vec();
    while Instant::now() < caller.until {
        // Of an attempt that is over only its end is said.
        let id = format!("{round:02}{:06}{done:08}", caller.number).into_bytes();
        let common = [text(EPOCH), text("bare:ns:c"), text(name)];
        let mut vote = common.to_vec();
        vote.extend([id.clone(), text("0"), id.clone(), id.clone(), text("30302000"), hint()]);
        vote.extend([text("shown"), text("1"), text("100000")]);
        let numbers = at_all(&mut nodes, &scripts::LOCK, &key, &vote).await;
        // Otherwise it would have been less than the work of a pair.
        assert!(
            numbers.iter().all(|number| *number == numbers[0] && *number > 0),
            "votes differ: {numbers:?}"
        );
        let token = numbers[0].to_string();
        let mut release = common.to_vec();
        release.extend([text("H"), id.clone(), id, text(""), text(&token), text("70000000")]);
        at_all(&mut nodes, &scripts::RELEASE, &key, &release).await;
        done += 1;
    }
    done
}

/// A number that all nodes can agree on, for they share this machine's clock.
fn hint() -> Vec<u8> {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("a clock");
    (now + Duration::from_millis(50)).as_micros().to_string().into_bytes()
}

/// The third word of each node's answer, where it is a number.
async fn at_all(nodes: &mut [MultiplexedConnection], script: &Script, key: &str, args: &[Vec<u8>]) -> Vec<u64> {
    let calls = nodes.iter_mut().map(|node| async move {
        let call = ScriptCall {
            key: key.as_bytes(),
            beside: &[b"bare:admitted", b"bare:ns:names"],
            args,
            asking: false,
        };
        let answer = script.call(node, &call).await.expect("an answer");
        let words = answer.as_sequence().expect("words");
        words
            .get(2)
            .and_then(|word| redis::from_redis_value_ref::<u64>(word).ok())
            .unwrap_or_default()
    });
    futures::future::join_all(calls).await
}
