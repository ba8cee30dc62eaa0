//! Real MariaDB servers for tests: Debian's, started as a user of their own on free loopback ports with throw-away data,
//! ended when the value is dropped.

use std::os::unix::fs::chown;
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
/// Where Debian has the server.
const SERVER: &str = "/usr/sbin/mariadbd";
/// The settings of every server.
const SETTINGS: [&str; 8] = [
    "--no-defaults",
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--innodb-buffer-pool-size=24M",
    "--innodb-log-file-size=8M",
    "--performance-schema=OFF",
    "--max-connections=400",
    "--character-set-server=utf8mb4",
];

/// The user and group that a server runs as, because it refuses to run as root; absent if this is another user.
fn other_user() -> Option<(u32, u32)> {
    static FOUND: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    let find = || {
        let id = |flag: &str, user: &[&str]| {
            let output = Command::new("id").arg(flag).args(user).output().ok()?;
            String::from_utf8(output.stdout).ok()?.trim().parse::<u32>().ok()
        };
        (id("-u", &[])? == 0).then(|| Some((id("-u", &["mysql"])?, id("-g", &["mysql"])?)))?
    };
    *FOUND.get_or_init(find)
}

/// A command, run as the user of the servers with this folder for temporary files: a server that starts removes the tables
/// of others from one that they share.
fn as_server(path: &str, temporary: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if let Some((user, group)) = other_user() {
        command.args([
            format!("--reuid={user}"),
            format!("--regid={group}"),
            "--clear-groups".to_owned(),
        ]);
    }
    command.args(["--pdeathsig", "KILL", path]);
    command.current_dir("/").env("TMPDIR", temporary).stdin(Stdio::null());
    command
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().expect("the program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(format!("{command:?}: {}", text(&output.stderr))),
    }
}

/// A folder that the user of the servers owns.
pub fn folder() -> TempDir {
    given(tempfile::tempdir().expect("a folder"))
}

fn given(folder: TempDir) -> TempDir {
    if let Some((user, group)) = other_user() {
        chown(folder.path(), Some(user), Some(group)).expect("the folder is given away");
    }
    folder
}

/// The data of a new server with the user and the database of the service, made once for each test binary.
fn template() -> PathBuf {
    static TEMPLATE: OnceLock<TempDir> = OnceLock::new();
    let make = || {
        let folder = folder();
        let data = folder.path().join("data");
        let mut install = as_server("/usr/bin/mariadb-install-db", folder.path());
        install.args([
            "--no-defaults",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]);
        run(install
            .arg("--skip-name-resolve")
            .arg(format!("--datadir={}", data.display())))
        .expect("data");
        let mut first = MariaDb::of(folder_in(&std::env::temp_dir(), &data), &[]);
        first.start();
        first.sql_in("mysql", &format!("CREATE DATABASE {NAME}"));
        first.sql_in("mysql", &format!("CREATE USER {NAME}@'127.0.0.1'"));
        first.sql_in("mysql", &format!("GRANT ALL ON {NAME}.* TO {NAME}@'127.0.0.1'"));
        first.stop();
        std::fs::remove_dir_all(&data).expect("the empty data");
        std::fs::rename(first.data(), &data).expect("the data");
        folder
    };
    TEMPLATE.get_or_init(make).path().join("data")
}

/// A folder of `parent` with a copy of this data.
fn folder_in(parent: &Path, data: &Path) -> TempDir {
    let folder = given(tempfile::tempdir_in(parent).expect("a folder"));
    run(as_server("/usr/bin/cp", folder.path())
        .arg("-a")
        .arg(data)
        .arg(folder.path().join("data")))
    .expect("a copy");
    folder
}

/// Whether the programs are there. Without them a test is skipped at home and fails in CI.
pub fn available() -> bool {
    crate::is_there(Path::new(SERVER).exists(), SERVER)
}

/// One server process.
#[derive(Debug)]
pub struct MariaDb {
    folder: TempDir,
    port: u16,
    settings: Vec<String>,
    environment: Vec<(&'static str, PathBuf)>,
    child: Option<Child>,
}

impl MariaDb {
    fn of(folder: TempDir, settings: &[&str]) -> Self {
        Self {
            folder,
            port: free_port(),
            settings: settings.iter().map(|setting| format!("--{setting}")).collect(),
            environment: Vec::new(),
            child: None,
        }
    }

    /// A server that accepts connections.
    pub fn started(settings: &[&str]) -> Self {
        Self::started_in(&std::env::temp_dir(), settings)
    }

    /// The same with its data in a folder of `parent`.
    pub fn started_in(parent: &Path, settings: &[&str]) -> Self {
        let mut server = Self::of(folder_in(parent, &template()), settings);
        server.start();
        server
    }

