//! Real ZooKeeper servers for tests: the package's, or current ones that Maven fetches; started on free loopback
//! ports with throw-away data, ended when the value is dropped.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub use crate::eventually;
use crate::ports::free_port;
use crate::signals::send;

mod program;

pub use program::{Program, current, found, packaged, program};

/// One tick of the servers. The shortest session is twice as long, by their defaults.
pub const TICK: Duration = Duration::from_millis(200);
/// After so much silence a follower leaves its leader, and a leader without a majority resigns.
pub const SYNC_LIMIT: Duration = Duration::from_secs(2);
/// How long servers may take to start, or to elect.
const READY: Duration = Duration::from_secs(60);

/// The ports of one server: for clients, for its followers, for elections.
#[derive(Debug, Clone, Copy)]
struct Ports {
    client: u16,
    quorum: u16,
    election: u16,
}

impl Ports {
    fn free() -> Self {
        let [client, quorum, election] = [(); 3].map(|()| free_port());
        Self {
            client,
            quorum,
            election,
        }
    }
}

/// What a server is in its ensemble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Leader,
    Follower,
    /// It is alone.
    Standalone,
}

/// One server process.
#[derive(Debug)]
pub struct Server {
    program: &'static Program,
    directory: TempDir,
    flags: Vec<String>,
    port: u16,
    child: Option<Child>,
}

impl Server {
    /// A server that does not run yet, `id` of an ensemble on `ports`.
    fn new(program: &'static Program, id: usize, ports: &[Ports], options: &Options) -> Self {
        let directory = tempfile::tempdir().expect("a directory for ZooKeeper");
        let port = ports[id].client;
        let configuration = configuration(directory.path(), port, ports, &options.lines);
        std::fs::create_dir(directory.path().join("data")).expect("a data directory");
        std::fs::write(directory.path().join("data/myid"), format!("{}\n", id + 1)).expect("its number");
        std::fs::write(directory.path().join("zoo.cfg"), configuration).expect("its configuration");
        Self {
            program,
            directory,
            flags: options.flags.clone(),
            port,
            child: None,
        }
    }

    /// Its port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where clients reach it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The id of its process.
    pub fn process(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Its configuration, data and log.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// What it has written to its log.
    pub fn log(&self) -> String {
        crate::log_in(&self.directory)
    }

    /// Starts the process (again) on what its directory holds, without waiting for it.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.directory.path().join("log"))
            .expect("a log");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).args(self.program.java());
        command.args(&self.flags);
        command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain");
        command.arg(self.directory.path().join("zoo.cfg"));
        command.stdout(Stdio::null()).stderr(log).process_group(0);
        self.child = Some(command.spawn().expect("ZooKeeper starts"));
    }

    /// Starts the process again, and returns when it serves.
    pub fn restart(&mut self) {
        self.start();
        eventually("the server serves", || self.role().is_some());
    }

    /// Ends the process at once.
    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it can be killed");
            child.wait().expect("it ends");
        }
    }

    /// SIGSTOP.
    pub fn pause(&self) {
        send("STOP", &[self.child.as_ref().expect("it runs").id()]);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        send("CONT", &[self.child.as_ref().expect("it runs").id()]);
    }

    /// Its answer to a four-letter word: none from a server that is down, hangs, or is another's.
    pub fn ask(&self, word: &str) -> Option<String> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let patience = Duration::from_secs(2);
        let mut stream = TcpStream::connect_timeout(&address, patience).ok()?;
        stream.set_read_timeout(Some(patience)).expect("a time limit");
        stream.write_all(word.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// What it is, once it serves.
    pub fn role(&self) -> Option<Role> {
        self.child.as_ref()?;
        match field(&self.ask("srvr")?, "Mode")? {
            "leader" => Some(Role::Leader),
            "follower" => Some(Role::Follower),
            "standalone" => Some(Role::Standalone),
            _ => None,
        }
    }

    /// The last transaction that it has applied: the epoch in the upper 32 bits.
    pub fn zxid(&self) -> Option<u64> {
        let answer = self.ask("srvr")?;
        u64::from_str_radix(field(&answer, "Zxid")?.strip_prefix("0x")?, 16).ok()
    }

    /// How many nodes it has, its own three to five included.
    pub fn nodes(&self) -> usize {
        let answer = self.ask("srvr").expect("it serves");
        let count = field(&answer, "Node count").and_then(|count| count.parse().ok());
        count.expect("it counts its nodes")
    }

    /// A figure of `mntr`.
    pub fn figure(&self, name: &str) -> f64 {
        let answer = self.ask("mntr").expect("it serves");
        let figure = answer
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
        figure.and_then(|figure| figure.parse().ok()).expect("it counts that")
    }

    /// The sessions of its clients.
    pub fn sessions(&self) -> Vec<i64> {
        let answer = self.ask("cons").expect("it serves");
        let of_line = |line: &str| {
            let id = line.split_once("sid=0x")?.1.split(',').next()?;
            Some(u64::from_str_radix(id, 16).ok()?.cast_signed())
        };
        answer.lines().filter_map(of_line).collect()
    }

    /// How much of the processor it has used.
    pub fn cpu(&self) -> Duration {
        crate::server::cpu(self.child.as_ref().expect("it runs").id())
    }

    /// Copies its data; the process must be down.
    pub fn copy_data(&self) -> TempDir {
        assert!(self.child.is_none(), "it runs");
        let copy = tempfile::tempdir().expect("a directory for the copy");
        copy_directory(&self.directory.path().join("data"), &copy.path().join("data"));
        copy
    }

    /// Puts a copy of its data back; the process must be down.
    pub fn put_back(&self, copy: &TempDir) {
        assert!(self.child.is_none(), "it runs");
        let data = self.directory.path().join("data");
        std::fs::remove_dir_all(&data).expect("its data can go");
        copy_directory(&copy.path().join("data"), &data);
    }

    /// Whether the process has ended by itself, such as one whose port somebody else took.
    fn has_ended(&mut self) -> bool {
        self.child
            .as_mut()
            .is_none_or(|child| child.try_wait().expect("it can be asked").is_some())
    }

    /// Whether it is this process that answers at the port.
    fn is_itself(&self) -> bool {
        let data = format!("{}/data", self.directory.path().display());
        self.ask("conf").is_some_and(|answer| answer.contains(&data))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill9();
        crate::tell_log("ZooKeeper", || self.log());
    }
}

