//! Many calls over one connection.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::{AcquireRequest, Lease, ListLocksRequest, ReleaseRequest};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

pub const NAMESPACE: &str = "default";
pub type Client = LockServiceClient<Channel>;

/// Longer than any burst of these tests takes.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// Room for the answers to many calls at once.
const WINDOW: u32 = 16 << 20;

static LOAD: Mutex<()> = Mutex::new(());

/// Whoever measures time or memory under load has the machine to itself among these tests.
pub fn alone() -> MutexGuard<'static, ()> {
    LOAD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A runtime for the calls of one test.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// A connection of its own.
pub async fn connect(address: &str) -> Client {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let channel = endpoint.initial_connection_window_size(WINDOW).connect().await;
    LockServiceClient::new(channel.expect("the server accepts"))
}

/// A request for a lock with some patience.
pub fn ask(lock: &str, wait: Duration) -> AcquireRequest {
    AcquireRequest {
        namespace: NAMESPACE.into(),
        name: lock.into(),
        owner: "somebody".into(),
        ttl: Some(wire(Duration::from_secs(600))),
        wait: Some(wire(wait)),
        ..AcquireRequest::default()
    }
}

fn wire(time: Duration) -> prost_types::Duration {
    time.try_into().expect("a short time")
}

/// Takes a lock, or says why not.
pub async fn take(client: &Client, ask: AcquireRequest) -> Result<Lease, Status> {
    let answer = client.clone().acquire(ask).await?;
    Ok(answer.into_inner().lease.expect("a lease"))
}

/// Gives a lease back.
pub async fn give(client: &Client, lease: Lease) {
    let lease_id = lease.lease_id;
    client
        .clone()
        .release(ReleaseRequest {
            lease_id,
            keep_for: None,
        })
        .await
        .expect("released");
}

/// How many calls wait for any lock; there may be as many locks as fit on one page.
pub async fn waiting(client: &Client) -> u32 {
    let all = ListLocksRequest {
        namespace: NAMESPACE.into(),
        page_size: i32::MAX,
        ..ListLocksRequest::default()
    };
    let page = client.clone().list_locks(all).await.expect("a page").into_inner();
    assert!(page.next_page_token.is_empty(), "more locks than fit");
    page.locks.iter().map(|lock| lock.waiter_count).sum()
}

/// How many claims hold any lock.
pub async fn held(client: &Client) -> usize {
    let (mut held, mut page_token) = (0, String::new());
    loop {
        let next = ListLocksRequest {
            namespace: NAMESPACE.into(),
            page_size: i32::MAX,
            page_token,
            ..ListLocksRequest::default()
        };
        let page = client.clone().list_locks(next).await.expect("a page").into_inner();
        held += page.locks.iter().map(|lock| lock.holder_count as usize).sum::<usize>();
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return held;
        }
    }
}

/// Returns once exactly so many calls wait.
pub async fn until_waiting(client: &Client, calls: u32) {
    let reached = async {
        while waiting(client).await != calls {
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached)
        .await
        .unwrap_or_else(|_| panic!("{calls} calls do not wait within {PATIENCE:?}"));
}
