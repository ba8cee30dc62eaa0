//! Several replicas of the service.

use std::time::{Duration, Instant};

use crate::bench::{acquire, cluster, name, replica, replica_of, take, token, waiters};

const TTL: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_three_replicas_one_dies_and_only_its_waiters_leave() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let living = [replica(&cluster).await, replica(&cluster).await];
    let held = take(&living[0], "a", TTL).await;
    let urls = cluster.urls();
    // A replica of its own runtime, which ends without a word: it holds one lock, and waits.
    let dying = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let kept = runtime.block_on(async {
            let locks = Box::leak(Box::new(replica_of(urls).await));
            let kept = take(locks, "b", TTL).await;
            let mut waits = Box::pin(acquire(locks, "a", TTL, Duration::from_secs(60)));
            let waited = tokio::time::timeout(Duration::from_millis(700), waits.as_mut()).await;
            assert!(waited.is_err(), "{waited:?}");
            std::mem::forget(waits);
            kept
        });
        runtime.shutdown_background();
        kept
    });
    let kept = dying.join().expect("no panic");
    waiters(&living[0], "a", 1).await;
    let died = Instant::now();
    let behind = tokio::spawn({
        let locks = living[1].clone();
        async move { acquire(&locks, "a", TTL, Duration::from_secs(30)).await }
    });
    waiters(&living[0], "a", 2).await;
    living[0].release(&held.key).await.expect("it was held");
    let next = behind.await.expect("no panic").expect("it comes to be first");
    assert!(died.elapsed() < Duration::from_secs(10), "{:?}", died.elapsed());
    assert!(token(&next) > token(&held));
    // What it held is held still, and any other replica renews and releases it.
    let check = living[1].check(&name("b"), kept.key.token).await.expect("etcd answers");
    assert!(check.is_some());
    living[1].renew(&kept.key, None).await.expect("it is held");
    living[0].release(&kept.key).await.expect("it is held");
}
