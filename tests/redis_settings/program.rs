//! The real program over a Redis, as its users configure it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::api::proto::admin_service_client::AdminServiceClient;
use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::{AcquireRequest, ListNamespacesRequest, NamespaceHealth, ReleaseRequest};
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::redis_settings::servers::eventually;

/// A running server with the namespace `default`; killed in the end.
pub struct Program {
    process: Child,
    address: String,
    log: Arc<Mutex<Vec<String>>>,
    _home: Arc<TempDir>,
}

impl Drop for Program {
    fn drop(&mut self) {
        // It fails only for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The configuration of a namespace in a Redis that is new.
fn admitted(keys: &str) -> String {
    format!("[namespaces.default]\nbackend = 'redis'\n[namespaces.default.redis]\non_empty_store = 'admit'\n{keys}\n")
}

fn command(home: &TempDir, text: &str, environment: &[(&str, &str)]) -> Command {
    let config = home.path().join("f.toml");
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--config"])
        .arg(config)
        .env_clear()
        .envs(environment.iter().copied())
        .env("HOME", home.path())
        .stderr(Stdio::piped());
    command
}

/// What the program says when it does not start with these settings.
pub fn refusal(keys: &str) -> String {
    let home = tempfile::tempdir().unwrap();
    let output = command(&home, &admitted(keys), &[]).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

impl Program {
    /// Starts it with these keys of the namespace's Redis.
    pub fn start(keys: &str, environment: &[(&str, &str)]) -> Self {
        Self::on(&admitted(keys), environment)
    }

    /// Starts it with this configuration, in which `default` comes first.
    pub fn on(text: &str, environment: &[(&str, &str)]) -> Self {
        Self::at(&Arc::new(tempfile::tempdir().unwrap()), text, environment)
    }

    /// The same in this home directory, which has its data directory.
    pub fn at(home: &Arc<TempDir>, text: &str, environment: &[(&str, &str)]) -> Self {
        let mut process = command(home, text, environment).spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let log = Arc::<Mutex<Vec<String>>>::default();
        let address = lines.find_map(|line| {
            let address = line.split_once("serving on ").map(|(_, address)| address.to_owned());
            log.lock().push(line);
            address
        });
        let address = address.unwrap_or_else(|| panic!("it does not serve: {:#?}", log.lock()));
        // A full pipe would stop it.
        let rest = Arc::clone(&log);
        std::thread::spawn(move || lines.for_each(|line| rest.lock().push(line)));
        Self {
            process,
            address,
            log,
            _home: Arc::clone(home),
        }
    }

    /// The first line of its log at this level, once there is one.
    pub fn first_line(&self, level: &str) -> String {
        eventually("it logs", Duration::from_secs(60), || {
            let log = self.log.lock();
            log.iter().find(|line| line.contains(level)).cloned()
        })
    }

    /// Runs a command that asks this server, and returns what it prints.
    pub fn ask(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
        let output = command
            .args(arguments)
            .args(["--addr", &self.address])
            .env_clear()
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Why the namespace does not serve, or nothing.
    async fn trouble(&self) -> Option<String> {
        let mut admin = AdminServiceClient::connect(format!("http://{}", self.address))
            .await
            .unwrap();
        let answer = admin.list_namespaces(ListNamespacesRequest::default()).await.unwrap();
        let namespace = answer.into_inner().namespaces.remove(0);
        (namespace.health() != NamespaceHealth::Serving).then_some(namespace.reason)
    }

    /// Waits until the namespace serves, and takes and releases a lock.
    pub async fn serves(&self) {
        let end = Instant::now() + Duration::from_secs(60);
        while let Some(reason) = self.trouble().await {
            assert!(Instant::now() < end, "it does not serve: {reason}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.acquire().await.unwrap();
    }

    /// Waits until the namespace says `why` it does not serve; no lock is granted then.
    pub async fn refuses(&self, why: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let reason = self.trouble().await.expect("it must not serve");
            if reason.contains(why) {
                break;
            }
            assert!(Instant::now() < end, "it says {reason:?}, nothing of {why:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let refused = self.acquire().await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused:?}");
    }

    /// Takes a lock and gives it back.
    async fn acquire(&self) -> Result<(), tonic::Status> {
        let mut locks = LockServiceClient::connect(format!("http://{}", self.address))
            .await
            .unwrap();
        let ask = AcquireRequest {
            namespace: "default".into(),
            name: "a".into(),
            owner: "tester".into(),
            ..AcquireRequest::default()
        };
        let lease_id = locks.acquire(ask).await?.into_inner().lease.unwrap().lease_id;
        locks
            .release(ReleaseRequest {
                lease_id,
                keep_for: None,
            })
            .await
            .map(drop)
    }
}
