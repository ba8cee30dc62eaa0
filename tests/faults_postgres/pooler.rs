//! The store behind a pgbouncer that gives each transaction another session.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use fencepost::backend::postgres::settings::Settings;
use fencepost::backend::record::store::{Commit, ServerId};
use futures::future::join_all;
use tempfile::TempDir;

use crate::harness::{applied, first, name, next, random, records, refused, settings_of, version_of};
use crate::servers::{NAME, Postgres, as_server, available, eventually, folder, free_port};

const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// A pgbouncer in transaction mode with two sessions for all.
pub struct Pooler {
    _folder: TempDir,
    port: u16,
    child: Child,
}

impl Pooler {
    /// Absent if there is no pgbouncer: then a test is skipped at home and fails in CI.
    pub fn before(server: &Postgres) -> Option<Self> {
        if !Path::new(PROGRAM).exists() {
            assert!(std::env::var_os("CI").is_none(), "there is no pgbouncer");
            println!("skipped: there is no pgbouncer");
            return None;
        }
        let (folder, port) = (folder(), free_port());
        let (file, users) = (folder.path().join("pgbouncer.ini"), folder.path().join("users.txt"));
        let text = format!(
            "[databases]\n{NAME} = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = 2\n\
             logfile = {}\n",
            server.port(),
            users.display(),
            folder.path().join("log").display(),
        );
        std::fs::write(&file, text).expect("its configuration");
        std::fs::write(&users, format!("\"{NAME}\" \"\"\n")).expect("its users");
        let mut command = as_server(Path::new(PROGRAM));
        let child = command
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("pgbouncer starts");
        eventually("it listens", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Some(Self {
            _folder: folder,
            port,
            child,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_but_messages_works_behind_a_pooler() {
    if !available() {
        return;
    }
    let server = Postgres::started(&[]);
    let Some(pooler) = Pooler::before(&server) else { return };
    let settings = Settings {
        pooler: true,
        connections: 4,
        ..settings_of(vec![pooler.address()])
    };
    let (one, other) = (records(settings.clone()).await, records(settings).await);
    let first_write = Commit {
        put: vec![(1, b"part".to_vec())],
        ..first("a")
    };
    applied(one.commit(first_write.clone()).await);
    refused(other.commit(first("a")).await);
    let soft = Commit {
        soft: true,
        ..next("a", first_write.version)
    };
    applied(other.commit(soft.clone()).await);
    assert_eq!(version_of(&*one, "a").await, Some(soft.version));
    assert_eq!(one.parts(&name("a"), 0..9).await.expect("it reads").len(), 1);
    for records in [&one, &other] {
        records.beat(ServerId(random())).await.expect("it beats");
    }
    let commits = (0..200).map(|lock| {
        let records = if lock % 2 == 0 { &one } else { &other };
        records.commit(first(&format!("lock {lock}")))
    });
    join_all(commits).await.into_iter().for_each(|result| {
        applied(result);
    });
    assert_eq!(one.list("lock", None, 1_000).await.expect("it lists").len(), 200);
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencepost'";
    assert!(server.sql(sessions).parse::<u32>().expect("a number") <= 2);
    // There is no other way to hear of another server's commit.
    assert!(one.poll() <= Duration::from_millis(50));
}
