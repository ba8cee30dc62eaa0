//! One Redis, beside bare commits of records through the same client library, and beside Redisson's locks.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use common::redis as servers;
use fencepost::backend::record::store::{
    Commit, Committed, FoundRoot, LockTime, RecordStore, ServerId, StoreTime, Version,
};
use fencepost::backend::redis::Store;
use fencepost::backend::redis_server::settings::{OnEmptyStore, Servers, Settings, connection_info};
use fencepost::name::LockName;

use crate::own::{self, CALLS, CLIENT, PROCESS};
use crate::process::Server;
use crate::side::{Bench, Bound, Caller, Figure, Side};
use crate::{Failure, peer};

const BARE: &str = "bare commits";
/// The bytes of a root with one claim.
const BODY: usize = 150;
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
    let store = Store::open(settings)?;
    let backend = store.namespace(&own::namespace());
    let mut sides = own::sides(&server, own::locks(backend).await?).await?;
    sides.push(bare_side(&store));
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
        size: None,
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

fn bare_side(store: &Store) -> Side {
    let records = store.records(&own::namespace());
    Side::new(BARE, move |turn| {
        let records = Arc::clone(&records);
        async move { Ok(turn.all("bare", |caller| bare(Arc::clone(&records), caller)).await) }
    })
    .only_own()
}

/// The commits of an uncontended pair, without the engine.
async fn bare(records: Arc<dyn RecordStore>, caller: Caller) -> usize {
    let lock = LockName::new(&format!("bare{}", caller.lock)).expect("a name");
    let (mut expected, mut done) = (None, 0_usize);
    while Instant::now() < caller.until {
        for _ in 0..2 {
            let version = Version::random().expect("a random number");
            let commit = Commit {
                lock: lock.clone(),
                expected,
                version,
                body: vec![0; BODY],
                not_before: LockTime(0),
                not_after: LockTime(u64::MAX >> 1),
                latest: StoreTime(u64::MAX >> 1),
                put: Vec::new(),
                delete: 0..0,
                floor: 0,
                messages: Vec::new(),
                server: ServerId(version.0),
                reserve: None,
                keep: Duration::ZERO,
                grants: true,
                extends: true,
                soft: false,
            };
            expected = match records.commit(commit).await.expect("an answer") {
                // An earlier turn has left its root.
                Committed::Refused(found) => match found.root {
                    FoundRoot::Root(root) => Some(root.version),
                    _ => None,
                },
                _ => Some(version),
            };
        }
        done += 1;
    }
    done
}
