//! Real servers: Fencepost, Redis and nginx, each on free ports, killed in the end.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::driver::{PATIENCE, until};
use crate::ports::free_port;

/// The program under test.
pub fn program() -> PathBuf {
    let built = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/debug/fencepost");
    std::env::var_os("FENCEPOST_BIN").map_or_else(built, PathBuf::from)
}

/// A process that is killed in the end.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // They fail only for a process that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().cast_signed()), signal).expect("it runs");
    }
}

/// A Fencepost server.
pub struct Server {
    process: Option<Process>,
    home: TempDir,
    arguments: Vec<String>,
    pub address: String,
    /// With what the command line calls it.
    pub environment: Vec<(String, String)>,
}

impl Server {
    /// One in memory.
    pub fn memory() -> Self {
        Self::started(&["--memory"], &[])
    }

    /// One with this configuration; without a table of namespaces, it has `default` in a file.
    pub fn with(config: &str) -> Self {
        Self::with_files(config, &[])
    }

    /// The same with further files in its folder.
    pub fn with_files(config: &str, files: &[(&str, &str)]) -> Self {
        let files = [&[("server.toml", config)], files].concat();
        Self::started(&["--config", "server.toml"], &files)
    }

    fn started(arguments: &[&str], files: &[(&str, &str)]) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            fs::write(home.path().join(name), text).expect("a file");
        }
        let mut server = Self {
            process: None,
            home,
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            address: format!("127.0.0.1:{}", free_port()),
            environment: Vec::new(),
        };
        server.restart();
        server
    }

    /// Starts it (again) on its address and its data, and waits until it serves.
    pub fn restart(&mut self) {
        let ready = self.home.path().join("ready");
        let mut command = Command::new(program());
        command
            .arg("serve")
            .args(&self.arguments)
            .current_dir(&self.home)
            .env_clear()
            .env("HOME", self.home.path());
        command
            .args(["--drain-timeout", "2s", "--listen", &self.address, "--ready-file"])
            .arg(&ready);
        self.process = Some(Process::start(&mut command));
        until(PATIENCE, "the server serves", || ready.exists().then_some(()));
    }

    pub fn path(&self, file: &str) -> String {
        self.home.path().join(file).display().to_string()
    }

    pub fn write(&self, file: &str, text: &str) -> String {
        let path = self.path(file);
        fs::write(&path, text).expect("a file");
        path
    }

    pub fn kill(&mut self) {
        self.process = None;
        // It does not remove the file when it is killed.
        let _ = fs::remove_file(self.home.path().join("ready"));
    }

    pub fn signal(&self, signal: Signal) {
        self.process.as_ref().expect("it runs").signal(signal);
    }

    /// Ends it in order, and waits for that.
    pub fn drain(&mut self) {
        self.signal(Signal::SIGTERM);
        let mut process = self.process.take().expect("it runs");
        until(PATIENCE, "the server ends", || process.0.try_wait().expect("a child"));
    }

    /// Runs a command; what it prints as lines of JSON.
    pub fn command(&self, arguments: &[&str]) -> Vec<Value> {
        self.try_command(arguments)
            .unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    }

    fn try_command(&self, arguments: &[&str]) -> Result<Vec<Value>, String> {
        let mut command = Command::new(program());
        command.args(arguments).env_clear().env("HOME", self.home.path());
        command
            .env("FENCEPOST_ADDR", &self.address)
            .envs(self.environment.iter().cloned());
        let output = command.output().expect("the program runs");
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        let lines = String::from_utf8(output.stdout).expect("UTF-8");
        Ok(lines
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect())
    }

    /// Ends a quarantine, once the server has found its store.
    pub fn admit(&self) {
        until(PATIENCE, "the store is admitted", || {
            self.try_command(&["admit", "default"]).ok()
        });
    }

    pub fn lock(&self, name: &str) -> Value {
        self.command(&["get", &format!("default/{name}"), "--output", "json"])
            .remove(0)
    }

    pub fn holders(&self, name: &str) -> u64 {
        self.lock(name)["holderCount"].as_u64().expect("a number")
    }

    fn waiters(&self, name: &str) -> u64 {
        self.lock(name)["waiterCount"].as_u64().expect("a number")
    }

    pub fn until_waiters(&self, name: &str, count: u64) {
        let what = format!("{count} or more wait for {name}");
        until(PATIENCE, &what, || (self.waiters(name) >= count).then_some(()));
    }

    pub fn until_nobody_waits(&self, name: &str) {
        let what = format!("nobody waits for {name}");
        until(PATIENCE, &what, || (self.waiters(name) == 0).then_some(()));
    }

    /// How many locks are in use.
    pub fn in_use(&self) -> usize {
        self.command(&["list", "default", "--output", "json"]).len()
    }

    pub fn until_all_free(&self, patience: Duration) {
        until(patience, "no lock is in use", || (self.in_use() == 0).then_some(()));
    }

    /// Forces a release, once the server has found its store.
    pub fn force(&self, name: &str, token: u64) {
        let (lock, token) = (format!("default/{name}"), token.to_string());
        let forced = || self.try_command(&["force-release", &lock, &token]).ok();
        until(PATIENCE, "the release is forced", forced);
    }
}

