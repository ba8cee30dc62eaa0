//! A full etcd.

use std::time::Duration;

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client, CompactionOptions};
use fencepost::api::proto::AcquireRequest;
use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::backend::Health;
use fencepost::error::Error;
use futures::future::join_all;

use crate::harness::{acquire, calls, cluster, config, etcd, health, name, replica, take, token};
use crate::process::{Server, until};
use crate::servers::Cluster;

const TTL: Duration = Duration::from_secs(30);

/// How many transactions etcd has answered, once none came for 500 ms: the removal of a refused claim is sent after
/// the answer.
async fn settled_transactions(cluster: &Cluster) -> usize {
    for _ in 0..40 {
        let before = calls(cluster, "Txn");
        tokio::time::sleep(Duration::from_millis(500)).await;
        if calls(cluster, "Txn") == before {
            return before;
        }
    }
    panic!("transactions are still sent after 20 s");
}

/// Puts what fits.
async fn fill(etcd: &mut Client) {
    for n in 0.. {
        assert!(n < 100, "it has too much space");
        if etcd.put(format!("junk{n}"), vec![0; 256 * 1024], None).await.is_err() {
            break;
        }
    }
}

/// Deletes it again, and disarms the alarm.
async fn make_space(etcd: &mut Client) {
    etcd.delete("junk", Some(etcd_client::DeleteOptions::new().with_prefix()))
        .await
        .expect("etcd answers");
    let revision = etcd.get("x", None).await.expect("etcd answers");
    let revision = revision.header().expect("a header").revision();
    let physical = CompactionOptions::new().with_physical();
    etcd.compact(revision, Some(physical)).await.expect("etcd answers");
    etcd.defragment().await.expect("etcd answers");
    let status = etcd.status().await.expect("etcd answers");
    let member = status.header().expect("a header").member_id();
    let mut of_member = AlarmOptions::new();
    of_member.with_member(member);
    etcd.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(of_member))
        .await
        .expect("etcd answers");
}

// G114
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_etcd_grants_nothing_lets_go_and_recovers_without_a_restart() {
    let Some(cluster) = cluster(1, &["--quota-backend-bytes", "4194304"]) else {
        return;
    };
    let locks = replica(&cluster).await;
    let mut etcd = etcd(&cluster).await;
    let (one, two) = (take(&locks, "one", TTL).await, take(&locks, "two", TTL).await);
    fill(&mut etcd).await;
    let refused = acquire(&locks, "three", TTL, Duration::ZERO).await;
    assert!(matches!(refused, Err(Error::Backend(_))), "{refused:?}");
    let full = |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains("NOSPACE"));
    health(&locks, Duration::from_secs(10), full).await;
    // Old servers would let nested writes pass: so nothing that writes is sent, alone or together.
    let before = settled_transactions(&cluster).await;
    let refused = join_all((0..32).map(|n| {
        let locks = locks.clone();
        async move { acquire(&locks, &format!("four{n}"), TTL, Duration::ZERO).await }
    }));
    for refused in refused.await {
        assert!(matches!(refused, Err(Error::Backend(_))), "{refused:?}");
    }
    assert_eq!(calls(&cluster, "Txn"), before, "a transaction was sent");
    let renewed = locks.renew(&one.key, None).await;
    assert!(matches!(renewed, Err(Error::Backend(_))), "{renewed:?}");
    locks.release(&two.key).await.expect("it was held");
    assert_eq!(
        locks.inspect(&name("two"), 1).await.expect("etcd answers").holder_count,
        0
    );

    make_space(&mut etcd).await;
    health(&locks, Duration::from_secs(15), |health| *health == Health::Serving).await;
    let again = take(&locks, "two", TTL).await;
    assert!(token(&again) > token(&two));
    locks.release(&one.key).await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_says_when_the_space_of_an_etcd_is_used_up_and_when_there_is_some_again() {
    let Some(cluster) = cluster(1, &["--quota-backend-bytes", "4194304"]) else {
        return;
    };
    let (_home, server) = Server::of_namespace(&config(&cluster.urls()));
    let said = |text| tokio::task::block_in_place(|| until(text, || server.said(text).then_some(())));
    said("the store serves namespace=faults");
    let mut etcd = etcd(&cluster).await;
    fill(&mut etcd).await;
    let mut locks = LockServiceClient::connect(format!("http://{}", server.address))
        .await
        .expect("a connection");
    // The server learns it from this call, and not from the next status of etcd.
    let ask = AcquireRequest {
        namespace: "faults".into(),
        name: "a".into(),
        owner: "tester".into(),
        ..AcquireRequest::default()
    };
    locks.acquire(ask).await.expect_err("nothing can be written");
    said("etcd has no space left (NOSPACE): nothing is granted");
    make_space(&mut etcd).await;
    said("etcd has space again");
}