    /// The same with another number: all others have one.
    pub fn of_another_cluster() -> Self {
        Self::started(&["server-id=99"])
    }

    /// The same with these variables in its environment, which may give it a clock that is stepped. InnoDB takes a step back
    /// while it flushes pages for a wait of 600 s, and ends its server; so it flushes none of these few.
    pub fn started_with(environment: impl Into<Vec<(&'static str, PathBuf)>>) -> Self {
        let settings = [
            "innodb-buffer-pool-size=128M",
            "innodb-log-file-size=512M",
            "innodb-adaptive-flushing=OFF",
            "innodb-max-dirty-pages-pct=99",
        ];
        let mut server = Self::of(folder_in(&std::env::temp_dir(), &template()), &settings);
        server.environment = environment.into();
        server.start();
        server
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

    /// Changes a setting for the next start.
    pub fn set(&mut self, setting: &str) {
        self.settings.push(format!("--{setting}"));
    }

    /// Starts it on its data, and returns when it accepts connections.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"));
        let mut command = as_server(SERVER, self.folder.path());
        command
            .args(SETTINGS)
            .arg(format!("--datadir={}", self.data().display()))
            .arg(format!("--socket={}", self.folder.path().join("socket").display()))
            .arg(format!("--pid-file={}", self.folder.path().join("pid").display()))
            .arg(format!("--port={}", self.port))
            .args(&self.settings)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
            .stdout(Stdio::null())
            .stderr(log.expect("a log"))
            .process_group(0);
        self.child = Some(command.spawn().expect("MariaDB starts"));
        eventually("it accepts connections", || self.try_sql("mysql", "SELECT 1").is_ok());
    }

    /// Stops it in order.
    pub fn stop(&mut self) {
        self.end("TERM");
    }

    /// Ends it at once: what it has not written to its log is lost.
    pub fn crash(&mut self) {
        self.end("KILL");
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

    /// SIGSTOP.
    pub fn pause(&self) {
        send("STOP", &[self.child.as_ref().expect("it runs").id()]);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        send("CONT", &[self.child.as_ref().expect("it runs").id()]);
    }

    /// The CPU time that it has used.
    pub fn cpu(&self) -> Duration {
        crate::server::cpu(self.child.as_ref().expect("it runs").id())
    }

    /// The output of statements in the database of the service, run as the superuser.
    #[track_caller]
    pub fn sql(&self, text: &str) -> String {
        self.sql_in(NAME, text)
    }

    #[track_caller]
    fn sql_in(&self, database: &str, text: &str) -> String {
        self.try_sql(database, text)
            .unwrap_or_else(|problem| panic!("{problem}"))
    }

    fn try_sql(&self, database: &str, text: &str) -> Result<String, String> {
        run(self.client("mariadb").args(["-N", "-B", database, "-e", text]))
    }

    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["--no-defaults", "-h127.0.0.1", "-uroot", &format!("-P{}", self.port)]);
        command
    }

    /// Writes a dump of the service's database to a file.
    pub fn dump(&self, file: &Path) {
        let mut command = self.client("mariadb-dump");
        run(command.args([NAME, "--single-transaction", "--result-file"]).arg(file)).expect("a dump");
    }

    /// Restores such a dump.
    pub fn restore(&self, file: &Path) {
        self.sql(&format!("SOURCE {}", file.display()));
    }

    /// A replica of this server, which logs its changes, once it has caught up.
    pub fn replica(&mut self, settings: &[&str]) -> Self {
        self.sql("FLUSH TABLES WITH READ LOCK");
        self.stop();
        let mut replica = Self::of(folder_in(&std::env::temp_dir(), &self.data()), settings);
        self.start();
        replica.start();
        let position = self.sql("SELECT @@gtid_current_pos");
        self.sql(
            "CREATE USER IF NOT EXISTS replica@'127.0.0.1'; GRANT REPLICATION SLAVE ON *.* TO replica@'127.0.0.1'",
        );
        replica.sql(&format!(
            "SET GLOBAL gtid_slave_pos = '{position}'; CHANGE MASTER TO master_host = '127.0.0.1', \
             master_port = {}, master_user = 'replica', master_use_gtid = slave_pos; START SLAVE",
            self.port
        ));
        replica
    }

    /// Makes a replica the primary.
    pub fn promote(&self) {
        self.sql("STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = OFF");
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        crate::tell_log("MariaDB", || crate::log_in(&self.folder));
        if let Some(mut child) = self.child.take() {
            send("CONT", &[child.id()]);
            send("KILL", &[child.id()]);
            let _ = child.wait();
        }
    }
}