/// A Redis in memory.
pub struct Redis {
    _process: Process,
    _home: TempDir,
    port: u16,
}

impl Redis {
    pub fn start() -> Self {
        Self::start_on(free_port())
    }

    /// Ends it and starts another one, which has lost everything.
    pub fn replace(self) -> Self {
        let port = self.port;
        drop(self);
        Self::start_on(port)
    }

    fn start_on(port: u16) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--save", "", "--port"])
            .arg(port.to_string())
            .current_dir(&home);
        let process = Process::start(&mut command);
        until(PATIENCE, "Redis answers", || {
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        Self {
            _process: process,
            _home: home,
            port,
        }
    }

    /// The configuration of a server on it.
    pub fn config(&self) -> String {
        let port = self.port;
        format!(
            "[namespaces.default]\nbackend = \"redis\"\n[namespaces.default.redis]\n\
             urls = [\"redis://127.0.0.1:{port}\"]\non_empty_store = \"admit\"\n"
        )
    }
}

/// An nginx with its defaults in front of a server.
pub struct Nginx {
    _process: Process,
    _home: TempDir,
    pub address: String,
}

impl Nginx {
    pub fn before(target: &str) -> Self {
        let (home, port) = (tempfile::tempdir().expect("a directory"), free_port());
        let config = format!(
            "daemon off; master_process off; pid nginx.pid; error_log error.log; events {{}}\n\
             http {{ access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;\n\
             uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n\
             server {{ listen 127.0.0.1:{port} http2; location / {{ grpc_pass grpc://{target}; }} }} }}\n"
        );
        fs::write(home.path().join("nginx.conf"), config).expect("a file");
        let program = ["/usr/sbin/nginx", "nginx"]
            .into_iter()
            .find(|path| Path::new(path).exists());
        let mut command = Command::new(program.unwrap_or("nginx"));
        let process = Process::start(
            command
                .arg("-p")
                .arg(home.path())
                .args(["-c", "nginx.conf", "-e", "error.log"]),
        );
        until(PATIENCE, "nginx answers", || {
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        Self {
            _process: process,
            _home: home,
            address: format!("127.0.0.1:{port}"),
        }
    }
}

/// Certificates for 127.0.0.1 made by openssl: an authority, the server's certificate and its key, as paths.
pub struct Certificates {
    home: TempDir,
}

impl Certificates {
    pub fn make() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let script = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem\n\
            openssl req -newkey rsa:2048 -nodes -subj /CN=server -keyout server.key -out server.csr\n\
            printf 'subjectAltName=IP:127.0.0.1,DNS:localhost\\nbasicConstraints=CA:FALSE\\n' > extensions\n\
            openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile extensions \
            -out server.pem\n";
        let output = Command::new("bash")
            .args(["-ec", script])
            .current_dir(&home)
            .output()
            .expect("openssl runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { home }
    }

    pub fn authority(&self) -> String {
        self.path("ca.pem")
    }

    fn path(&self, file: &str) -> String {
        self.home.path().join(file).display().to_string()
    }

    /// The table of a server's configuration.
    pub fn config(&self) -> String {
        let (certificate, key) = (self.path("server.pem"), self.path("server.key"));
        format!("[tls]\ncertificate = {certificate:?}\nkey = {key:?}\nlisteners = \"tcp\"\n")
    }
}
