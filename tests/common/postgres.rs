//! Real PostgreSQL servers for tests: Debian's, started as a user of their own on free loopback ports with throw-away data,
//! ended when the value is dropped.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use tempfile::TempDir;

pub use crate::eventually;
use crate::ports::free_port;
use crate::signals::send;

/// The user and the database of the service.
pub const NAME: &str = "fencepost";
/// The settings of every server. Nobody cuts the power, but a server with fsync = off is refused.
const SETTINGS: &str = "listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\nshared_buffers = 16MB\n\
                        max_connections = 60\nmax_wal_senders = 4\nhot_standby = on\nwal_keep_size = 64MB\n\
                        autovacuum_naptime = 1s\nlogging_collector = off\nlc_messages = 'C'\n";

/// The programs of a server.
fn programs() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let mut all: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
            .ok()?
            .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
            .filter(|bin| bin.join("initdb").exists())
            .collect();
        all.sort();
        all.pop()
    };
    FOUND.get_or_init(find).as_deref()
}

/// The user and group that a server runs as, because it refuses to run as root; absent if this is another user.
fn other_user() -> Option<(u32, u32)> {
    static FOUND: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    let find = || {
        let id = |flag: &str, user: &[&str]| {
            let output = Command::new("id").arg(flag).args(user).output().ok()?;
            String::from_utf8(output.stdout).ok()?.trim().parse::<u32>().ok()
        };
        (id("-u", &[])? == 0).then(|| Some((id("-u", &["postgres"])?, id("-g", &["postgres"])?)))?
    };
    *FOUND.get_or_init(find)
}

/// A program, run as the user of the servers.
pub fn program(name: &str) -> Command {
    let path = programs().map_or_else(|| PathBuf::from(name), |programs| programs.join(name));
    as_server(&path)
}

