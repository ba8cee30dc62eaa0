//! The history that etcd keeps.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use etcd_client::{Client, CompactionOptions};
use futures::stream::{self, StreamExt};
use tracing_subscriber::fmt::MakeWriter;

use crate::harness::{cluster, etcd, replica};

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("nobody panics")).into_owned()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panics").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Makes a history of so many revisions.
async fn history(etcd: &Client, revisions: usize) -> i64 {
    let put = |_| {
        let mut etcd = etcd.clone();
        async move { etcd.put("x", "y", None).await.expect("etcd answers") }
    };
    let mut puts = stream::iter(0..revisions).map(put).buffer_unordered(64);
    let mut last = 0;
    while let Some(put) = puts.next().await {
        last = put.header().expect("a header").revision().max(last);
    }
    last
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_that_nobody_compacts_is_warned_of_at_the_start() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let log = Log::default();
    // For the whole process: what is logged on a thread without a log may be lost for all. Other tests
    // make no history that is long enough to be warned of.
    let heard = tracing_subscriber::fmt().with_writer(log.clone()).finish();
    tracing::subscriber::set_global_default(heard).expect("nobody else hears the log");
    let mut etcd = etcd(&cluster).await;
    let long = history(&etcd, 10_100).await;
    let warned = |log: &Log| log.text().contains("auto-compaction");
    let locks = replica(&cluster).await;
    assert!(warned(&log), "{}", log.text());
    locks.close().await;

    log.0.lock().expect("nobody panics").clear();
    etcd.compact(long - 50, Some(CompactionOptions::new()))
        .await
        .expect("etcd answers");
    let locks = replica(&cluster).await;
    assert!(log.text().contains("etcd answers"), "{}", log.text());
    assert!(!warned(&log), "{}", log.text());
    locks.close().await;
}
