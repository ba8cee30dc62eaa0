//! A waiter that the store took out is forgotten by its replica too: else its lock would be kept alive for ever.

use std::time::Duration;

use fencepost::backend::redis::scripts::RELEASE;
use fencepost::backend::redis_server::script::{Ask, ScriptRef};
use fencepost::backend::{AcquireOutcome, Backend, NewClaim, Notification, ReleaseTarget};
use fencepost::name::LockName;
use futures::StreamExt;
use redis::Value;

use crate::long_queues::{claim, open};
use crate::servers::{RedisServer, available};

/// Two heartbeats of a lock with waiters, and some time for a slow machine.
const HEARTBEATS: Duration = Duration::from_millis(4_000);

fn lock() -> LockName {
    LockName::new("a").unwrap()
}

fn record(server: &RedisServer) -> String {
    server.cli(&["DEBUG", "DIGEST-VALUE", "fencepost:long:l:a"])
}

/// Takes a waiter out as its own replica would that does not know its call: the store then says that it is gone.
pub async fn take_out(server: &RedisServer, url: &str, waiter: &NewClaim) {
    let channels = server.cli(&["PUBSUB", "CHANNELS", "fencepost:long:w:*"]);
    let replica = channels.trim().strip_prefix("fencepost:long:w:").unwrap();
    let text = |text: &str| text.as_bytes().to_vec();
    let none = Vec::new;
    let mut args = vec![text("fencepost:long:"), text("a"), text(replica), text("W")];
    args.extend([waiter.id.as_bytes().to_vec(), none(), none(), none(), none()]);
    let release = RELEASE.command(&Ask::of(b"fencepost:long:l:a", &args), ScriptRef::Text);
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let answer: Vec<Value> = release.query_async(&mut connection).await.unwrap();
    assert_eq!(answer[0], Value::BulkString(b"ended".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_whose_waiter_is_gone_is_not_kept_alive() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&["--enable-debug-command", "local"]);
    let backend = open(&server).await;
    let mut notifications = backend.notifications();
    let holder = backend.acquire(&lock(), &claim(1)).await.unwrap();
    assert!(matches!(holder, AcquireOutcome::Held(_)), "{holder:?}");
    let waiting = backend.acquire(&lock(), &claim(2)).await.unwrap();
    assert!(matches!(waiting, AcquireOutcome::Waiting(_)), "{waiting:?}");
    // A lock that somebody waits for is told so again and again.
    let before = record(&server);
    tokio::time::sleep(HEARTBEATS).await;
    assert_ne!(record(&server), before);
    take_out(&server, &server.url(), &claim(2)).await;
    let told = async { while notifications.next().await != Some(Notification::Gone(lock(), claim(2).id)) {} };
    tokio::time::timeout(HEARTBEATS, told)
        .await
        .expect("it is told that it is gone");
    let before = record(&server);
    tokio::time::sleep(HEARTBEATS).await;
    assert_eq!(record(&server), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_its_living_replica_does_not_promote_holds_nobody_up() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let (here, there) = (open(&server).await, open(&server).await);
    let holder = here.acquire(&lock(), &claim(1)).await.unwrap();
    assert!(matches!(holder, AcquireOutcome::Held(_)), "{holder:?}");
    for (backend, number) in [(&here, 2), (&there, 3)] {
        let waiting = backend.acquire(&lock(), &claim(number)).await.unwrap();
        assert!(matches!(waiting, AcquireOutcome::Waiting(_)), "{waiting:?}");
    }
    let first = claim(1);
    let left = here
        .release(&lock(), ReleaseTarget::Call(&first.id, first.call), None)
        .await;
    left.unwrap();
    // The heartbeats of the first waiter go on, and its call never asks.
    let passed = async {
        while !matches!(there.promote(&lock(), &claim(3)).await, Ok(AcquireOutcome::Held(_))) {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    tokio::time::timeout(10 * HEARTBEATS, passed)
        .await
        .expect("the first waiter is taken out");
}
