//! Real etcd servers for tests: built once where the machine has Go, started on free loopback ports
//! with throw-away data, ended when the value is dropped.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use tempfile::TempDir;

pub use crate::eventually;
use crate::ports::free_port;
use crate::signals::send;

/// The program: `ETCD` of the environment, else built from `tests/common/etcd` into the target
/// directory, else the one that the machine has.
pub fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM
        .get_or_init(|| {
            let named = std::env::var_os("ETCD").map(PathBuf::from);
            named.or_else(built).or_else(|| runs("etcd").then(|| "etcd".into()))
        })
        .as_deref()
}

/// Whether there is one: without it a test is skipped at home and fails in CI.
pub fn available() -> bool {
    crate::is_there(program().is_some(), "etcd, nor Go to build one")
}

/// The program that the machine's own packages bring: an old one, such as Debian's 3.4.
pub fn packaged() -> Option<&'static Path> {
    runs("etcd").then(|| Path::new("etcd"))
}

fn runs(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Builds the program, unless a test run before this one has.
fn built() -> Option<PathBuf> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/etcd");
    let directory = crate::kept("etcd");
    let program = directory.join("etcd");
    // Several test programs may come at once: one builds, the others wait.
    let lock = std::fs::File::create(directory.join("lock")).ok()?;
    lock.lock().ok()?;
    if !program.exists() {
        let unfinished = directory.join("unfinished");
        let status = Command::new("go")
            .args(["build", "-o"])
            .arg(&unfinished)
            .arg(".")
            .current_dir(source)
            .stdout(Stdio::null())
            .status()
            .ok()?;
        status.success().then_some(())?;
        std::fs::rename(unfinished, &program).ok()?;
    }
    Some(program)
}

/// One etcd process.
#[derive(Debug)]
pub struct Member {
    program: &'static Path,
    directory: TempDir,
    arguments: Vec<String>,
    scheme: &'static str,
    client_port: u16,
    child: Option<Child>,
}

impl Member {
    /// Where clients reach it.
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.client_port)
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.client_port
    }

    /// Its data.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// What follows an option that it was started with.
    pub fn argument(&self, option: &str) -> &str {
        let mut rest = self.arguments.iter().skip_while(|argument| *argument != option);
        rest.nth(1).expect("the option is there")
    }

    /// Starts the process (again) on what its directory holds.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        let log = std::fs::File::create(self.directory.path().join("log")).expect("a log");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(self.program);
        command.args(&self.arguments).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().expect("etcd starts"));
    }

    /// Starts the process again, and returns when it listens.
    pub fn restart(&mut self) {
        self.start();
        eventually("the member listens", || self.answers());
    }

    /// Copies its data; the process must be down.
    pub fn copy_data(&self) -> TempDir {
        let copy = tempfile::tempdir().expect("a directory for the copy");
        copy_directory(&self.directory.path().join("data"), &copy.path().join("data"));
        copy
    }

    /// Puts a copy of its data back; the process must be down.
    pub fn put_back(&self, copy: &TempDir) {
        let data = self.directory.path().join("data");
        std::fs::remove_dir_all(&data).expect("its data can go");
        copy_directory(&copy.path().join("data"), &data);
    }

    /// Ends the process at once.
    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it can be killed");
            child.wait().expect("it ends");
        }
    }

    /// Stops the process where it stands.
    pub fn pause(&self) {
        send("STOP", &[self.child.as_ref().expect("it runs").id()]);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        send("CONT", &[self.child.as_ref().expect("it runs").id()]);
    }

    /// How much of the processor it has used.
    pub fn cpu(&self) -> Duration {
        crate::server::cpu(self.child.as_ref().expect("it runs").id())
    }

    /// What it counts of itself, a line each: none from one that is down or hangs. (HTTP/1.0, or the answer would come in
    /// chunks.)
    pub fn figures(&self) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.client_port)).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_millis(500)))
            .expect("a time limit");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Whether it leads, if it knows a leader.
    fn leads(&self) -> Option<bool> {
        let text = self.figures()?;
        let figure = |name: &str| text.lines().find_map(|line| Some(line.strip_prefix(name)? == " 1"));
        figure("etcd_server_has_leader")?.then(|| figure("etcd_server_is_leader"))?
    }

    fn answers(&self) -> bool {
        TcpStream::connect(("127.0.0.1", self.client_port)).is_ok()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill9();
        crate::tell_log("etcd", || crate::log_in(&self.directory));
    }
}

