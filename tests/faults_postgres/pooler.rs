//! The store behind a pgbouncer that gives each transaction another session.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use fencepost::backend::postgres::settings::Settings;
use fencepost::backend::record::store::{Commit, ServerId};
use fencepost::backend::{BackendError, Health};
use futures::future::join_all;
use tempfile::TempDir;

use crate::harness::{
    READY, applied, fails_because, first, healthy, name, next, random, records, refused, settings_of, transaction,
    unready, version_of, waiting,
};
use crate::load::{CALM, Load};
use crate::outage::fails_only;
use crate::servers::{NAME, Postgres, as_server, available, eventually, folder};
use common::ports::free_port;

const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// A pgbouncer in transaction mode with two sessions for all.
pub struct Pooler {
    folder: TempDir,
    port: u16,
    child: Child,
}

impl Pooler {
    /// One before a database. Absent if there is none of either: then a test is skipped at home and fails in CI.
    pub fn started() -> Option<(Postgres, Self)> {
        if !available() {
            return None;
        }
        let server = Postgres::started(&[]);
        let pooler = Self::before(&server)?;
        Some((server, pooler))
    }

    fn before(server: &Postgres) -> Option<Self> {
        if !common::is_there(Path::new(PROGRAM).exists(), "pgbouncer") {
            return None;
        }
        let (folder, port) = (folder(), free_port());
        std::fs::write(folder.path().join("users.txt"), format!("\"{NAME}\" \"\"\n")).expect("its users");
        let file = configure(folder.path(), port, server);
        let child = start(&file, port);
        Some(Self { folder, port, child })
    }

    /// Ends it at once, and starts it again: its sessions are lost.
    pub fn restart(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
        self.child = start(&self.folder.path().join("pgbouncer.ini"), self.port);
    }

    /// Sends all further transactions to another server.
    fn turn_to(&self, server: &Postgres) {
        configure(self.folder.path(), self.port, server);
        self.reload();
    }

