//! `fencepost serve` as a process: what it says, and how it ends.

#![cfg(feature = "embedded")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use common::server::until;
use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::{AcquireRequest, GetLockRequest, RenewRequest, WatchLockRequest};
use tempfile::TempDir;
use tonic::Code;

/// A running server with a home of its own; killed in the end.
struct Server {
    process: Child,
    home: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It fails only for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn start(arguments: &[&str], stderr: impl Into<Stdio>) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let process = Command::new(env!("CARGO_BIN_EXE_fencepost"))
            .arg("serve")
            .args(arguments)
            .current_dir(home.path())
            .env_clear()
            .env("HOME", home.path())
            .stderr(stderr)
            .spawn()
            .expect("the program starts");
        Self { process, home }
    }

    fn log(&mut self) -> BufReader<ChildStderr> {
        BufReader::new(self.process.stderr.take().expect("a pipe"))
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args(["-s", name, &self.process.id().to_string()])
            .status();
        assert!(sent.expect("kill runs").success());
    }

    fn end(&mut self) -> ExitStatus {
        until("the server ends", || self.process.try_wait().expect("a child"))
    }
}

/// The next line of the log that holds a text.
fn line_with(log: &mut impl BufRead, text: &str) -> String {
    let found = log.lines().map_while(Result::ok).find(|line| line.contains(text));
    found.unwrap_or_else(|| panic!("the log ends without {text:?}"))
}

#[test]
fn one_line_says_where_it_listens_once_it_does() {
    let mut server = Server::start(&["--listen", "127.0.0.1:0,unix:f.sock"], Stdio::piped());
    let ready = line_with(&mut server.log(), "serving on ");
    let addresses = ready.split_once("serving on ").expect("the addresses").1;
    let (tcp, unix) = addresses.split_once(", ").expect("two of them");
    TcpStream::connect(tcp).expect("a TCP listener with a port of its own");
    assert_eq!(unix, "unix:f.sock");
    UnixStream::connect(server.home.path().join("f.sock")).expect("a Unix socket");
}

#[test]
fn either_signal_ends_it_in_order() {
    for signal in ["TERM", "INT"] {
        let mut server = Server::start(&["--listen", "127.0.0.1:0"], Stdio::piped());
        let mut log = server.log();
        line_with(&mut log, "serving on ");
        server.signal(signal);
        line_with(&mut log, &format!("SIG{signal}"));
        assert_eq!(server.end().code(), Some(0), "{signal}");
    }
}

#[test]
fn the_log_can_be_json() {
    let mut server = Server::start(&["--listen", "127.0.0.1:0", "--log-format", "json"], Stdio::piped());
    let ready = line_with(&mut server.log(), "serving on ");
    assert!(ready.starts_with("{\"timestamp\":"), "{ready}");
    assert!(
        ready.contains("\"level\":\"INFO\",\"message\":\"serving on 127.0.0.1:"),
        "{ready}"
    );
}

#[test]
fn an_address_in_use_is_a_failure_that_names_it() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address").to_string();
    let mut server = Server::start(&["--listen", &address], Stdio::piped());
    let line = line_with(&mut server.log(), "error: ");
    assert!(
        line.starts_with(&format!("error: cannot listen on {address}: Address already in use")),
        "{line}"
    );
    assert_eq!(server.end().code(), Some(1));
}

#[test]
fn it_serves_on_when_nobody_reads_its_log() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut server = Server::start(&["--listen", "unix:f.sock"], writer);
    let socket = server.home.path().join("f.sock");
    until("it listens", || UnixStream::connect(&socket).ok());
    server.signal("TERM");
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn the_ready_file_has_the_addresses_of_a_server_in_memory_until_it_ends() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("ready");
    std::fs::write(&file, "127.0.0.1:1\n").expect("the file of a server that was killed");
    let path = file.to_str().expect("UTF-8");
    let arguments = ["--memory", "--listen", "127.0.0.1:0,unix:f.sock", "--ready-file", path];
    let mut server = Server::start(&arguments, Stdio::piped());
    let mut log = server.log();
    line_with(&mut log, "serving on ");
    let text = std::fs::read_to_string(&file).expect("the file");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    TcpStream::connect(lines[0]).expect("a TCP listener");
    assert_eq!(lines[1], "unix:f.sock");
    let stored = std::fs::read_dir(server.home.path()).expect("its home");
    let stored: Vec<_> = stored.map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(stored, ["f.sock"], "nothing is stored on disk");
    server.signal("TERM");
    assert_eq!(server.end().code(), Some(0));
    assert!(!file.exists());
}

