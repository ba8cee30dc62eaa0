//! One database on a disk, beside its own locks and beside ShedLock's statements.

use std::any::Any;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{mysql as maria, postgres as postgresql};
use fencepost::backend::postgres::settings::{Credentials, Login, Settings};
use fencepost::backend::{Backend, mysql, postgres};
use mysql_async::prelude::Queryable;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use self::maria::MariaDb;
use self::postgresql::Postgres;
use crate::Failure;
use crate::own::{self, CLIENT, PROCESS};
use crate::process::Server;
use crate::report::Report;
use crate::side::{Bench, Bound, Caller, Figure, Row, Side, Turn};
use crate::stats;

const ADVISORY: &str = "pg_try_advisory_lock, pg_advisory_unlock";
const GET_LOCK: &str = "GET_LOCK, RELEASE_LOCK";
const SHEDLOCK: &str = "ShedLock's two UPDATEs";
/// How many connections the peers share, as an application's pool does.
const CONNECTIONS: usize = 16;
/// How much slower the last tenth of many uses may be than the first.
const GROWTH: f64 = 1.2;

/// ShedLock's table, with times as its pages give them for each database. (PostgreSQL rounds to a `timestamp(3)`, and a
/// lock that was just released would be held for the rest of a millisecond.)
fn table(time: &str) -> String {
    format!(
        "CREATE TABLE shedlock (name varchar(64) PRIMARY KEY, lock_until {time} NOT NULL, \
         locked_at {time} NOT NULL, locked_by varchar(255) NOT NULL)"
    )
}

/// What takes a session's lock and releases it, and ShedLock's first statement, and its two of each use.
const POSTGRES: [&str; 5] = [
    "SELECT pg_try_advisory_lock(hashtextextended($1, 0))",
    "SELECT pg_advisory_unlock(hashtextextended($1, 0))",
    "INSERT INTO shedlock SELECT $1, '-infinity', '-infinity', '' ON CONFLICT DO NOTHING",
    "UPDATE shedlock SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + interval '30 s', \
     locked_at = timezone('utc', CURRENT_TIMESTAMP), locked_by = 'bench' \
     WHERE name = $1 AND lock_until <= timezone('utc', CURRENT_TIMESTAMP)",
    "UPDATE shedlock SET lock_until = timezone('utc', CURRENT_TIMESTAMP) WHERE name = $1 AND locked_by = 'bench'",
];
const MYSQL: [&str; 5] = [
    "SELECT GET_LOCK(?, 0)",
    "SELECT RELEASE_LOCK(?)",
    "INSERT IGNORE INTO shedlock VALUES (?, '2000-01-01', '2000-01-01', '')",
    "UPDATE shedlock SET lock_until = TIMESTAMPADD(SECOND, 30, UTC_TIMESTAMP(3)), locked_at = UTC_TIMESTAMP(3), \
     locked_by = 'bench' WHERE name = ? AND lock_until <= UTC_TIMESTAMP(3)",
    "UPDATE shedlock SET lock_until = UTC_TIMESTAMP(3) WHERE name = ? AND locked_by = 'bench'",
];

/// A place in these.
#[derive(Debug, Clone, Copy)]
enum Ask {
    Take,
    Release,
    First,
    ShedTake,
    ShedRelease,
}

/// A database that runs.
struct Database {
    what: &'static str,
    kind: &'static str,
    /// The locks of its sessions.
    session_locks: &'static str,
    address: String,
    port: u16,
    backend: Arc<dyn Backend>,
    cpu: Box<dyn Fn() -> Duration>,
    /// Says how many transactions have written.
    commits: Box<dyn Fn() -> String>,
    /// Says how many bytes the table of locks has on the disk.
    size: Box<dyn Fn() -> String>,
    servers: Box<dyn Any>,
}

fn settings(address: &str, user: &str) -> (Settings, Credentials) {
    let login = Login {
        user: user.into(),
        password: String::new(),
    };
    let credentials = Credentials {
        login: Some(login),
        tls: None,
    };
    (Settings::new(vec![address.into()]), credentials)
}

