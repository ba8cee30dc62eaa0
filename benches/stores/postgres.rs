//! One PostgreSQL on a disk, beside its advisory locks and beside ShedLock's statements.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::backend::postgres::Store;
use fencepost::backend::postgres::settings::{Credentials, Login, Settings};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_postgres::{Client, Config, NoTls, Statement};

use crate::Failure;
use crate::own::{self, CLIENT, PROCESS};
use crate::process::Server;
use crate::report::Report;
use crate::side::{Bench, Bound, Caller, Figure, Row, Side, Turn};
use crate::stats;

#[path = "../../tests/common/postgres.rs"]
mod servers;

const ADVISORY: &str = "pg_try_advisory_lock, pg_advisory_unlock";
const SHEDLOCK: &str = "ShedLock's two UPDATEs";
/// How many connections the peers share, as an application's pool does.
const CONNECTIONS: usize = 16;
/// How much slower the last tenth of many uses may be than the first.
const GROWTH: f64 = 1.2;

const TRY_LOCK: &str = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
const UNLOCK: &str = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";
const TABLE: &str = "CREATE TABLE shedlock (name varchar(64) PRIMARY KEY, lock_until timestamp NOT NULL, \
                     locked_at timestamp NOT NULL, locked_by varchar(255) NOT NULL)";
const INSERT: &str = "INSERT INTO shedlock SELECT $1, '-infinity', '-infinity', '' ON CONFLICT DO NOTHING";
const TAKE: &str = "UPDATE shedlock SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + interval '30 s', \
                    locked_at = timezone('utc', CURRENT_TIMESTAMP), locked_by = 'bench' \
                    WHERE name = $1 AND lock_until <= timezone('utc', CURRENT_TIMESTAMP)";
const LEAVE: &str = "UPDATE shedlock SET lock_until = timezone('utc', CURRENT_TIMESTAMP) \
                     WHERE name = $1 AND locked_by = 'bench'";

fn bounds() -> Vec<Bound> {
    let of = |callers, figure| Bound {
        callers,
        hot: false,
        side: CLIENT,
        figure,
    };
    vec![
        // Two, and the beats of two servers.
        of(1, Figure::Counted(2.1)),
        of(64, Figure::StoreCpu(ADVISORY, 0.8)),
        of(64, Figure::StoreCpu(SHEDLOCK, 0.2)),
        of(64, Figure::Beside(SHEDLOCK, 2.0)),
    ]
}

/// The bench, where there is a PostgreSQL.
pub async fn bench(program: &Path) -> Result<Option<Bench>, Failure> {
    if !servers::available() {
        return Ok(None);
    }
    let postgres = Arc::new(servers::Postgres::started(&[("autovacuum_naptime", "1min")]));
    let address = postgres.address();
    let server = Server::start(
        program,
        &format!("backend = 'postgres'\n[namespaces.bench.postgres]\nservers = ['{address}']"),
    )?;
    let login = Login {
        user: servers::NAME.into(),
        password: String::new(),
    };
    let credentials = Credentials {
        login: Some(login),
        tls: None,
    };
    let store = Store::open(Settings::new(vec![address]), credentials)?;
    let mut sides = own::sides(&server, own::locks(store.namespace(&own::namespace())).await?).await?;
    postgres.sql(TABLE);
    let peers = Arc::new(Peers::connect(postgres.port()).await?);
    let side = |name, kind| {
        let peers = Arc::clone(&peers);
        Side::new(name, move |turn| {
            let peers = Arc::clone(&peers);
            async move { Ok(turn.all(name, |caller| Arc::clone(&peers).pairs(kind, caller)).await) }
        })
        .only_own()
    };
    sides.push(side(ADVISORY, Kind::Advisory));
    sides.push(side(SHEDLOCK, Kind::ShedLock));
    let [measured, counting] = [Arc::clone(&postgres), Arc::clone(&postgres)];
    Ok(Some(Bench {
        what: "PostgreSQL, one server".into(),
        server,
        sides,
        store_cpu: Box::new(move || measured.cpu()),
        count: Some(("commits", Box::new(move || commits(&counting)))),
        bounds: bounds(),
        servers: Box::new(postgres),
    }))
}

