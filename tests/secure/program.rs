//! The real program with its configuration file, as grpcurl and its own commands meet it.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::authority::{Authority, Files, file};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fencepost");
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that asks its callers who they are, on encrypted addresses.
pub struct Program {
    process: Child,
    pub port: String,
    /// The port of its metrics.
    pub watch_port: String,
    folder: TempDir,
    pub authority: Authority,
    own: Files,
    log: Receiver<String>,
}

impl Drop for Program {
    fn drop(&mut self) {
        // It fails only for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Its configuration.
pub fn config(folder: &Path) -> String {
    let hash = Sha256::digest("the-token");
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let folder = folder.display();
    format!(
        r#"
listen = ["127.0.0.1:0"]
metrics_listen = "127.0.0.1:0"
data_dir = "{folder}/data"

[tls]
certificate = "{folder}/server.pem"
key = "{folder}/server.key"
client_ca = "{folder}/ca.pem"
client_auth = "optional"
listeners = "all"

[auth]
bearer_hashes = ["ci:{digits}"]

[[auth.rules]]
identities = ["token:ci"]
namespaces = ["default"]
locks = ["ci/"]
verbs = ["acquire", "read"]

[[auth.rules]]
identities = ["uri:spiffe://example.org/*"]
namespaces = ["*"]
verbs = ["acquire", "read", "admin"]

[[auth.limits]]
identities = ["token:*"]
lease_limit = 1
"#
    )
}

impl Program {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let authority = Authority::new("the authority of a test");
        authority.server().write(folder.path(), "server");
        let own = authority.client("spiffe://example.org/ops").write(folder.path(), "own");
        file(folder.path(), "ca.pem", &authority.pem);
        file(folder.path(), "token", "the-token\n");
        let config = file(folder.path(), "f.toml", &config(folder.path()));
        let mut process = Command::new(PROGRAM)
            .args(["serve", "--config"])
            .arg(config)
            .env_clear()
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let log = lines(process.stderr.take().expect("a pipe"));
        let mut program = Self {
            process,
            port: String::new(),
            watch_port: String::new(),
            folder,
            authority,
            own,
            log,
        };
        program.watch_port = program.logged_port("metrics and health on https://");
        program.port = program.logged_port("serving on ");
        program
    }

    fn logged_port(&self, words: &str) -> String {
        let line = self.logged(words);
        let (_, port) = line.rsplit_once(':').expect("an address");
        port.to_owned()
    }

    /// Its id, for signals.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The next line of the log that has this in it.
    pub fn logged(&self, words: &str) -> String {
        loop {
            let line = self.log.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("the log does not say {words:?}"));
            if line.contains(words) {
                return line;
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs the program's own command, which finds the server.
    fn run(&self, arguments: &[&str], proof: &[(&str, PathBuf)]) -> Output {
        let mut command = Command::new(PROGRAM);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("FENCEPOST_ADDR", format!("https://localhost:{}", self.port))
            .env("FENCEPOST_CA_FILE", self.path("ca.pem"));
        for (name, path) in proof {
            command.env(name, path);
        }
        command.output().expect("the program runs")
    }

    fn token(&self) -> [(&'static str, PathBuf); 1] {
        [("FENCEPOST_BEARER_FILE", self.path("token"))]
    }

    fn certificate(&self) -> [(&'static str, PathBuf); 2] {
        [
            ("FENCEPOST_CERT_FILE", self.own.certificate.clone()),
            ("FENCEPOST_KEY_FILE", self.own.key.clone()),
        ]
    }
}

fn lines(log: impl Read + Send + 'static) -> Receiver<String> {
    let (tell, told) = channel();
    thread::spawn(move || {
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            eprintln!("{line}");
            // Read to its end also when nobody listens any more: a full pipe would stop the server.
            let _ = tell.send(line);
        }
    });
    told
}

fn text(output: &Output) -> String {
    let all = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&all).into_owned()
}

#[track_caller]
fn ends(output: &Output, code: i32, words: &str) {
    let said = text(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(words), "{words:?}: {said}");
}

#[test]
fn commands_prove_who_asks_by_a_token_or_a_certificate() {
    let program = Program::start();
    let run = |arguments: &[&str], proof: &[(&str, PathBuf)]| program.run(arguments, proof);
    ends(&run(&["acquire", "default/ci/a"], &[]), 1, "UNAUTHENTICATED");
    ends(
        &run(&["acquire", "default/ci/a", "--ttl", "1h"], &program.token()),
        0,
        "ci/a",
    );
    ends(
        &run(&["acquire", "default/a"], &program.token()),
        1,
        "PERMISSION_DENIED",
    );
    ends(&run(&["acquire", "default/ci/b"], &program.token()), 123, "OVERLOADED");
    ends(
        &run(&["get", "default/ci/a", "-o", "json"], &program.certificate()),
        0,
        "token:ci",
    );
    ends(&run(&["namespaces"], &program.certificate()), 0, "default");
    let wrong = [("FENCEPOST_CA_FILE", program.own.certificate.clone())];
    ends(&run(&["get", "default/ci/a"], &wrong), 1, "is not trusted");
    let none = [("FENCEPOST_BEARER_FILE", program.path("nothing"))];
    ends(&run(&["get", "default/ci/a"], &none), 1, "nothing");
    let plain = [("FENCEPOST_ADDR", PathBuf::from(format!("127.0.0.1:{}", program.port)))];
    ends(
        &run(&["get", "default/ci/a"], &plain),
        123,
        "write https:// before the address",
    );
    let readable = [
        ("FENCEPOST_ADDR", PathBuf::from("192.0.2.1:1")),
        ("FENCEPOST_BEARER_FILE", program.path("token")),
    ];
    ends(&run(&["get", "default/ci/a"], &readable), 1, "https://");
}

#[test]
fn a_command_under_a_lock_asks_as_the_one_who_holds_it() {
    let program = Program::start();
    let check = "\"$0\" get default/ci/a -o json";
    let proof = program.token();
    let words = ["lock", "default/ci/a", "--bearer-file"];
    let words = [
        &words[..],
        &[proof[0].1.to_str().expect("UTF-8"), "--", "sh", "-c", check, PROGRAM],
    ]
    .concat();
    ends(&program.run(&words, &[]), 0, "token:ci");
}

// G158
#[test]
fn what_an_operator_does_and_what_is_denied_leaves_a_line_of_the_audit() {
    let program = Program::start();
    let lease = program.run(&["acquire", "default/ci/a", "-o", "json"], &program.token());
    let lease: serde_json::Value = serde_json::from_slice(&lease.stdout).expect("a lease");
    let token = lease["fencingToken"].as_str().expect("a number").to_owned();
    let force = ["force-release", "default/ci/a", token.as_str()];
    ends(&program.run(&force, &program.token()), 1, "PERMISSION_DENIED");
    let denied = program.logged("fencepost::audit");
    for word in ["force_release", "token:ci", "ci/a", "no rule allows", "127.0.0.1:"] {
        assert!(denied.contains(word), "{word}: {denied}");
    }
    ends(&program.run(&force, &program.certificate()), 0, "");
    let done = program.logged("fencepost::audit");
    for word in ["uri:spiffe://example.org/ops", &token, "done"] {
        assert!(done.contains(word), "{word}: {done}");
    }
    // Nothing is in quarantine.
    ends(
        &program.run(&["admit", "default"], &program.certificate()),
        1,
        "UNSUPPORTED",
    );
    let refused = program.logged("fencepost::audit");
    for word in ["admit", "uri:spiffe://example.org/ops", "quarantine"] {
        assert!(refused.contains(word), "{word}: {refused}");
    }
}

#[test]
fn grpcurl_calls_with_a_certificate_and_is_turned_away_without() {
    let Some(grpcurl) = grpcurl() else {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "grpcurl is missing");
        println!("passed without a run: grpcurl is missing");
        return;
    };
    let program = Program::start();
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let ca = ["-cacert".to_owned(), path(&program.path("ca.pem"))];
    let own = [
        "-cert".into(),
        path(&program.own.certificate),
        "-key".into(),
        path(&program.own.key),
    ];
    let call = |proof: &[String]| {
        let mut command = Command::new(&grpcurl);
        let ask = r#"{"namespace": "default", "name": "a", "owner": "me"}"#;
        command.args(&ca).args(proof).args(["-d", ask]);
        command.arg(format!("localhost:{}", program.port));
        command
            .arg("fencepost.v1.LockService/Acquire")
            .output()
            .expect("grpcurl runs")
    };
    ends(&call(&own), 0, "\"leaseId\"");
    // Reflection is closed to whom nobody knows.
    let unknown = call(&[]);
    assert_ne!(unknown.status.code(), Some(0));
    assert!(text(&unknown).contains("Unauthenticated"), "{}", text(&unknown));
    let bearer = ["-H".to_owned(), "authorization: Bearer the-token".to_owned()];
    let denied = call(&bearer);
    assert!(
        text(&denied).contains("\"reason\": \"PERMISSION_DENIED\""),
        "{}",
        text(&denied)
    );
}

fn grpcurl() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let tools = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/tools");
    let mut folders = std::env::split_paths(&path).chain([tools]);
    folders.find_map(|folder| Some(folder.join("grpcurl")).filter(|program| program.is_file()))
}

#[test]
fn an_address_for_other_machines_needs_certificates() {
    let folder = tempfile::tempdir().expect("a directory");
    let check = |more: &str| {
        let path = folder.path().join("f.toml");
        fs::write(&path, format!("listen = [\"0.0.0.0:1\"]\n{more}")).expect("a file");
        let mut command = Command::new(PROGRAM);
        command.args(["config", "check", "--config"]).arg(path).env_clear();
        command.env("HOME", folder.path()).output().expect("the program runs")
    };
    ends(&check(""), 1, "must be a loopback address");
    let own = Authority::new("an authority").server().write(folder.path(), "own");
    let (certificate, key) = (own.certificate.display(), own.key.display());
    ends(
        &check(&format!("[tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n")),
        0,
        "ok",
    );
    ends(&check("[tls]\ncertificate = \"a\"\n"), 1, "f.toml:2:2: tls.key");
}