/// A cluster of its own.
#[derive(Debug)]
pub struct Cluster {
    /// Its members, by number.
    pub servers: Vec<Member>,
}

impl Cluster {
    /// A cluster of so many members that has a leader soon.
    pub fn start(members: usize) -> Self {
        Self::start_with(members, &[])
    }

    /// A cluster whose members are given these arguments too.
    pub fn start_with(members: usize, more: &[&str]) -> Self {
        Self::start_over("http", members, more)
    }

    /// A cluster that clients reach over `http` or `https`.
    pub fn start_over(scheme: &'static str, members: usize, more: &[&str]) -> Self {
        Self::start_of(program().expect("an etcd program"), scheme, members, more)
    }

    /// A cluster of this program.
    pub fn start_of(program: &'static Path, scheme: &'static str, members: usize, more: &[&str]) -> Self {
        let ports: Vec<(u16, u16)> = (0..members).map(|_| (free_port(), free_port())).collect();
        let initial = |(number, (_, peer)): (usize, &(u16, u16))| format!("m{number}=http://127.0.0.1:{peer}");
        let initial: Vec<_> = ports.iter().enumerate().map(initial).collect();
        let member =
            |(number, ports): (usize, &(u16, u16))| member(program, scheme, number, *ports, &initial.join(","));
        let mut servers: Vec<_> = ports.iter().enumerate().map(member).collect();
        for member in &mut servers {
            member.arguments.extend(more.iter().map(|more| (*more).to_owned()));
        }
        servers.iter_mut().for_each(Member::start);
        eventually("every member listens", || servers.iter().all(Member::answers));
        Self { servers }
    }

    /// The number of the member that leads; waits for an election.
    pub fn leader(&self) -> usize {
        let mut found = None;
        eventually("a leader", || {
            found = self.servers.iter().position(|member| member.leads() == Some(true));
            found.is_some()
        });
        found.expect("it was found")
    }

    /// The numbers of the members that follow.
    pub fn followers(&self) -> Vec<usize> {
        let follows = |id: &usize| self.servers[*id].leads() == Some(false);
        (0..self.servers.len()).filter(follows).collect()
    }

    /// Ends all members at once.
    pub fn kill_all(&mut self) {
        self.servers.iter_mut().for_each(Member::kill9);
    }

    /// Starts all that are down, without waiting for them.
    pub fn start_all(&mut self) {
        let down = self.servers.iter_mut().filter(|member| member.child.is_none());
        down.for_each(Member::start);
    }

    /// Waits until every member listens.
    pub fn wait_ready(&self) {
        eventually("every member listens", || self.servers.iter().all(Member::answers));
    }

    /// Where clients reach it.
    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(Member::url).collect()
    }
}

fn member(
    program: &'static Path,
    scheme: &'static str,
    number: usize,
    (client, peer): (u16, u16),
    initial: &str,
) -> Member {
    let directory = tempfile::tempdir().expect("a directory for etcd");
    let client_url = format!("{scheme}://127.0.0.1:{client}");
    let peer_url = format!("http://127.0.0.1:{peer}");
    let data = directory.path().join("data").display().to_string();
    let arguments = [
        ("--name", format!("m{number}")),
        ("--data-dir", data),
        ("--listen-client-urls", client_url.clone()),
        ("--advertise-client-urls", client_url),
        ("--listen-peer-urls", peer_url.clone()),
        ("--initial-advertise-peer-urls", peer_url),
        ("--initial-cluster", initial.to_owned()),
        ("--initial-cluster-token", format!("of {initial}")),
        // Three members share a busy machine: a leader that is only late must not lose its place.
        ("--heartbeat-interval", "100".to_owned()),
        ("--election-timeout", "1000".to_owned()),
        ("--log-level", "warn".to_owned()),
    ];
    Member {
        program,
        directory,
        arguments: arguments
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect(),
        scheme,
        client_port: client,
        child: None,
    }
}

fn copy_directory(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.expect("cp runs").success());
}
