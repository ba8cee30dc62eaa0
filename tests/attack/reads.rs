//! Large reads beside the renewals of another identity.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost::api::proto::{AcquireAllRequest, LockToAcquire};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::fixture::{Attacker, Client, NAMESPACE, PATIENCE, ask, bearers, metrics, runtime, start_with, wire};

/// How long another identity's renewal may take.
const WORST: Duration = Duration::from_secs(1);
/// How many renewals follow each other, and how many pages are answered at least meanwhile.
const RENEWALS: u32 = 30;
const PAGES: u32 = 10;
/// How many connections read, how many reads of each are always open, and of how many locks each.
const CONNECTIONS: usize = 30;
const READS: usize = 10;
const LOCKS: usize = 960;
const LIST: &str = "/fencepost.v1.LockService/ListLocks";

/// Takes so many locks with long names.
async fn fill(client: &Client) {
    for batch in 0..LOCKS / 64 {
        let lock = |number: usize| LockToAcquire {
            name: format!("page/{batch:02}/{number:02}/{}", "n".repeat(400)),
            mode: None,
        };
        let all = AcquireAllRequest {
            namespace: NAMESPACE.into(),
            locks: (0..64).map(lock).collect(),
            owner: "o".repeat(250),
            ttl: Some(wire(Duration::from_secs(3600))),
            ..AcquireAllRequest::default()
        };
        let taken = client.locks.clone().acquire_all(client.with_token(all)).await;
        taken.expect("they are free");
    }
}

/// Asks for one page by JSON, and takes no more than the headers of its answer. Returns whether it was answered with a page.
async fn read(attacker: &Attacker) -> Option<bool> {
    let (answer, mut body) = attacker.open_as("application/json", LIST).await?;
    let page = format!(r#"{{"namespace":"{NAMESPACE}","pageSize":1000}}"#);
    body.send_data(page.into(), true).ok()?;
    Some(answer.await.ok()?.status() == 200)
}

/// How many pages the store has read, of these metrics.
fn pages_read(metrics: &str) -> u64 {
    let is_count = |line: &&str| {
        line.starts_with("fencepost_backend_request_duration_seconds_count") && line.contains("operation=\"list\"")
    };
    let count = metrics.lines().find(is_count).and_then(|line| line.rsplit(' ').next());
    count.map_or(0, |count| count.parse().expect("a number"))
}

// G193
#[test]
fn a_renewal_of_another_identity_waits_for_no_more_pages_than_there_are_processors() {
    let _alone = super::alone();
    let home = tempfile::tempdir().expect("a directory");
    // In a file, where reads and renewals are executed one after the other.
    let server = start_with(
        &home,
        &format!(
            "metrics_listen = \"127.0.0.1:0\"\n[server]\npeer_share = 100\n{}",
            bearers(&["reader", "normal"])
        ),
    );
    runtime().block_on(async {
        let normal = Client::connect(&server.address, Some("normal")).await;
        fill(&normal).await;
        let lease = normal.acquire(ask("kept", Duration::ZERO)).await.expect("it is free");
        let answered: Arc<[AtomicU32; 2]> = Arc::default();
        let answered_pages = || answered[1].load(Ordering::Relaxed);
        let (mut readers, mut attackers) = (Vec::new(), Vec::new());
        for _ in 0..CONNECTIONS {
            attackers.push(Attacker::connect(&server.address, Some("reader"), 0).await);
        }
        let pages_read = || pages_read(&metrics(server.metrics.as_ref().expect("a port")));
        // All come at once, and go on.
        for attacker in attackers
            .iter()
            .flat_map(|attacker| std::iter::repeat_n(attacker, READS))
        {
            let (attacker, answered) = (attacker.clone(), Arc::clone(&answered));
            readers.push(AbortOnDropHandle::new(tokio::spawn(async move {
                while let Some(is_page) = read(&attacker).await {
                    answered[usize::from(is_page)].fetch_add(1, Ordering::Relaxed);
                }
            })));
        }
        let (began, mut worst, mut renewals, mut most) = (Instant::now(), Duration::ZERO, 0, 0);
        while renewals < RENEWALS || answered_pages() < PAGES {
            let (before, sent) = (pages_read(), Instant::now());
            normal.renew(&lease.lease_id).await.expect("it is held");
            worst = worst.max(sent.elapsed());
            most = most.max(pages_read() - before);
            renewals += 1;
            assert!(
                began.elapsed() < 3 * PATIENCE,
                "{renewals} renewals, {} pages",
                answered_pages()
            );
        }
        let [refused, pages] = [0, 1].map(|kind| answered[kind].load(Ordering::Relaxed));
        println!(
            "{renewals} renewals beside {pages} pages in {:?}: {most} pages read during one, the worst in {worst:?}; \
             {refused} reads refused",
            began.elapsed()
        );
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        // Those that it finds, and those that begin before it is answered.
        assert!(
            most <= 2 * processors as u64,
            "{most} pages were read during one renewal"
        );
        assert!(worst < WORST, "{worst:?}");
        assert!(!readers.iter().any(|reader| reader.is_finished()), "the reads go on");
    });
}
