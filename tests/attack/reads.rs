//! Large reads beside the renewals of another identity.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost::api::proto::{AcquireAllRequest, LockToAcquire};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::fixture::{Attacker, Client, NAMESPACE, PATIENCE, ask, bearers, runtime, start, wire};

/// How long another identity's renewal may take.
const WORST: Duration = Duration::from_secs(1);
/// How many pages are answered at least meanwhile.
const PAGES: u32 = 10;
/// How many reads are always open, and of how many locks each.
const READS: usize = 300;
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

// G193
#[test]
fn pages_by_json_delay_no_renewal_of_another_identity() {
    let _alone = super::alone();
    let home = tempfile::tempdir().expect("a directory");
    let server = start(
        &home,
        &format!("[server]\npeer_share = 100\n{}", bearers(&["reader", "normal"])),
    );
    runtime().block_on(async {
        let normal = Client::connect(&server.address, Some("normal")).await;
        fill(&normal).await;
        let lease = normal.acquire(ask("kept", Duration::ZERO)).await.expect("it is free");
        let attacker = Attacker::connect(&server.address, Some("reader"), 0).await;
        let alone = Instant::now();
        assert_eq!(read(&attacker).await, Some(true), "a page is answered");
        println!("a page alone takes {:?}", alone.elapsed());
        let answered: Arc<[AtomicU32; 2]> = Arc::default();
        let mut readers = Vec::new();
        for _ in 0..READS {
            let (attacker, answered) = (attacker.clone(), Arc::clone(&answered));
            readers.push(AbortOnDropHandle::new(tokio::spawn(async move {
                while let Some(is_page) = read(&attacker).await {
                    answered[usize::from(is_page)].fetch_add(1, Ordering::Relaxed);
                }
            })));
        }
        let (began, mut worst, mut renewals) = (Instant::now(), Duration::ZERO, 0);
        let answered_pages = || answered[1].load(Ordering::Relaxed);
        while began.elapsed() < Duration::from_secs(5) || answered_pages() < PAGES {
            assert!(began.elapsed() < PATIENCE, "{} pages", answered_pages());
            let sent = Instant::now();
            normal.renew(&lease.lease_id).await.expect("it is held");
            worst = worst.max(sent.elapsed());
            renewals += 1;
            assert!(worst < PATIENCE, "{worst:?}");
            sleep(Duration::from_millis(20)).await;
        }
        println!("{renewals} renewals beside {READS} open reads, the worst in {worst:?}");
        let [refused, pages] = [0, 1].map(|kind| answered[kind].load(Ordering::Relaxed));
        println!("{pages} pages were answered, {refused} reads refused");
        assert!(worst < WORST, "{worst:?}");
        assert!(!readers.iter().any(|reader| reader.is_finished()), "the reads go on");
    });
}
