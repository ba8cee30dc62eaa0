//! A log that nobody reads, for a while or for ever.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fencepost::api::proto::ForceReleaseRequest;
use fencepost::api::proto::admin_service_client::AdminServiceClient;
use sha2::{Digest, Sha256};
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::fixture::channel;
use crate::observe::asks::reason;
use crate::observe::server::{PATIENCE, program};

/// A server whose log is read as far as it says where it listens.
struct Unread {
    process: Child,
    log: Option<BufReader<ChildStderr>>,
    channel: Channel,
    metrics: String,
}

impl Drop for Unread {
    fn drop(&mut self) {
        // It fails only for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Unread {
    async fn start(level: &str) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let hash = |secret: &str| {
            Sha256::digest(secret)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        let config = format!(
            "log.level = \"{level}\"\n[auth]\nbearer_hashes = [\"ops:{}\", \"ci:{}\"]\n\
             [[auth.rules]]\nidentities = [\"token:ops\"]\nnamespaces = [\"*\"]\nverbs = [\"acquire\", \"read\", \"admin\"]\n\
             [[auth.rules]]\nidentities = [\"token:ci\"]\nnamespaces = [\"*\"]\nverbs = [\"read\"]\n\
             [namespaces.default]\nembedded = {{ path = \":memory:\" }}\n",
            hash("ops-secret"),
            hash("ci-secret"),
        );
        let file = home.path().join("f.toml");
        std::fs::write(&file, config).expect("a file");
        let mut process = Command::new(program())
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--metrics-listen",
                "127.0.0.1:0",
                "--ready-file",
            ])
            .arg(home.path().join("ready"))
            .arg("--config")
            .arg(file)
            .env_clear()
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut log = BufReader::with_capacity(1, process.stderr.take().expect("a pipe"));
        let mut logged = |words: &str| {
            loop {
                let mut line = String::new();
                assert_ne!(log.read_line(&mut line).expect("the log"), 0, "it says {words:?}");
                if let Some((_, address)) = line.split_once(words) {
                    return address.trim().to_owned();
                }
            }
        };
        let metrics = logged("metrics and health on http://");
        let address = logged("serving on ");
        Self {
            channel: channel(&address).await,
            log: Some(log),
            process,
            metrics,
        }
    }

    async fn force(&self, token: &str) -> Result<(), Status> {
        let mut request = Request::new(ForceReleaseRequest {
            namespace: "default".into(),
            name: "a".into(),
            fencing_token: 1,
            reason: String::new(),
        });
        let bearer = MetadataValue::try_from(format!("Bearer {token}")).expect("ASCII");
        request.metadata_mut().insert("authorization", bearer);
        let id = MetadataValue::try_from("x".repeat(128)).expect("ASCII");
        request.metadata_mut().insert("x-request-id", id);
        let mut admin = AdminServiceClient::new(self.channel.clone());
        let forced = tokio::time::timeout(PATIENCE, admin.force_release(request)).await;
        forced.expect("an answer in time").map(drop)
    }

    fn get(&self, path: &str) -> String {
        let url = format!("http://{}{path}", self.metrics);
        let answer = Command::new("curl").args(["-sS", "--max-time", "20", &url]).output();
        String::from_utf8(answer.expect("curl runs").stdout).expect("UTF-8")
    }

    fn dropped(&self, kind: &str) -> u64 {
        let series = format!("fencepost_log_lines_dropped_total{{kind=\"{kind}\"}} ");
        let text = self.get("/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(&series));
        line.expect("the series").parse().expect("a number")
    }

    /// Reads the log from now on, until its end.
    fn read(&mut self) -> thread::JoinHandle<String> {
        let mut log = self.log.take().expect("it is not read yet").into_inner();
        thread::spawn(move || {
            let mut text = Vec::new();
            log.read_to_end(&mut text).expect("the log");
            String::from_utf8(text).expect("UTF-8")
        })
    }

    fn end(&mut self) -> bool {
        crate::observe::signals::send("TERM", &[self.process.id()]);
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            if let Some(status) = self.process.try_wait().expect("a child") {
                return status.success();
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("it does not end within {PATIENCE:?}");
    }
}

// G186
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_nobody_reads_stops_neither_calls_nor_probes_nor_the_end() {
    let mut server = Unread::start("trace,h2=trace").await;
    let since = Instant::now();
    while server.dropped("log") == 0 {
        assert!(since.elapsed() < PATIENCE, "lines are dropped");
        for _ in 0..50 {
            server.force("ci-secret").await.expect_err("no rule allows it");
        }
        assert!(server.get("/healthz").contains("ok"), "it answers");
    }
    let gone = server.force("ops-secret").await.expect_err("nobody holds it");
    assert_eq!(reason(&gone), "LEASE_LOST");
    assert!(server.end(), "it ends in order");
}

// G186 G187
#[tokio::test(flavor = "multi_thread")]
async fn an_admin_action_is_refused_if_its_audit_line_cannot_be_queued_and_none_is_lost() {
    let mut server = Unread::start("debug").await;
    let mut done = 0;
    let refused = loop {
        let error = server.force("ops-secret").await.expect_err("nobody holds it");
        if reason(&error) != "LEASE_LOST" {
            break error;
        }
        done += 1;
        assert!(done < 5_000, "the queue has a bound");
    };
    assert_eq!(
        (refused.code(), reason(&refused)),
        (Code::ResourceExhausted, "OVERLOADED".into())
    );
    assert!(refused.message().contains("audit log"), "{refused}");
    assert!(server.dropped("audit") >= 1);
    let log = server.read();
    let error = async || server.force("ops-secret").await.expect_err("nobody holds it");
    let since = Instant::now();
    while reason(&error().await) != "LEASE_LOST" {
        assert!(since.elapsed() < PATIENCE, "actions are accepted again");
    }
    done += 1;
    assert!(server.end());
    let log = log.join().expect("no panic");
    assert_eq!(log.matches("action=\"force_release\"").count(), done);
}

// G187
#[tokio::test(flavor = "multi_thread")]
async fn denied_actions_of_one_identity_are_summed_up_also_at_the_end() {
    let mut server = Unread::start("info").await;
    let log = server.read();
    for _ in 0..500 {
        let denied = server.force("ci-secret").await.expect_err("no rule allows it");
        assert_eq!(reason(&denied), "PERMISSION_DENIED");
    }
    assert!(server.end());
    let log = log.join().expect("no panic");
    let lines: Vec<_> = log.lines().filter(|line| line.contains("fencepost::audit")).collect();
    assert!(lines.len() <= 10, "{} lines", lines.len());
    let counts = lines
        .iter()
        .filter_map(|line| line.split_once("count=")?.1.split(' ').next()?.parse::<usize>().ok());
    let own = lines
        .iter()
        .filter(|line| line.contains("action=\"force_release\""))
        .count();
    assert_eq!(own + counts.sum::<usize>(), 500, "{lines:#?}");
}