/// What servers are started with beside the usual.
#[derive(Debug, Default)]
pub struct Options {
    /// Lines of the configuration, such as `secureClientPort=…`.
    pub lines: Vec<String>,
    /// Flags of the JVM, such as `-Dzookeeper.skipACL=yes`.
    pub flags: Vec<String>,
}

/// An ensemble of its own; of one server, which is alone, or of more.
#[derive(Debug)]
pub struct Ensemble {
    /// The servers, by number.
    pub servers: Vec<Server>,
}

impl Ensemble {
    /// So many servers of the best program there is, which serve when this returns.
    pub fn start(servers: usize) -> Self {
        Self::start_of(program().expect("a ZooKeeper"), servers, &Options::default())
    }

    /// Servers of this program.
    pub fn start_of(program: &'static Program, servers: usize, options: &Options) -> Self {
        let end = Instant::now() + READY / 4;
        loop {
            let ports: Vec<_> = (0..servers).map(|_| Ports::free()).collect();
            let servers = (0..servers).map(|id| Server::new(program, id, &ports, options));
            let mut ensemble = Self {
                servers: servers.collect(),
            };
            ensemble.start_all();
            // Between the choice of a port and its use another may take it: then all begin again.
            if ensemble.come_up() {
                return ensemble;
            }
            assert!(Instant::now() < end, "no ensemble: {}", ensemble.logs());
        }
    }

    /// Waits until all serve. False if one has ended.
    fn come_up(&mut self) -> bool {
        let end = Instant::now() + READY;
        loop {
            if self.servers.iter_mut().any(Server::has_ended) {
                return false;
            }
            if self
                .servers
                .iter()
                .all(|server| server.is_itself() && server.role().is_some())
            {
                return true;
            }
            assert!(Instant::now() < end, "no ensemble: {}", self.logs());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn logs(&self) -> String {
        self.servers.iter().map(Server::log).collect()
    }

    /// Where clients reach it: `host:port`, by commas.
    pub fn connect_string(&self) -> String {
        self.addresses().join(",")
    }

    /// Where clients reach its servers, by number.
    pub fn addresses(&self) -> Vec<String> {
        self.servers.iter().map(Server::address).collect()
    }

    /// The number of the server that leads, or is alone; waits for an election.
    pub fn leader(&self) -> usize {
        let mut found = None;
        eventually("a leader", || {
            let leads = |server: &Server| matches!(server.role(), Some(Role::Leader | Role::Standalone));
            found = self.servers.iter().position(leads);
            found.is_some()
        });
        found.expect("it was found")
    }

    /// The numbers of the servers that follow.
    pub fn followers(&self) -> Vec<usize> {
        let follows = |id: &usize| self.servers[*id].role() == Some(Role::Follower);
        (0..self.servers.len()).filter(follows).collect()
    }

    /// Ends all servers at once.
    pub fn kill_all(&mut self) {
        self.servers.iter_mut().for_each(Server::kill9);
    }

    /// Starts all that are down, without waiting for them.
    pub fn start_all(&mut self) {
        let down = self.servers.iter_mut().filter(|server| server.child.is_none());
        down.for_each(Server::start);
    }

    /// Waits until every server serves.
    pub fn wait_ready(&self) {
        eventually("every server serves", || {
            self.servers.iter().all(|server| server.role().is_some())
        });
    }
}

/// The configuration of a server of an ensemble on `ports`.
fn configuration(directory: &Path, port: u16, ports: &[Ports], more: &[String]) -> String {
    let tick = TICK.as_millis();
    let sync_limit = SYNC_LIMIT.as_millis() / tick;
    let data = directory.join("data");
    let mut lines = vec![
        format!("dataDir={}", data.display()),
        format!("clientPort={port}"),
        "clientPortAddress=127.0.0.1".to_owned(),
        format!("tickTime={tick}"),
        format!("syncLimit={sync_limit}"),
        "initLimit=50".to_owned(),
        "maxSessionTimeout=60000".to_owned(),
        "maxClientCnxns=0".to_owned(),
        "admin.enableServer=false".to_owned(),
        "4lw.commands.whitelist=*".to_owned(),
    ];
    if ports.len() > 1 {
        let server = |(id, ports): (usize, &Ports)| {
            let Ports { quorum, election, .. } = ports;
            format!("server.{}=127.0.0.1:{quorum}:{election}", id + 1)
        };
        lines.extend(ports.iter().enumerate().map(server));
    }
    lines.extend_from_slice(more);
    lines.join("\n") + "\n"
}

/// The value of a line `name: value`.
fn field<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(name)?.strip_prefix(": ");
    answer.lines().find_map(value).map(str::trim)
}

fn copy_directory(from: &Path, to: &PathBuf) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("its type").is_dir() {
            copy_directory(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("a copy");
        }
    }
}
