//! The lines of use in the README, run as they stand there against a real server.

#![cfg(feature = "embedded")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencepost_client::Client;

/// A server on a port of its own; killed in the end.
struct Server {
    process: Child,
    address: String,
    _home: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It fails only for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn start() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let mut program = Command::new(env!("CARGO_BIN_EXE_fencepost"));
        program
            .args(["serve", "--listen", "127.0.0.1:0"])
            .env_clear()
            .env("HOME", home.path());
        let mut process = program.stderr(Stdio::piped()).spawn().expect("the program starts");
        let log = BufReader::new(process.stderr.take().expect("a pipe"));
        let mut lines = log.lines().map_while(Result::ok);
        let address = lines.find_map(|line| Some(line.split_once("serving on ")?.1.to_owned()));
        Self {
            process,
            address: address.expect("the log says where it listens"),
            _home: home,
        }
    }
}

/// The first block of a language in the README.
fn block(language: &str) -> String {
    let readme = include_str!("../../README.md");
    let blocks = readme.split_once(&format!("```{language}\n")).expect("a block").1;
    blocks.split_once("```").expect("its end").0.to_owned()
}

fn is_there(program: &str) -> bool {
    let asked = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    asked.is_ok()
}

/// Runs lines of bash at a server; nothing where a program that they need is missing at home.
fn run(lines: &str, server: &Server) -> Option<Output> {
    if let Some(missing) = ["grpcurl", "jq"].into_iter().find(|program| !is_there(program)) {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{missing} is missing");
        println!("passed without a run: {missing} is missing");
        return None;
    }
    let lines = lines.replace("127.0.0.1:50051", &server.address);
    let output = Command::new("bash").args(["-euo", "pipefail", "-c", &lines]).output();
    Some(output.expect("bash runs"))
}

#[test]
fn the_five_lines_of_use_work_as_they_stand() {
    let lines = block("bash");
    assert_eq!(lines.lines().count(), 5, "{lines}");
    let server = Server::start();
    let Some(output) = run(&lines, &server) else { return };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        said.contains("\"holders\": [") && said.contains("\"owner\": \"me\""),
        "{said}"
    );
    let call = lines.lines().next().expect("the first line").to_owned();
    let look = call + "\ncall GetLock '{\"namespace\": \"default\", \"name\": \"reports\"}'";
    let after = run(&look, &server).expect("as before").stdout;
    assert!(
        !String::from_utf8_lossy(&after).contains("holders"),
        "{}",
        String::from_utf8_lossy(&after)
    );
}

/// The token of the last save.
static SAVED: AtomicU64 = AtomicU64::new(0);

async fn save(token: u64) -> std::io::Result<()> {
    SAVED.store(token, Ordering::Relaxed);
    Ok(())
}

/// The lines of Rust in the README, with the address of the test's server.
async fn lines_of_rust(address: &str) -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::connect(&[address.parse()?]).await?;
    let lock = client
        .acquire("default", "reports", "me")
        .wait(Duration::from_secs(30))
        .await?;
    tokio::select! {
        saved = save(lock.fencing_token()) => saved?,
        loss = lock.lost() => return Err(loss.to_string().into()),
    }
    lock.release().await?;
    Ok(())
}

#[tokio::test]
async fn the_lines_of_rust_work_as_they_stand() {
    let lines = block("rust").replace("\"127.0.0.1:50051\"", "address");
    let indented: String = lines.lines().map(|line| format!("    {line}\n")).collect();
    assert!(include_str!("mod.rs").contains(&indented), "{indented}");
    let server = Server::start();
    lines_of_rust(&server.address).await.expect("they work");
    assert!(SAVED.load(Ordering::Relaxed) > 0, "nothing was saved");
}