// G183
#[test]
fn the_ready_file_follows_no_link_and_is_for_its_user_alone() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().expect("a directory");
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("other"), "another file").expect("a file");
    for name in ["ready", "ready.unfinished"] {
        symlink(at("other"), at(name)).expect("a link");
    }
    let ready = at("ready");
    let arguments = [
        "--memory",
        "--listen",
        "127.0.0.1:0",
        "--ready-file",
        ready.to_str().expect("UTF-8"),
    ];
    let mut server = Server::start(&arguments, Stdio::piped());
    line_with(&mut server.log(), "serving on ");
    let found = std::fs::symlink_metadata(&ready).expect("the file");
    assert_eq!((found.is_file(), found.permissions().mode() & 0o7777), (true, 0o600));
    assert_eq!(std::fs::read_to_string(at("other")).expect("a file"), "another file");
}

#[test]
fn a_server_does_not_read_its_configuration_from_standard_input() {
    let mut server = Server::start(&["--config", "-"], Stdio::piped());
    let line = line_with(&mut server.log(), "error: ");
    assert!(line.contains("must be a file, not standard input"), "{line}");
    assert_eq!(server.end().code(), Some(2));
}

#[test]
fn a_ready_file_that_cannot_be_written_is_a_failure_that_names_it() {
    let mut server = Server::start(
        &["--memory", "--listen", "127.0.0.1:0", "--ready-file", "/dev/null/x"],
        Stdio::piped(),
    );
    let line = line_with(&mut server.log(), "error: ");
    assert!(line.starts_with("error: the ready file /dev/null/x: "), "{line}");
    assert_eq!(server.end().code(), Some(1));
}

#[test]
fn a_store_in_memory_has_no_configuration_file() {
    let mut server = Server::start(&["--memory", "--config", "f.toml"], Stdio::piped());
    line_with(&mut server.log(), "'--memory' cannot be used with");
    assert_eq!(server.end().code(), Some(2));
}