/// How many transactions have written.
fn commits(postgres: &servers::Postgres) -> u64 {
    let next = postgres.sql("SELECT pg_snapshot_xmax(pg_current_snapshot())");
    next.parse().expect("the number of the next transaction")
}

/// A million uses of 64 locks in process: what the last tenth costs beside the first.
pub async fn uses(bench: &Bench, uses: usize, report: &mut Report) -> Result<(), Failure> {
    let side = bench.sides.iter().find(|side| side.name == PROCESS);
    let mut row = Row::of(side.ok_or("no side in process")?);
    let (mut done, mut tenths) = (0, Vec::new());
    while done < uses {
        let turn = Turn {
            round: 0,
            callers: 64,
            hot: false,
            time: Duration::from_secs(2),
        };
        done += row.measure(bench, turn).await?;
        if done * 10 >= uses * (tenths.len() + 1) {
            tenths.push(stats::median(std::mem::take(&mut row.cpu[2])));
        }
    }
    let [first, last] = [tenths.first(), tenths.last()].map(|tenth| tenth.copied().unwrap_or_default());
    report.add_growth(&format!("{done} uses of 64 locks"), last / first, GROWTH);
    Ok(())
}

/// What is asked of a peer.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Advisory,
    ShedLock,
}

/// Locks of PostgreSQL's users, over a pool of connections.
struct Peers {
    free: Mutex<Vec<Peer>>,
    permits: Semaphore,
}

/// A connection with its prepared statements.
struct Peer {
    client: Client,
    try_lock: Statement,
    unlock: Statement,
    insert: Statement,
    take: Statement,
    leave: Statement,
}

impl Peers {
    async fn connect(port: u16) -> Result<Self, Failure> {
        let mut free = Vec::new();
        for _ in 0..CONNECTIONS {
            free.push(Peer::connect(port).await?);
        }
        Ok(Self {
            free: Mutex::new(free),
            permits: Semaphore::new(CONNECTIONS),
        })
    }

    async fn pairs(self: Arc<Self>, kind: Kind, caller: Caller) -> usize {
        let mut done = 0;
        if matches!(kind, Kind::ShedLock) {
            self.with(async |peer| peer.count(&peer.insert, &caller.lock).await)
                .await;
        }
        while Instant::now() < caller.until {
            match kind {
                // A session has the lock, so it keeps its connection between the two calls.
                Kind::Advisory => {
                    self.with(async |peer| {
                        assert!(peer.is(&peer.try_lock, &caller.lock).await, "it is free");
                        assert!(peer.is(&peer.unlock, &caller.lock).await, "it was held");
                    })
                    .await;
                }
                Kind::ShedLock => {
                    let taken = self.with(async |peer| peer.count(&peer.take, &caller.lock).await).await;
                    assert_eq!(taken, 1, "it is free");
                    let left = self
                        .with(async |peer| peer.count(&peer.leave, &caller.lock).await)
                        .await;
                    assert_eq!(left, 1, "it was held");
                }
            }
            done += 1;
        }
        done
    }

    async fn with<T>(&self, call: impl AsyncFnOnce(&Peer) -> T) -> T {
        let _permit = self.permits.acquire().await.expect("it is open");
        let peer = self.free.lock().pop().expect("one for each permit");
        let result = call(&peer).await;
        self.free.lock().push(peer);
        result
    }
}

impl Peer {
    async fn connect(port: u16) -> Result<Self, Failure> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let mut config = Config::new();
        config.user("postgres").dbname(servers::NAME);
        let (client, connection) = config.connect_raw(stream, NoTls).await?;
        tokio::spawn(connection);
        Ok(Self {
            try_lock: client.prepare(TRY_LOCK).await?,
            unlock: client.prepare(UNLOCK).await?,
            insert: client.prepare(INSERT).await?,
            take: client.prepare(TAKE).await?,
            leave: client.prepare(LEAVE).await?,
            client,
        })
    }

    async fn is(&self, statement: &Statement, lock: &str) -> bool {
        self.client
            .query_one(statement, &[&lock])
            .await
            .expect("an answer")
            .get(0)
    }

    async fn count(&self, statement: &Statement, lock: &str) -> u64 {
        self.client.execute(statement, &[&lock]).await.expect("an answer")
    }
}
