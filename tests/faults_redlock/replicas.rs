//! Several replicas of ours, each of which reaches another majority.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fencepost::error::Error;
use fencepost::locks::Locks;

use crate::harness::{acquire, nodes, quorum, replica, serves, token, unready};
use crate::servers::available;

const TTL: Duration = Duration::from_secs(5);

/// Who holds, as the clients see it: nobody may come in while somebody is there.
#[derive(Debug, Default)]
struct Register {
    inside: Option<u64>,
    last: u64,
    grants: usize,
}

// G1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_that_see_different_majorities_exclude_each_other() {
    common::skip_unless!(available());
    let servers = nodes::<3>();
    // A first start is one of all nodes.
    replica(&quorum(servers.iter().map(crate::servers::RedisServer::url), TTL))
        .await
        .close()
        .await;
    // Nobody listens there: each replica lacks another node.
    let nowhere = |lacks: usize| {
        let url = move |(at, server): (usize, &crate::servers::RedisServer)| {
            if at == lacks {
                format!("redis://127.0.0.1:{}", 1 + lacks)
            } else {
                server.url()
            }
        };
        servers.iter().enumerate().map(url).collect::<Vec<_>>()
    };
    let mut replicas = Vec::new();
    for lacks in 0..3 {
        let locks = unready(&quorum(nowhere(lacks), TTL));
        serves(&locks, Duration::from_secs(10)).await;
        replicas.push(locks);
    }
    let register = Arc::new(Mutex::new(Register::default()));
    let time = Duration::from_secs(if cfg!(feature = "soak") { 120 } else { 5 });
    let until = Instant::now() + time;
    let clients = (0..6).map(|n| tokio::spawn(client(replicas[n % 3].clone(), Arc::clone(&register), until)));
    for done in futures::future::join_all(clients).await {
        done.unwrap();
    }
    let register = register.lock().unwrap();
    println!("{} grants", register.grants);
    assert!(register.grants > 20, "{register:?}");
}

async fn client(locks: Locks, register: Arc<Mutex<Register>>, until: Instant) {
    while Instant::now() < until {
        match acquire(&locks, "hot", TTL, Duration::from_secs(10)).await {
            Ok(lease) => {
                {
                    let mut register = register.lock().unwrap();
                    assert_eq!(register.inside, None, "unsafe: two hold");
                    assert!(token(&lease) > register.last, "unsafe: a token fell");
                    (register.inside, register.last) = (Some(token(&lease)), token(&lease));
                    register.grants += 1;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
                register.lock().unwrap().inside = None;
                locks.release(&lease.key).await.unwrap();
            }
            Err(Error::WaitTimeout { .. } | Error::Backend(_)) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
}