/// The bench, where there is a PostgreSQL.
pub async fn of_postgres(program: &Path) -> Result<Option<Bench>, Failure> {
    if !postgresql::available() {
        return Ok(None);
    }
    let server = Arc::new(Postgres::started(&[("autovacuum_naptime", "1min")]));
    server.sql(&table("timestamp"));
    let (settings, credentials) = settings(&server.address(), postgresql::NAME);
    let [measured, counting, sized] = [(); 3].map(|()| Arc::clone(&server));
    let database = Database {
        what: "PostgreSQL, one server",
        kind: "postgres",
        session_locks: ADVISORY,
        address: server.address(),
        port: server.port(),
        backend: postgres::Store::open(settings, credentials)?.namespace(&own::namespace()),
        cpu: Box::new(move || measured.cpu()),
        commits: Box::new(move || counting.sql("SELECT pg_snapshot_xmax(pg_current_snapshot())")),
        size: Box::new(move || sized.sql("SELECT pg_total_relation_size('fencepost_lock')")),
        servers: Box::new(server),
    };
    bench::<PostgresPeer>(program, database).await.map(Some)
}

/// The bench, where there is a MariaDB.
pub async fn of_mysql(program: &Path) -> Result<Option<Bench>, Failure> {
    if !maria::available() {
        return Ok(None);
    }
    let settings_of_server = ["innodb-buffer-pool-size=128M", "innodb-log-file-size=96M"];
    let server = Arc::new(MariaDb::started(&settings_of_server));
    server.sql(&table("timestamp(3)"));
    let (settings, credentials) = settings(&server.address(), maria::NAME);
    let [measured, counting, sized] = [(); 3].map(|()| Arc::clone(&server));
    let size =
        "SELECT file_size FROM information_schema.innodb_sys_tablespaces WHERE name = 'fencepost/fencepost_lock'";
    let commits = "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'Com_commit'";
    let database = Database {
        what: "MariaDB, one server",
        kind: "mysql",
        session_locks: GET_LOCK,
        address: server.address(),
        port: server.port(),
        backend: mysql::Store::open(settings, credentials)?.namespace(&own::namespace()),
        cpu: Box::new(move || measured.cpu()),
        commits: Box::new(move || counting.sql(commits)),
        size: Box::new(move || sized.sql(size)),
        servers: Box::new(server),
    };
    bench::<MySqlPeer>(program, database).await.map(Some)
}

async fn bench<P: Peer>(program: &Path, of: Database) -> Result<Bench, Failure> {
    let (kind, commits, size) = (of.kind, of.commits, of.size);
    let table = format!(
        "backend = '{kind}'\n[namespaces.bench.{kind}]\nservers = ['{}']",
        of.address
    );
    let server = Server::start(program, &table)?;
    let mut sides = own::sides(&server, own::locks(of.backend).await?).await?;
    let peers = Arc::new(Peers::<P>::connect(of.port).await?);
    for (name, is_session) in [(of.session_locks, true), (SHEDLOCK, false)] {
        let peers = Arc::clone(&peers);
        let side = Side::new(name, move |turn| {
            let peers = Arc::clone(&peers);
            async move {
                Ok(turn
                    .all(name, |caller| Arc::clone(&peers).pairs(is_session, caller))
                    .await)
            }
        });
        sides.push(side.only_own());
    }
    let bound = |callers, figure| Bound {
        callers,
        hot: false,
        side: CLIENT,
        figure,
    };
    Ok(Bench {
        what: of.what.into(),
        server,
        sides,
        store_cpu: of.cpu,
        count: Some(("commits", Box::new(move || commits().parse().expect("a number")))),
        size: Some(Box::new(move || size().parse().expect("a number"))),
        bounds: vec![
            // Two, and the beats of two servers.
            bound(1, Figure::Counted(2.1)),
            bound(64, Figure::StoreCpu(of.session_locks, 0.8)),
            bound(64, Figure::StoreCpu(SHEDLOCK, 0.2)),
            bound(64, Figure::Beside(SHEDLOCK, 2.0)),
        ],
        servers: of.servers,
    })
}

/// A million uses of 64 locks in process: what the last tenth costs beside the first, and how the table grows.
pub async fn uses(bench: &Bench, uses: usize, report: &mut Report) -> Result<(), Failure> {
    let side = bench.sides.iter().find(|side| side.name == PROCESS);
    let mut row = Row::of(side.ok_or("no side in process")?);
    let (mut done, mut tenths, mut sizes) = (0, Vec::new(), Vec::new());
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
            sizes.extend(bench.size.as_ref().map(|size| size()));
        }
    }
    if let [first, .., last] = sizes[..] {
        println!("  the table of locks has {first} bytes after the first tenth, and {last} at the end");
    }
    let [first, last] = [tenths.first(), tenths.last()].map(|tenth| tenth.copied().unwrap_or_default());
    report.add_growth(&format!("{done} uses of 64 locks"), last / first, GROWTH);
    Ok(())
}

