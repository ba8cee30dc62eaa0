//! Three servers on one store, as their users run them, and one that is killed. What is asked for is how
//! the namespace `faults` is configured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::{AcquireRequest, GetLockRequest, Lease, ReleaseRequest, RenewRequest};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::server::Server;

/// Longer than the test takes.
const TTL: Duration = Duration::from_secs(120);
/// What a waiter may be held up by the waiters of a server that died.
pub const DEAD: Duration = Duration::from_secs(10);
/// How long anything may take that nothing promises.
const READY: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
struct Client(LockServiceClient<Channel>);

impl Client {
    async fn acquire(&mut self, name: &str, request_id: &str, ttl: Duration, wait: Duration) -> Result<Lease, Status> {
        let ask = AcquireRequest {
            namespace: "faults".into(),
            name: name.into(),
            owner: "tester".into(),
            request_id: request_id.into(),
            ttl: Some(ttl.try_into().unwrap()),
            wait: Some(wait.try_into().unwrap()),
            ..AcquireRequest::default()
        };
        Ok(self.0.acquire(ask).await?.into_inner().lease.expect("a lease"))
    }

    async fn take(&mut self, name: &str) -> Lease {
        self.acquire(name, "", TTL, Duration::ZERO).await.expect("it is free")
    }

    async fn release(&mut self, lease: &Lease) -> Result<(), Status> {
        let lease_id = lease.lease_id.clone();
        self.0
            .release(ReleaseRequest {
                lease_id,
                keep_for: None,
            })
            .await
            .map(drop)
    }

    async fn renew(&mut self, lease: &Lease) -> Result<Lease, Status> {
        let (lease_id, ttl) = (lease.lease_id.clone(), None);
        let answer = self.0.renew(RenewRequest { lease_id, ttl }).await?;
        Ok(answer.into_inner().lease.expect("a lease"))
    }

