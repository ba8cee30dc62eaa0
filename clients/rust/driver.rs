//! The driver of `clients/scenarios`: JSON lines on stdin, events on stdout.

use std::collections::HashMap;
use std::env;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fencepost_client::proto::lock_service_client::LockServiceClient;
use fencepost_client::proto::{AcquireRequest, ReleaseRequest};
use fencepost_client::{Acquire, Client, Error, LockGuard};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const FOREVER: Duration = Duration::from_secs(86_400);

fn say(id: &str, event: &str, fields: Value) {
    let mut line = fields;
    line["id"] = id.into();
    line["event"] = event.into();
    println!("{line}");
}

fn variable(name: &str, default: &str) -> String {
    env::var(name).unwrap_or_else(|_| default.to_owned())
}

fn kind(error: &Error) -> (&'static str, String) {
    match error {
        Error::LockHeld { .. } => ("held", "LOCK_HELD".into()),
        Error::WaitTimeout => ("timeout", "WAIT_TIMEOUT".into()),
        Error::LeaseLost { .. } => ("lost", "LEASE_LOST".into()),
        Error::Unreachable { .. } | Error::Untrusted { .. } => ("unavailable", String::new()),
        Error::Closed => ("closed", String::new()),
        Error::Unavailable { reason, .. } | Error::Refused { reason, .. } => {
            let kind = match reason.as_str() {
                "QUEUE_FULL" | "OVERLOADED" => "overloaded",
                "PERMISSION_DENIED" | "PermissionDenied" => "denied",
                "UNAUTHENTICATED" | "Unauthenticated" => "unauthenticated",
                "INVALID_FIELD" => "invalid",
                "SUPERSEDED" => "superseded",
                "BACKEND_UNAVAILABLE" | "BACKEND_QUARANTINED" | "NO_QUORUM" | "DRAINING" => "unavailable",
                _ => "other",
            };
            (kind, reason.clone())
        }
        _ => ("other", String::new()),
    }
}

fn failed(id: &str, error: &Error) {
    let (kind, reason) = kind(error);
    say(
        id,
        "failed",
        json!({"kind": kind, "reason": reason, "message": error.to_string()}),
    );
}

fn time(command: &Value, field: &str) -> Option<Duration> {
    let ms = command[field].as_i64()?;
    Some(u64::try_from(ms).map_or(FOREVER, Duration::from_millis))
}

fn text<'a>(command: &'a Value, field: &str) -> &'a str {
    command[field].as_str().unwrap_or_default()
}

/// How a block ends.
enum End {
    Release,
    Panic,
    Cancel,
}

struct Block {
    ends: mpsc::UnboundedSender<End>,
    guards: Arc<Mutex<Vec<LockGuard>>>,
}

#[derive(Clone)]
struct Driver {
    client: Client,
    namespace: String,
    owner: String,
    blocks: Arc<Mutex<HashMap<String, Block>>>,
    by_hand: Arc<Mutex<Vec<LockGuard>>>,
}

impl Driver {
    fn request(&self, command: &Value) -> Acquire {
        let (namespace, owner) = (&self.namespace, &self.owner);
        let mut acquire = match text(command, "op") {
            "campaign" => self
                .client
                .campaign(namespace, text(command, "name"), owner, text(command, "value")),
            _ => self.client.acquire(namespace, text(command, "name"), owner),
        };
        let mode = &command["mode"];
        if mode == "shared" {
            acquire = acquire.shared();
        } else if let (Some(permits), Some(limit)) = (mode["permits"].as_u64(), mode["limit"].as_u64()) {
            acquire = acquire.semaphore(u32::try_from(permits).unwrap_or(1), u32::try_from(limit).unwrap_or(1));
        }
        if let Some(ttl) = time(command, "ttl") {
            acquire = acquire.ttl(ttl);
        }
        for (key, value) in command["metadata"].as_object().into_iter().flatten() {
            acquire = acquire.metadata(key, value.as_str().unwrap_or_default());
        }
        acquire.wait(time(command, "wait").unwrap_or_default())
    }

    async fn guards(&self, command: &Value) -> Result<Vec<LockGuard>, Error> {
        let Some(names) = command["names"].as_array() else {
            return Ok(vec![self.request(command).await?]);
        };
        let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
        let mut all = self.client.acquire_all(&self.namespace, &names, &self.owner);
        if let Some(ttl) = time(command, "ttl") {
            all = all.ttl(ttl);
        }
        all.wait(time(command, "wait").unwrap_or_default()).guards().await
    }

