//! One Redis, beside bare scripts of the same work through the same client library, and beside Redisson's locks.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::backend::redis::{Store, scripts};
use fencepost::backend::redis_server::script::Ask;
use fencepost::backend::redis_server::settings::{OnEmptyStore, Servers, Settings, connection_info};
use redis::aio::MultiplexedConnection;

use crate::own::{self, CALLS, CLIENT, PROCESS};
use crate::process::Server;
use crate::side::{Bench, Bound, Caller, Figure, Side};
use crate::{Failure, peer};

#[path = "../../tests/common/redis.rs"]
pub mod servers;

const BARE: &str = "bare scripts";
const REDISSON: &str = "Redisson";

fn bounds() -> Vec<Bound> {
    let of = |callers, hot, side, figure| Bound {
        callers,
        hot,
        side,
        figure,
    };
    let bound = |hot, side, figure| of(64, hot, side, figure);
    vec![
        of(256, false, CLIENT, Figure::Beside(CALLS, 2.0)),
        bound(false, PROCESS, Figure::Beside(BARE, 0.85)),
        bound(true, PROCESS, Figure::Rate(4_000.0)),
        bound(true, CLIENT, Figure::Beside(REDISSON, 2.5)),
    ]
}

/// The bench.
pub async fn bench(program: &Path, with_peer: bool) -> Result<Bench, Failure> {
    let redis = Arc::new(servers::RedisServer::start(&[]));
    let url = redis.url();
    let table = "backend = 'redis'\n[namespaces.bench.redis]\nprefix = 'remote'\non_empty_store = 'admit'";
    let server = Server::start(program, &format!("{table}\nurls = ['{url}']"))?;
    let mut settings = Settings::new(Servers::Standalone(connection_info(&url)?));
    settings.on_empty_store = OnEmptyStore::Admit;
    let backend = Store::open(settings).namespace(&own::namespace());
    let mut sides = own::sides(&server, own::locks(backend).await?).await?;
    sides.push(bare_side(&url).await?);
    if with_peer {
        sides.push(peer::side(REDISSON, "RedissonLocks", &url)?);
    }
    let [measured, counting] = [Arc::clone(&redis), Arc::clone(&redis)];
    Ok(Bench {
        what: "Redis, one server".into(),
        server,
        sides,
        store_cpu: Box::new(move || cpu(&measured)),
        count: Some((
            "reads of its sockets",
            Box::new(move || counting.info("stats", "total_reads_processed")),
        )),
        bounds: bounds(),
        servers: Box::new(redis),
    })
}

/// The CPU time that a Redis has used.
pub fn cpu(redis: &servers::RedisServer) -> Duration {
    let info = redis.cli(&["INFO", "cpu"]);
    let used = info
        .lines()
        .filter(|line| line.starts_with("used_cpu_user:") || line.starts_with("used_cpu_sys:"));
    let seconds = used.filter_map(|line| line.split_once(':')?.1.trim().parse::<f64>().ok());
    Duration::from_secs_f64(seconds.sum())
}

async fn bare_side(url: &str) -> Result<Side, Failure> {
    let client = redis::Client::open(connection_info(url)?)?;
    let connection = client.get_multiplexed_async_connection().await?;
    Ok(Side::new(BARE, move |turn| {
        let connection = connection.clone();
        async move { Ok(turn.all("bare", |caller| bare(connection.clone(), caller)).await) }
    })
    .only_own())
}

/// The very functions of an uncontended pair, which the replicas' handshakes have loaded.
async fn bare(mut connection: MultiplexedConnection, caller: Caller) -> usize {
    let (key, mut done) = (format!("bare:{}", caller.lock).into_bytes(), 0_usize);
    let text = |text: &str| text.as_bytes().to_vec();
    let all = (1_u64 << 40).to_string();
    while Instant::now() < caller.until {
        let id = format!("{:08}{done:08}", caller.number).into_bytes();
        let mut enter = vec![
            text("bare:"),
            text("lock"),
            text("replica"),
            id.clone(),
            id.clone(),
            id.clone(),
        ];
        let rest = [
            "0", "x", &all, &all, "0", "30000000", "shown", "owner", "1", "20000", "100000", "1000",
        ];
        enter.extend(rest.map(text));
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
        let mut leave = vec![
            text("bare:"),
            text("lock"),
            text("replica"),
            text("H"),
            id.clone(),
            text(&token),
            id,
        ];
        leave.extend([text(""), text("")]);
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
    done
}