    /// Begins to wait, and returns when so many do.
    async fn wait_for(&mut self, name: &'static str, waiters: u32) -> JoinHandle<Result<Lease, Status>> {
        let mut other = self.clone();
        let call = tokio::spawn(async move { other.acquire(name, "", TTL, TTL).await });
        let end = Instant::now() + READY;
        let (namespace, name) = ("faults".to_owned(), name.to_owned());
        let ask = GetLockRequest { namespace, name };
        loop {
            let state = self.0.get_lock(ask.clone()).await.unwrap().into_inner();
            if state.lock.expect("a state").waiter_count == waiters {
                return call;
            }
            assert!(Instant::now() < end, "not {waiters} waiters");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Whether the server has gone; a connection that broke under a call is Unknown or Cancelled to the
/// client.
fn is_gone(status: &Status) -> bool {
    let broken = status.code() == Code::Unknown && status.message() == "transport error";
    broken || matches!(status.code(), Code::Unavailable | Code::Cancelled)
}

/// A server, and a client of it; it serves.
async fn start(namespace: &str) -> (TempDir, Server, Client) {
    let (home, server) = Server::of_namespace(namespace);
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
    let mut client = Client(LockServiceClient::new(endpoint.connect().await.unwrap()));
    let end = Instant::now() + READY;
    loop {
        match client
            .acquire("probe", "", Duration::from_secs(1), Duration::from_secs(5))
            .await
        {
            Ok(lease) => {
                client.release(&lease).await.unwrap();
                return (home, server, client);
            }
            Err(status) => assert!(status.code() == Code::Unavailable && Instant::now() < end, "{status:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Kills a server that holds and waits: that frees no lease, and forgets none that was given back. Says
/// how long its waiters held the others up.
pub async fn kill_one_of_three(namespace: &str) -> Duration {
    let (_home, doomed, mut first) = start(namespace).await;
    let (_home, _second_server, mut second) = start(namespace).await;
    let (_home, _third_server, mut third) = start(namespace).await;
    let kept = first.take("kept").await;
    let given = first.acquire("given", "once", TTL, Duration::ZERO).await.unwrap();
    first.release(&given).await.unwrap();
    let held = second.take("a").await;
    let mut dead = Vec::new();
    let mut living = Vec::new();
    // The doomed server's waiter comes first each time.
    for round in 0..3 {
        dead.push(first.wait_for("a", 3 * round + 1).await);
        living.push((second.clone(), second.wait_for("a", 3 * round + 2).await));
        living.push((third.clone(), third.wait_for("a", 3 * round + 3).await));
    }
    drop(doomed);
    let killed = Instant::now();
    for call in dead {
        let ended = call.await.unwrap();
        assert!(is_gone(&ended.unwrap_err()));
    }
    second.release(&held).await.unwrap();
    // In the order of their arrival, each as soon as the one before has gone; the dead ones leave
    // together.
    let (mut last, mut held_up) = (held.fencing_token, None);
    for (mut client, call) in living {
        let lease = call.await.unwrap().unwrap();
        held_up.get_or_insert(killed.elapsed());
        assert!(lease.fencing_token > last);
        last = lease.fencing_token;
        client.release(&lease).await.unwrap();
    }
    // What the killed server answered holds at the others: a lease, and that one was given back.
    let refused = third.acquire("kept", "", TTL, Duration::ZERO).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused:?}");
    let renewed = second.renew(&kept).await.unwrap();
    assert_eq!(renewed.fencing_token, kept.fencing_token);
    third.release(&kept).await.unwrap();
    assert!(second.take("kept").await.fencing_token > kept.fencing_token);
    let repeated = third.acquire("given", "once", TTL, Duration::ZERO).await.unwrap_err();
    assert_eq!(repeated.code(), Code::FailedPrecondition, "{repeated:?}");
    assert!(third.take("given").await.fencing_token > given.fencing_token);
    held_up.expect("somebody waited")
}

/// How long leases live that nobody may be left to release.
pub const SHORT: Duration = Duration::from_secs(2);

/// Whether a lease is said to be lost because it ran out.
fn has_expired(status: &Status) -> bool {
    status.code() == Code::FailedPrecondition && status.message().ends_with(": expired")
}

/// Kills a server whose leases run out then: another one says so, to their holder and to a retry.
pub async fn leases_of_the_killed_run_out(namespace: &str) {
    let (_home, doomed, mut first) = start(namespace).await;
    let (_home, _second_server, mut second) = start(namespace).await;
    let plain = first.acquire("plain", "", SHORT, Duration::ZERO).await.unwrap();
    let asked = first.acquire("asked", "once", SHORT, Duration::ZERO).await.unwrap();
    drop(doomed);
    for lease in [&plain, &asked] {
        // Who comes next has it once it has run out.
        let next = second.acquire(&lease.name, "", SHORT, TTL).await.unwrap();
        let lost = second.release(lease).await.unwrap_err();
        assert!(has_expired(&lost), "{lost:?}");
        let lost = second.renew(lease).await.unwrap_err();
        assert!(has_expired(&lost), "{lost:?}");
        second.release(&next).await.unwrap();
    }
    let retried = second.acquire("asked", "once", SHORT, Duration::ZERO).await;
    let retried = retried.unwrap_err();
    assert!(has_expired(&retried), "{retried:?}");
}

/// How many grants there have been, and when it is over.
#[derive(Debug)]
struct Progress {
    granted: AtomicUsize,
    over: AtomicBool,
}

impl Progress {
    async fn until(&self, granted: usize) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.granted.load(Ordering::Relaxed) < granted {
            assert!(Instant::now() < end, "not {granted} grants");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Kills a server under load: its clients go on at another one. Says how long a client was without a grant
/// at most.
pub async fn go_on_at_another(namespace: &str) -> Duration {
    let (_home, doomed, first) = start(namespace).await;
    let (_home, _second_server, second) = start(namespace).await;
    let (_home, _third_server, third) = start(namespace).await;
    let progress = Arc::new(Progress {
        granted: AtomicUsize::new(0),
        over: AtomicBool::new(false),
    });
    let clients = [
        first.clone(),
        second.clone(),
        third.clone(),
        first,
        second.clone(),
        third,
    ];
    let clients = clients.map(|client| tokio::spawn(cycle(client, second.clone(), Arc::clone(&progress))));
    progress.until(60).await;
    drop(doomed);
    let before = progress.granted.load(Ordering::Relaxed);
    let more = if cfg!(feature = "soak") { 2_000 } else { 20 };
    progress.until(before + more).await;
    progress.over.store(true, Ordering::Relaxed);
    let (mut all, mut longest) = (Vec::new(), Duration::ZERO);
    for client in clients {
        let (tokens, gap) = client.await.unwrap();
        assert!(tokens.is_sorted(), "a client's tokens fell");
        all.extend(tokens);
        longest = longest.max(gap);
    }
    let grants = all.len();
    println!("{grants} grants, longest gap {longest:?}");
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), grants, "a token was granted twice");
    longest
}

/// Acquires and releases until it is over; whose server is gone goes to the other one.
async fn cycle(mut client: Client, other: Client, progress: Arc<Progress>) -> (Vec<u64>, Duration) {
    let (mut tokens, mut gap, mut last) = (Vec::new(), Duration::ZERO, Instant::now());
    while !progress.over.load(Ordering::Relaxed) {
        match client.acquire("hot", "", SHORT, TTL).await {
            Ok(lease) => {
                progress.granted.fetch_add(1, Ordering::Relaxed);
                gap = gap.max(last.elapsed());
                last = Instant::now();
                tokens.push(lease.fencing_token);
                if let Err(status) = client.release(&lease).await {
                    assert!(is_gone(&status), "{status:?}");
                    client = other.clone();
                }
            }
            Err(status) => {
                assert!(is_gone(&status), "{status:?}");
                client = other.clone();
            }
        }
    }
    (tokens, gap.max(last.elapsed()))
}