/// A command, run as the user of the servers.
pub fn as_server(path: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if let Some((user, group)) = other_user() {
        command.args([
            format!("--reuid={user}"),
            format!("--regid={group}"),
            "--clear-groups".to_owned(),
        ]);
    }
    command.args(["--pdeathsig", "QUIT"]).arg(path);
    command.current_dir("/").stdin(Stdio::null());
    command
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("the program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    text(&output.stdout).trim_end().to_owned()
}

/// A folder that the user of the servers owns.
pub fn folder() -> TempDir {
    folder_in(&std::env::temp_dir())
}

fn folder_in(parent: &Path) -> TempDir {
    let folder = tempfile::tempdir_in(parent).expect("a folder");
    give(folder.path(), 0o700);
    folder
}

/// Gives a file or a folder to the user of the servers, with these rights.
pub fn give(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its rights are set");
    if let Some((user, group)) = other_user() {
        chown(path, Some(user), Some(group)).expect("it is given away");
    }
}

/// The data of a new server with the user and the database of the service, made once for each test binary.
fn template() -> PathBuf {
    static TEMPLATE: OnceLock<TempDir> = OnceLock::new();
    TEMPLATE.get_or_init(initialized).path().join("data")
}

/// A folder with the data of a new cluster of databases.
fn initialized() -> TempDir {
    let folder = folder();
    let init = [
        "--no-sync",
        "--auth=trust",
        "--username=postgres",
        "--encoding=UTF8",
        "--locale=C",
    ];
    let data = folder.path().join("data");
    run(program("initdb").args(init).args(["--wal-segsize=1", "-D"]).arg(&data));
    let mut first = Postgres::of(folder, &[]);
    first.start();
    // Each database is copied for each server, and looked at by its autovacuum each second.
    for statement in [
        &format!("CREATE ROLE {NAME} LOGIN"),
        &format!("ALTER DATABASE postgres RENAME TO {NAME}"),
        &format!("ALTER DATABASE {NAME} OWNER TO {NAME}"),
        "ALTER DATABASE template0 IS_TEMPLATE false",
        "DROP DATABASE template0",
    ] {
        first.sql_in("template1", statement);
    }
    first.stop();
    // The value has a destructor of its own.
    std::mem::replace(&mut first.folder, self::folder())
}

/// A folder in `parent` with a copy of this data.
fn copy_in(parent: &Path, data: &Path) -> TempDir {
    let folder = folder_in(parent);
    run(as_server(Path::new("cp"))
        .arg("-a")
        .arg(data)
        .arg(folder.path().join("data")));
    folder
}

/// Whether the programs are there. Without them a test is skipped at home and fails in CI.
pub fn available() -> bool {
    crate::is_there(programs().is_some(), "PostgreSQL in /usr/lib/postgresql")
}

/// One server process.
#[derive(Debug)]
pub struct Postgres {
    folder: TempDir,
    port: u16,
    settings: Vec<(String, String)>,
    environment: Vec<(&'static str, PathBuf)>,
    child: Option<Child>,
}

impl Postgres {
    fn of(folder: TempDir, settings: &[(&str, &str)]) -> Self {
        let all = SETTINGS.lines().filter_map(|line| line.split_once(" = "));
        let own = settings.iter().copied();
        let settings = all
            .chain(own)
            .map(|(name, value)| (name.into(), value.trim_matches('\'').into()));
        Self {
            folder,
            port: free_port(),
            settings: settings.collect(),
            environment: Vec::new(),
            child: None,
        }
    }

    /// A server that accepts connections.
    pub fn started(settings: &[(&str, &str)]) -> Self {
        Self::started_in(&std::env::temp_dir(), settings)
    }

    /// The same with its data in a folder of `parent`.
    pub fn started_in(parent: &Path, settings: &[(&str, &str)]) -> Self {
        let mut server = Self::of(copy_in(parent, &template()), settings);
        server.start();
        server
    }

    /// The same of another cluster: all others have one identifier.
    pub fn of_another_cluster() -> Self {
        let mut server = Self::of(initialized(), &[]);
        server.start();
        server
    }

    /// The same with these variables in its environment.
    pub fn started_with(environment: impl Into<Vec<(&'static str, PathBuf)>>) -> Self {
        let mut server = Self::of(copy_in(&std::env::temp_dir(), &template()), &[]);
        server.environment = environment.into();
        server.start();
        server
    }

    /// A folder of its own.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where its data is.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where clients reach it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Moves its write-ahead log to another disk, while it does not run.
    pub fn move_log_to(&self, folder: &Path) {
        let (from, to) = (self.data().join("pg_wal"), folder.join("pg_wal"));
        let both = ["-a".as_ref(), from.as_os_str(), to.as_os_str()];
        run(as_server(Path::new("cp")).args(both));
        std::fs::remove_dir_all(&from).expect("the log");
        std::os::unix::fs::symlink(&to, &from).expect("a link");
    }

    /// Changes a setting for the next start.
    pub fn set(&mut self, name: &str, value: &str) {
        self.settings.push((name.into(), value.into()));
    }

    /// Starts it on its data, and returns when it accepts connections.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"));
        let mut command = program("postgres");
        command.arg("-D").arg(self.data()).args(["-p", &self.port.to_string()]);
        for (name, value) in &self.settings {
            command.args(["-c", &format!("{name}={value}")]);
        }
        command
            .envs(self.environment.iter().cloned())
            .stdout(Stdio::null())
            .stderr(log.expect("a log"))
            .process_group(0);
        self.child = Some(command.spawn().expect("PostgreSQL starts"));
        eventually("it accepts connections", || {
            let mut ready = Command::new(programs().expect("programs").join("pg_isready"));
            ready.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
            ready.status().is_ok_and(|status| status.success())
        });
    }

    /// Stops it after a checkpoint, and ends its connections.
    pub fn stop(&mut self) {
        self.end("INT");
    }

    /// Ends it at once: what it has not written to its log is lost.
    pub fn crash(&mut self) {
        self.end("QUIT");
    }

    /// Starts it again if it has ended, as its supervisor does.
    pub fn supervise(&mut self) {
        if let Some(child) = &mut self.child
            && child.try_wait().expect("a child").is_some()
        {
            self.child = None;
            self.start();
        }
    }

    /// Crashes it and starts it again.
    pub fn restart(&mut self) {
        self.crash();
        self.start();
    }

    fn end(&mut self, signal: &str) {
        let mut child = self.child.take().expect("it runs");
        send(signal, &[child.id()]);
        child.wait().expect("it ends");
    }

    /// SIGSTOP for it and its sessions.
    pub fn pause(&self) {
        send("STOP", &self.processes());
    }

    /// SIGCONT.
    pub fn resume(&self) {
        send("CONT", &self.processes());
    }

    fn processes(&self) -> Vec<u32> {
        let main = self.child.as_ref().expect("it runs").id();
        std::iter::once(main).chain(children(main)).collect()
    }

    /// The CPU time that it has used with its sessions, of which some may have ended.
    pub fn cpu(&self) -> Duration {
        let main = self.child.as_ref().expect("it runs").id();
        let ticks = ticks(main, 4) + children(main).into_iter().map(|child| ticks(child, 2)).sum::<u64>();
        Duration::from_millis(10 * ticks)
    }

    /// What it has written to its log.
    pub fn log(&self) -> String {
        crate::log_in(&self.folder)
    }

    /// The output of a statement in the database of the service, run as the superuser.
    #[track_caller]
    pub fn sql(&self, text: &str) -> String {
        self.sql_in(NAME, text)
    }

    #[track_caller]
    fn sql_in(&self, database: &str, text: &str) -> String {
        let arguments = ["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-c", text];
        run(self.client("psql", database).args(arguments))
    }

    /// A program that connects to a database as the superuser.
    fn client(&self, name: &str, database: &str) -> Command {
        let mut command = program(name);
        let port = self.port.to_string();
        command.args(["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-d", database]);
        command
    }

    /// Writes a dump of the service's database to a file.
    pub fn dump(&self, file: &Path) {
        run(self
            .client("pg_dump", NAME)
            .args(["--clean", "--if-exists", "-f"])
            .arg(file));
    }

    /// Restores such a dump.
    pub fn restore(&self, file: &Path) {
        let arguments = ["-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f"];
        run(self.client("psql", NAME).args(arguments).arg(file));
    }

    /// A standby of this server, which has caught up when this returns.
    pub fn standby(&self, name: &str) -> Self {
        let folder = folder();
        let data = folder.path().join("data");
        let source = format!(
            "host=127.0.0.1 port={} user=postgres application_name={name}",
            self.port
        );
        run(program("pg_basebackup")
            .args(["-R", "--checkpoint=fast", "--no-sync", "-d", &source, "-D"])
            .arg(&data));
        let mut standby = Self::of(folder, &[]);
        standby.start();
        let caught_up = format!(
            "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND application_name = '{name}'"
        );
        eventually("the standby streams", || self.sql(&caught_up) != "0");
        standby
    }

    /// Makes a standby the primary.
    pub fn promote(&self) {
        run(program("pg_ctl").args(["promote", "-w", "-D"]).arg(self.data()));
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let mut processes = vec![child.id()];
            processes.extend(children(child.id()));
            send("CONT", &processes);
            send("QUIT", &[child.id()]);
            let _ = child.wait();
        }
        crate::tell_log("PostgreSQL", || self.log());
    }
}

fn children(process: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// User and system time of a process, then of its children that have ended: so many of these, in ticks of 10 ms. Nothing
/// if it has ended.
fn ticks(process: u32, count: usize) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let Some((_, fields)) = stat.rsplit_once(')') else {
        return 0;
    };
    let ticks = fields.split_whitespace().skip(11).take(count);
    ticks.map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}