    fn reload(&self) {
        let id = self.child.id().to_string();
        let sent = std::process::Command::new("kill").args(["-s", "HUP", &id]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Lets it accept the settings of a session, and do nothing with them.
    pub fn ignore_settings(&self) {
        let file = self.folder.path().join("pgbouncer.ini");
        let text = std::fs::read_to_string(&file).expect("its configuration");
        std::fs::write(&file, format!("{text}ignore_startup_parameters = options\n")).expect("its configuration");
        self.reload();
    }

    /// The settings of a store behind it.
    pub fn settings(&self) -> Settings {
        Settings {
            pooler: true,
            ..settings_of(vec![format!("127.0.0.1:{}", self.port)])
        }
    }
}

/// Starts one by this configuration.
fn start(file: &Path, port: u16) -> Child {
    let mut command = as_server(Path::new(PROGRAM));
    let quiet = command.arg(file).stdout(Stdio::null()).stderr(Stdio::null());
    let child = quiet.spawn().expect("pgbouncer starts");
    eventually("it listens", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    child
}

/// Writes the configuration of a pooler on this port before a server.
fn configure(folder: &Path, port: u16, server: &Postgres) -> PathBuf {
    let (file, users, log) = (
        folder.join("pgbouncer.ini"),
        folder.join("users.txt"),
        folder.join("log"),
    );
    let text = format!(
        "[databases]\n{NAME} = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
         unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = 2\n\
         logfile = {}\n",
        server.port(),
        users.display(),
        log.display(),
    );
    std::fs::write(&file, text).expect("its configuration");
    file
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_but_messages_works_behind_a_pooler() {
    let Some((server, pooler)) = Pooler::started() else {
        return;
    };
    let settings = Settings {
        connections: 4,
        ..pooler.settings()
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

// G129b
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_behind_a_pooler_that_is_restarted() {
    let Some((server, mut pooler)) = Pooler::started() else {
        return;
    };
    let times = if cfg!(feature = "soak") { 30 } else { 2 };
    let load = Load::begin(&pooler.settings(), 2 * CALM * (times + 1)).await;
    for _ in 0..times {
        tokio::time::sleep(CALM).await;
        pooler.restart();
    }
    load.ends_well(&server).await;
}

// G141
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_a_pooler_turns_to_answers_no_read() {
    let Some((server, pooler)) = Pooler::started() else {
        return;
    };
    let records = records(pooler.settings()).await;
    applied(records.commit(first("a")).await);
    let standby = server.standby("one");
    pooler.turn_to(&standby);
    let end = Instant::now() + READY;
    // No commit, which a standby refuses by itself.
    while records.read(&name("a"), None).await.is_ok() {
        assert!(Instant::now() < end, "the standby is read");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for _ in 0..20 {
        let read = records.read(&name("a"), None).await;
        assert!(matches!(&read, Err(error) if error.is_transient()), "{read:?}");
    }
}

// G147
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_others_have_locked_hold_up_nothing_else_behind_a_pooler() {
    let Some((server, pooler)) = Pooler::started() else {
        return;
    };
    let behind = Settings {
        connections: 1,
        ..pooler.settings()
    };
    let (records, own) = (records(behind.clone()).await, ServerId(random()));
    let one = first("locked");
    applied(records.commit(one.clone()).await);
    records.beat(own).await.expect("it beats");
    let rows = "UPDATE fencepost_lock SET ahead = ahead; UPDATE fencepost_server SET time = time";
    let _rows = transaction(&server, rows).await;
    // Those behind the first one share a statement.
    let commits = (0..20).map(|lock| match lock {
        10 => next("locked", one.version),
        _ => first(&format!("free {lock}")),
    });
    fails_only(10, join_all(commits.map(|commit| records.commit(commit))).await);
    let reserving = Commit {
        reserve: Some(Duration::from_secs(1)),
        ..first("locked")
    };
    refused(records.commit(reserving).await);
    let is_locked = |result: Result<(), BackendError>| {
        let locked = |reason: &str| reason.contains("lock timeout");
        assert!(
            matches!(&result, Err(BackendError::NotSent { reason }) if locked(reason)),
            "{result:?}"
        );
    };
    is_locked(records.beat(own).await.map(drop));
    is_locked(records.remove(&[(name("locked"), one.version)], 0).await);
    // As if the database were another one now, in quarantine.
    let now = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint";
    server.sql(&format!("UPDATE fencepost_store SET system = 0, since = {now}"));
    healthy(&*records, |health| matches!(health, Health::Quarantined { .. })).await;
    let _store = transaction(&server, "UPDATE fencepost_store SET floor = floor").await;
    is_locked(records.admit().await);
    let enters = unready(behind);
    let is_told = |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains("lock timeout"));
    healthy(&*enters, is_told).await;
    drop(enters);
    // So does the commit by which the store finds out whether it is well again.
    eventually("it waits", || waiting(&server) > 0);
    eventually("nothing waits", || waiting(&server) == 0);
}

// G173
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_commit_rests_on_what_another_session_of_a_pooler_is_set_to() {
    let Some((server, pooler)) = Pooler::started() else {
        return;
    };
    let records = records(pooler.settings()).await;
    server.sql(
        "CREATE TABLE commits (is_durable boolean); GRANT INSERT ON commits TO PUBLIC;
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.commits VALUES (current_setting('synchronous_commit') = 'on'); RETURN new; END $$;
         CREATE TRIGGER note BEFORE INSERT ON fencepost_lock FOR EACH ROW EXECUTE FUNCTION note()",
    );
    let set = |setting: &str| server.sql(&format!("ALTER ROLE {NAME} {setting}"));
    // The pooler opens others, and the store notices nothing.
    let end_sessions = || {
        server.sql(&format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{NAME}'"
        ))
    };
    let mut tries = 0;
    loop {
        set("SET synchronous_commit = off");
        end_sessions();
        let result = records.commit(first(&format!("lock {tries}"))).await;
        set("RESET synchronous_commit");
        if result.is_ok() {
            break;
        }
        tries += 1;
        assert!(tries < 20, "{result:?}");
        healthy(&*records, |health| *health == Health::Serving).await;
    }
    assert_eq!(server.sql("SELECT bool_and(is_durable) FROM commits"), "t");
    // They were opened with that setting.
    end_sessions();
    healthy(&*records, |health| *health == Health::Serving).await;
    for (change, problem) in [
        ("ALTER SYSTEM SET fsync = off", "fsync"),
        ("ALTER TABLE fencepost_part SET UNLOGGED", "UNLOGGED"),
    ] {
        server.sql(change);
        server.sql("SELECT pg_reload_conf()");
        if problem == "fsync" {
            eventually("the setting is read", || server.sql("SHOW fsync") == "off");
        }
        fails_because(&*records, problem).await;
        server.sql("ALTER SYSTEM RESET fsync");
        server.sql("SELECT pg_reload_conf()");
    }
}
