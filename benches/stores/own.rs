//! Our own sides: through gRPC at servers, and through a backend in process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fencepost::backend::{Backend, Health};
use fencepost::limits::Limits;
use fencepost::locks::{Acquire, Locks};
use fencepost::name::{Identity, LockName, Metadata, Mode, Namespace, Owner};
use fencepost_client::raw::{Raw, RawSession};
use fencepost_client::{Client, Credentials};

use crate::process::{NAMESPACE, Server};
use crate::side::{Caller, Side, Turn};
use crate::{Failure, client};

/// Through gRPC by our own client: a request id for each Acquire, and what is called at the same time over a session.
pub const CLIENT: &str = "through gRPC, our client";
/// Through gRPC over a session, without request ids.
pub const SESSION: &str = "through gRPC, session without request ids";
/// Through gRPC by a request for each call, with request ids.
pub const CALLS: &str = "through gRPC, calls of their own";
/// Through the backend.
pub const PROCESS: &str = "in process";
/// Through gRPC, by turns at two servers.
pub const TWO: &str = "through two servers";

/// How long a caller waits for a lock. Nobody waits that long.
const WAIT: Duration = Duration::from_secs(60);

/// The sides that every store has.
pub async fn sides(server: &Server, locks: Locks) -> Result<Vec<Side>, Failure> {
    let remote = serves(server).await?;
    let clients = vec![connect(server).await?];
    let address = server.address.parse()?;
    let session = Raw::connect(&address, &Credentials::default()).await?.session().await?;
    Ok(vec![
        Side::new(CLIENT, move |turn| by_clients(clients.clone(), turn, "c")),
        Side::new(SESSION, move |turn| over_session(session.clone(), turn)),
        Side::new(CALLS, move |turn| by_calls(remote.clone(), turn)),
        Side::new(PROCESS, move |turn| {
            let locks = locks.clone();
            async move { Ok(turn.all("p", |caller| in_process(locks.clone(), caller)).await) }
        }),
    ])
}

/// A connection to a server, once it serves.
pub async fn serves(server: &Server) -> Result<client::Locks, Failure> {
    let remote = client::connect(&server.address).await?;
    let until = Instant::now() + WAIT;
    while let Err(status) = client::pair(&mut remote.clone(), ask("warm")).await {
        if Instant::now() > until {
            return Err(status.into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(remote)
}

/// A hot lock through two servers.
pub async fn through_two(servers: [&Server; 2]) -> Result<Side, Failure> {
    let mut both = Vec::new();
    for server in servers {
        both.push(connect(server).await?);
    }
    Ok(Side::new(TWO, move |turn| by_clients(both.clone(), turn, "t")).only_hot())
}

async fn connect(server: &Server) -> Result<Client, Failure> {
    Ok(Client::connect(&[server.address.parse()?]).await?)
}

fn ask(lock: &str) -> fencepost::api::proto::AcquireRequest {
    client::ask(NAMESPACE, lock, "bench", WAIT)
}

/// The callers use the clients by turns.
async fn by_clients(clients: Vec<Client>, turn: Turn, side: &'static str) -> Result<usize, Failure> {
    let call = |caller: Caller| {
        let client = clients[caller.number % clients.len()].clone();
        async move {
            let mut done = 0;
            while Instant::now() < caller.until {
                let acquire = client.acquire(NAMESPACE, &caller.lock, "bench").wait(WAIT);
                let lease = acquire.lease().await.expect("a grant");
                client.release(&lease.lease_id).await.expect("a release");
                done += 1;
            }
            done
        }
    };
    Ok(turn.all(side, call).await)
}

async fn over_session(session: RawSession, turn: Turn) -> Result<usize, Failure> {
    let call = |caller: Caller| {
        let session = session.clone();
        async move {
            let (ask, mut done) = (ask(&caller.lock), 0);
            while Instant::now() < caller.until {
                let lease = session.acquire(ask.clone()).await.expect("a grant");
                session.release(lease.lease_id).await.expect("a release");
                done += 1;
            }
            done
        }
    };
    Ok(turn.all("s", call).await)
}

async fn by_calls(remote: client::Locks, turn: Turn) -> Result<usize, Failure> {
    let call = |caller: Caller| {
        let mut remote = remote.clone();
        async move {
            let (mut ask, mut done) = (ask(&caller.lock), 0);
            while Instant::now() < caller.until {
                ask.request_id = unique().to_string();
                client::pair(&mut remote, ask.clone()).await.expect("a pair");
                done += 1;
            }
            done
        }
    };
    Ok(turn.all("u", call).await)
}

fn unique() -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// The namespace of the callers in process. It is none of the server's, so that the sides share no lock.
pub fn namespace() -> Namespace {
    Namespace::new("process").expect("a good name")
}

/// The locks of a backend, once it serves.
pub async fn locks(backend: Arc<dyn Backend>) -> Result<Locks, Failure> {
    let mut health = backend.health();
    health.wait_for(|health| *health == Health::Serving).await?;
    Ok(Locks::new(namespace(), Limits::default(), backend))
}

async fn in_process(locks: Locks, caller: Caller) -> usize {
    let ask = Acquire {
        lock: LockName::new(&caller.lock).expect("a good name"),
        owner: Owner::new("bench").expect("a good name"),
        identity: Identity::anonymous(),
        mode: Mode::Exclusive,
        ttl: Some(Duration::from_secs(30)),
        wait: WAIT,
        request_id: None,
        reentrant: false,
        metadata: Metadata::default(),
    };
    let mut done = 0;
    while Instant::now() < caller.until {
        let lease = locks.acquire(ask.clone()).await.expect("a grant").delivered();
        locks.release(&lease.key).await.expect("a release");
        done += 1;
    }
    done
}