    /// Takes the lock and stays inside until it is told to end, or the lock is lost.
    async fn block(self, command: Value, mut ends: mpsc::UnboundedReceiver<End>, held: Arc<Mutex<Vec<LockGuard>>>) {
        let id = text(&command, "id").to_owned();
        let guards = tokio::select! {
            guards = self.guards(&command) => guards,
            Some(_) = ends.recv() => return say(&id, "failed", json!({"kind": "cancelled"})),
        };
        let guards = match guards {
            Ok(guards) => guards,
            Err(error) => return failed(&id, &error),
        };
        let tokens: Vec<u64> = guards.iter().map(LockGuard::fencing_token).collect();
        let lost = futures::future::select_all(guards.iter().map(|guard| Box::pin(guard.lost())));
        *held.lock().expect("no panic") = guards;
        say(&id, "granted", json!({"token": tokens[0], "tokens": tokens}));
        let end = tokio::select! {
            (loss, ..) = lost => {
                say(&id, "lost", json!({"cause": loss.cause()}));
                End::Release
            }
            end = ends.recv() => end.unwrap_or(End::Release),
        };
        match end {
            End::Panic => {
                let guards = std::mem::take(&mut *held.lock().expect("no panic"));
                // The guards go with the stack of the block.
                let ended = tokio::spawn(async move {
                    let _guards = guards;
                    panic!("boom");
                });
                assert!(ended.await.is_err());
                say(&id, "failed", json!({"kind": "boom"}));
            }
            End::Cancel => {
                held.lock().expect("no panic").clear();
                say(&id, "failed", json!({"kind": "cancelled"}));
            }
            End::Release => {
                let mut ended = Ok(());
                // `check` answers until the release is confirmed.
                let guards: Vec<LockGuard> = std::mem::take(&mut *held.lock().expect("no panic"));
                for guard in guards {
                    ended = ended.and(guard.release().await);
                }
                match ended {
                    Ok(()) => say(&id, "released", json!({})),
                    Err(error) => failed(&id, &error),
                }
            }
        }
    }

    async fn hold(&self, command: &Value) {
        let names = command["names"].as_array().cloned().unwrap_or_default();
        let takes = names.iter().map(|name| {
            let one = json!({"op": "acquire", "name": name, "ttl": command["ttl"]});
            async move { self.request(&one).await }
        });
        let (held, failed): (Vec<_>, Vec<_>) = futures::future::join_all(takes)
            .await
            .into_iter()
            .partition(Result::is_ok);
        let first = failed.into_iter().find_map(Result::err).map(|error| error.to_string());
        let mut by_hand = self.by_hand.lock().expect("no panic");
        by_hand.extend(held.into_iter().flatten());
        say(
            text(command, "id"),
            "held",
            json!({"count": by_hand.len(), "failed": first}),
        );
    }

    async fn drop_all(&self, id: &str) {
        let guards = std::mem::take(&mut *self.by_hand.lock().expect("no panic"));
        let released = futures::future::join_all(guards.into_iter().map(LockGuard::release)).await;
        say(
            id,
            "ok",
            json!({"count": released.iter().filter(|ended| ended.is_ok()).count()}),
        );
    }

    async fn observe(self, command: Value, mut ends: mpsc::UnboundedReceiver<End>) {
        let id = text(&command, "id");
        let mut leaders = match self.client.observe(&self.namespace, text(&command, "name")).await {
            Ok(leaders) => leaders,
            Err(error) => return failed(id, &error),
        };
        loop {
            let leader = tokio::select! {
                leader = leaders.next() => leader,
                _ = ends.recv() => return,
            };
            match leader {
                Some(Ok(seen)) => {
                    let leader = seen.leader;
                    let token = leader.as_ref().map(|leader| leader.fencing_token);
                    say(
                        id,
                        "leader",
                        json!({"token": token, "value": leader.map(|leader| leader.value)}),
                    );
                }
                Some(Err(error)) => return failed(id, &error),
                None => return,
            }
        }
    }