/// A connection of a database's user.
trait Peer: Sized + Send + 'static {
    fn connect(port: u16) -> impl Future<Output = Result<Self, Failure>> + Send;

    /// Whether a statement on a session's lock did what it says.
    fn is(&mut self, ask: Ask, lock: &str) -> impl Future<Output = bool> + Send;

    /// How many rows a statement of ShedLock has changed.
    fn count(&mut self, ask: Ask, lock: &str) -> impl Future<Output = u64> + Send;
}

/// Locks of a database's users, over a pool of connections.
struct Peers<P> {
    free: Mutex<Vec<P>>,
    permits: Semaphore,
}

impl<P: Peer> Peers<P> {
    async fn connect(port: u16) -> Result<Self, Failure> {
        let mut free = Vec::new();
        for _ in 0..CONNECTIONS {
            free.push(P::connect(port).await?);
        }
        Ok(Self {
            free: Mutex::new(free),
            permits: Semaphore::new(CONNECTIONS),
        })
    }

    async fn pairs(self: Arc<Self>, is_session: bool, caller: Caller) -> usize {
        let (mut done, lock) = (0, caller.lock.as_str());
        if !is_session {
            self.count(Ask::First, lock).await;
        }
        while Instant::now() < caller.until {
            if is_session {
                // A session has the lock, so it keeps its connection between the two calls.
                let _permit = self.permits.acquire().await.expect("it is open");
                let mut peer = self.free.lock().pop().expect("one for each permit");
                assert!(peer.is(Ask::Take, lock).await, "it is free");
                assert!(peer.is(Ask::Release, lock).await, "it was held");
                self.free.lock().push(peer);
            } else {
                assert_eq!(self.count(Ask::ShedTake, lock).await, 1, "it is free");
                assert_eq!(self.count(Ask::ShedRelease, lock).await, 1, "it was held");
            }
            done += 1;
        }
        done
    }

    async fn count(&self, ask: Ask, lock: &str) -> u64 {
        let _permit = self.permits.acquire().await.expect("it is open");
        let mut peer = self.free.lock().pop().expect("one for each permit");
        let count = peer.count(ask, lock).await;
        self.free.lock().push(peer);
        count
    }
}

/// A connection to PostgreSQL with its prepared statements.
struct PostgresPeer(tokio_postgres::Client, Vec<tokio_postgres::Statement>);

impl Peer for PostgresPeer {
    async fn connect(port: u16) -> Result<Self, Failure> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let mut config = tokio_postgres::Config::new();
        config.user("postgres").dbname(postgresql::NAME);
        let (client, connection) = config.connect_raw(stream, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        let mut statements = Vec::new();
        for text in POSTGRES {
            statements.push(client.prepare(text).await?);
        }
        Ok(Self(client, statements))
    }

    async fn is(&mut self, ask: Ask, lock: &str) -> bool {
        let row = self.0.query_one(&self.1[ask as usize], &[&lock]).await;
        row.expect("an answer").get(0)
    }

    async fn count(&mut self, ask: Ask, lock: &str) -> u64 {
        let changed = self.0.execute(&self.1[ask as usize], &[&lock]).await;
        changed.expect("an answer")
    }
}

/// A connection to MariaDB with its prepared statements.
struct MySqlPeer(mysql_async::Conn, Vec<mysql_async::Statement>);

impl Peer for MySqlPeer {
    async fn connect(port: u16) -> Result<Self, Failure> {
        let options = mysql_async::OptsBuilder::default()
            .ip_or_hostname("127.0.0.1")
            .tcp_port(port)
            .user(Some("root"))
            .db_name(Some(maria::NAME))
            .prefer_socket(false);
        let mut session = mysql_async::Conn::new(options).await?;
        let mut statements = Vec::new();
        for text in MYSQL {
            statements.push(session.prep(text).await?);
        }
        Ok(Self(session, statements))
    }

    async fn is(&mut self, ask: Ask, lock: &str) -> bool {
        let row: Option<i64> = self
            .0
            .exec_first(&self.1[ask as usize], (lock,))
            .await
            .expect("an answer");
        row == Some(1)
    }

    async fn count(&mut self, ask: Ask, lock: &str) -> u64 {
        let run = self.0.exec_drop(&self.1[ask as usize], (lock,)).await;
        run.expect("an answer");
        self.0.affected_rows()
    }
}