#[test]
fn dev_says_where_everything_is_and_how_programs_take_a_lock() {
    let home = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    command
        .arg("dev")
        .args(["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]);
    if cfg!(feature = "console") {
        command.args(["--console-listen", "127.0.0.1:0"]);
    }
    let command = command.current_dir(home.path()).env_clear().env("HOME", home.path());
    let process = command.stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut server = Server { process, home };
    let mut lines = BufReader::new(server.process.stdout.take().expect("a pipe")).lines();
    let mut said = || lines.next().expect("a line").expect("UTF-8");
    let first = said();
    let address = first
        .split("listens on ")
        .nth(1)
        .and_then(|rest| rest.split(". ").next());
    TcpStream::connect(address.expect("the address")).expect("a listener");
    if cfg!(feature = "console") {
        assert!(said().starts_with("The console is on http://127.0.0.1:"));
    }
    let metrics = said();
    assert!(metrics.starts_with("The metrics are on http://127.0.0.1:"), "{metrics}");
    for language in ["", "Shell"] {
        assert_eq!(said(), language);
    }
    assert!(said().contains(address.expect("the address")));
    server.signal("TERM");
    assert_eq!(server.end().code(), Some(0));
}

/// Sends a request with these pseudo-headers besides the path, coded for HTTP/2, over a connection of its own. Returns the
/// type of the frame that answers it.
fn answer_to(socket: &Path, pseudo_headers: &[u8]) -> u8 {
    let path = b"/fencepost.v1.LockService/GetLock";
    let mut headers = vec![0x04, u8::try_from(path.len()).expect("short")];
    headers.extend(path);
    headers.extend(pseudo_headers);
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    // HEADERS of stream 1, with the ends of the headers and of the stream.
    bytes.extend([0, 0, u8::try_from(headers.len()).expect("short"), 1, 5, 0, 0, 0, 1]);
    bytes.extend(headers);
    let mut connection = until("it listens", || UnixStream::connect(socket).ok());
    connection.write_all(&bytes).expect("sent");
    loop {
        let mut head = [0; 9];
        connection.read_exact(&mut head).expect("a frame");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        connection.read_exact(&mut vec![0; length]).expect("its content");
        if head[8] == 1 {
            return head[3];
        }
    }
}

#[test]
fn a_request_whose_authority_is_refused_is_logged_with_what_to_set() {
    const ANSWERED: u8 = 1;
    const RESET: u8 = 3;
    let addresses = ["--listen", "unix:f.sock,127.0.0.1:0", "--log-level", "warn,h2=off"];
    let mut server = Server::start(&addresses, Stdio::piped());
    let socket = server.home.path().join("f.sock");
    // POST over http, of the static table, and a text for the authority.
    let request_to = |authority: &str| {
        let length = u8::try_from(authority.len()).expect("short");
        [&[0x83, 0x86, 0x01, length], authority.as_bytes()].concat()
    };
    assert_eq!(answer_to(&socket, &request_to("localhost")), ANSWERED);
    assert_eq!(answer_to(&socket, &[0x86]), RESET, "it has no method");
    assert_eq!(answer_to(&socket, &request_to("%2Frun%2Ff.sock")), RESET);
    assert_eq!(answer_to(&socket, &request_to("10.0.0.1:1,10.0.0.2:1")), RESET);
    let mut log = server.log();
    let line = line_with(&mut log, "grpc.default_authority");
    assert!(
        line.contains("WARN") && line.contains("newest=unix refused=1"),
        "{line}"
    );
    server.signal("TERM");
    let more = log.lines().map_while(Result::ok).find(|line| line.contains("refused"));
    assert_eq!(more, None, "one line in 10 s, and none for other requests");
}

// G63
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_of_the_maximum_age_is_replaced_and_no_lease_is_lost() {
    const AGE: Duration = Duration::from_secs(3);
    const GRACE: Duration = Duration::from_secs(2);
    let home = tempfile::tempdir().expect("a directory");
    let config = "drain_timeout = \"2s\"\n[server]\nconnection_age = \"3s\"\n[namespaces.default.embedded]\npath = \":memory:\"\n";
    std::fs::write(home.path().join("f.toml"), config).expect("a file");
    let server = common::server::Server::start_with(&home, &["--config", "f.toml", "--listen", "127.0.0.1:0"]);
    let began = Instant::now();
    let mut client = LockServiceClient::connect(format!("http://{}", server.address))
        .await
        .expect("it listens");
    let ask = |wait: i64| AcquireRequest {
        namespace: "default".into(),
        name: "a".into(),
        owner: "me".into(),
        wait: Some(prost_types::Duration {
            seconds: wait,
            nanos: 0,
        }),
        ..AcquireRequest::default()
    };
    let held = client
        .acquire(ask(0))
        .await
        .expect("it is free")
        .into_inner()
        .lease
        .expect("a lease");
    let watched = WatchLockRequest {
        namespace: "default".into(),
        name: "a".into(),
    };
    let mut watch = client.watch_lock(watched).await.expect("a stream").into_inner();
    let ends = [
        tokio::spawn(async move {
            loop {
                if let Err(end) = watch.message().await {
                    return (end, began.elapsed());
                }
            }
        }),
        tokio::spawn({
            let mut client = client.clone();
            async move { (client.acquire(ask(60)).await.expect_err("it is held"), began.elapsed()) }
        }),
    ];
    // Each renewal of the same client succeeds, also when its connection ends. While streams are open, hyper's client
    // learns of the end with its next call, which it then does not send.
    let mut unsent = 0;
    while began.elapsed() < AGE * 2 + GRACE {
        let renewed = client.renew(RenewRequest {
            lease_id: held.lease_id.clone(),
            ttl: None,
        });
        if let Err(error) = renewed.await {
            assert_eq!(error.code(), Code::Cancelled, "{error:?}");
            unsent += 1;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(unsent <= 2, "{unsent}");
    for end in ends {
        assert!(
            end.is_finished(),
            "a connection older than its maximum age with the grace"
        );
        let (end, at) = end.await.expect("no panic");
        assert_eq!(
            end.metadata().get("fencepost-reason").expect("a reason"),
            "DRAINING",
            "{end:?}"
        );
        assert!(at >= AGE * 9 / 10 + GRACE, "{at:?}");
    }
    let look = GetLockRequest {
        namespace: "default".into(),
        name: "a".into(),
    };
    let state = client
        .get_lock(look)
        .await
        .expect("a state")
        .into_inner()
        .lock
        .expect("a lock");
    assert_eq!(
        (state.holder_count, state.waiter_count),
        (1, 0),
        "the wait has left the queue"
    );
}