    /// Takes and releases as many own locks at once as it is told, for a time.
    async fn bench(&self, command: &Value) {
        let locks = command["locks"].as_u64().unwrap_or(1);
        let (begin, time) = (Instant::now(), time(command, "ms").unwrap_or_default());
        let stub = match command["bare"] == true {
            true => {
                let address = format!("http://{}", variable("FENCEPOST_ADDR", ""));
                Some(LockServiceClient::connect(address).await.expect("a server"))
            }
            false => None,
        };
        let loops = (0..locks).map(|number| {
            let (driver, stub) = (self.clone(), stub.clone());
            let name = format!("bench-{number}");
            let run = text(command, "id").to_owned();
            tokio::spawn(async move {
                let mut pairs = 0_u64;
                while begin.elapsed() < time {
                    match stub.clone() {
                        Some(mut stub) => {
                            let request = AcquireRequest {
                                namespace: driver.namespace.clone(),
                                name: name.clone(),
                                owner: driver.owner.clone(),
                                request_id: format!("{run}-{name}-{pairs}"),
                                ..AcquireRequest::default()
                            };
                            let lease = stub.acquire(request).await.expect("a lease").into_inner().lease;
                            let lease_id = lease.expect("a lease").lease_id;
                            stub.release(ReleaseRequest {
                                lease_id,
                                keep_for: None,
                            })
                            .await
                            .expect("a release");
                        }
                        None => {
                            let one = json!({"op": "acquire", "name": name});
                            driver
                                .request(&one)
                                .await
                                .expect("a lease")
                                .release()
                                .await
                                .expect("a release");
                        }
                    }
                    pairs += 1;
                }
                pairs
            })
        });
        let done = futures::future::join_all(loops.collect::<Vec<JoinHandle<u64>>>()).await;
        let pairs: u64 = done.into_iter().map(|pairs| pairs.expect("no panic")).sum();
        let ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        say(text(command, "id"), "bench", json!({"pairs": pairs, "ms": ms}));
    }

    fn begin(&self, command: Value) {
        let id = text(&command, "id").to_owned();
        let (ends, ended) = mpsc::unbounded_channel();
        let guards = Arc::default();
        let block = Block {
            ends,
            guards: Arc::clone(&guards),
        };
        self.blocks.lock().expect("no panic").insert(id, block);
        match text(&command, "op") {
            "observe" => tokio::spawn(self.clone().observe(command, ended)),
            _ => tokio::spawn(self.clone().block(command, ended, guards)),
        };
    }

    fn end(&self, id: &str, end: End) {
        if let Some(block) = self.blocks.lock().expect("no panic").get(id) {
            // It fails only for a block that has ended.
            let _ = block.ends.send(end);
        }
    }

    fn check(&self, id: &str) {
        let blocks = self.blocks.lock().expect("no panic");
        let token = blocks
            .get(id)
            .and_then(|block| block.guards.lock().expect("no panic").first()?.check().ok());
        match token {
            Some(token) => say(id, "ok", json!({"token": token})),
            None => say(id, "notheld", json!({})),
        }
    }

    async fn run(&self, command: Value) {
        let id = text(&command, "id").to_owned();
        match text(&command, "op") {
            "acquire" | "campaign" | "observe" => self.begin(command),
            "release" => self.end(&id, End::Release),
            "boom" => self.end(&id, End::Panic),
            "cancel" => self.end(&id, End::Cancel),
            "check" => self.check(&id),
            "block" => {
                std::thread::sleep(time(&command, "ms").unwrap_or_default());
                say(&id, "ok", json!({}));
            }
            "hold" => self.hold(&command).await,
            "drop_all" => self.drop_all(&id).await,
            "churn" => {
                for number in 0..command["count"].as_u64().unwrap_or(1) {
                    let client = Client::from_environment().await.expect("a server");
                    let guard = client
                        .acquire(&self.namespace, &format!("churn-{number}"), &self.owner)
                        .await;
                    guard.expect("a lease").release().await.expect("a release");
                }
                say(&id, "ok", json!({}));
            }
            "bench" => self.bench(&command).await,
            "close" => {
                self.client.close().await;
                say(&id, "closed", json!({}));
            }
            _ => say(&id, "unsupported", json!({})),
        }
    }
}

#[tokio::main]
async fn main() {
    println!(
        "{}",
        json!({"event": "hello", "language": "rust", "can": ["block"], "boom": ["panic"]})
    );
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut driver = None;
    while let Ok(Some(line)) = lines.next_line().await {
        let command: Value = serde_json::from_str(&line).unwrap_or_default();
        if text(&command, "op") == "exit" {
            break;
        }
        if driver.is_none() {
            match Client::from_environment().await {
                Ok(client) => {
                    driver = Some(Driver {
                        client,
                        namespace: variable("FENCEPOST_NAMESPACE", "default"),
                        owner: variable("FENCEPOST_OWNER", "me"),
                        blocks: Arc::default(),
                        by_hand: Arc::default(),
                    });
                }
                Err(error) => failed(text(&command, "id"), &error),
            }
        }
        if let Some(driver) = &driver {
            driver.run(command).await;
        }
    }
    // The runtime does not wait for stdin's thread.
    std::process::exit(0);
}
