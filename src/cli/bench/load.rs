//! A closed loop of callers: each sends its next call when it has the answer to the last one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fencepost::api::proto::AcquireRequest;
use fencepost::api::proto::mode::{Kind, Semaphore, Shared};
use fencepost::api::proto::{Lease, Mode};
use fencepost::client::raw::Raw;
use fencepost::client::{Error, time};
use parking_lot::{Mutex, MutexGuard};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::pattern::{Pattern, Plan};
use super::tally::{Kept, Tally};

/// How long calls under way may take at the end of a slice.
const LAST_CALLS: Duration = Duration::from_millis(400);
/// Longer than anybody waits for a lock: the end of the slice ends the wait.
const WAIT: Duration = Duration::from_secs(3600);

/// How many slices there were.
static SLICES: AtomicU64 = AtomicU64::new(0);

/// What all callers of one slice share.
#[derive(Debug)]
struct Slice {
    plan: Plan,
    pattern: Pattern,
    tally: Arc<Mutex<Tally>>,
    /// Before the number of each lock: what a slice before may have left in its queues is not met.
    prefix: String,
    /// For each lock when it was, or will be, free again.
    free: Vec<Mutex<Option<Instant>>>,
    over: CancellationToken,
}

/// Loads a server for so long, or until `stop`, or until a call fails. What came of it is in the
/// tally; how long it took is the answer.
pub async fn load(
    plan: &Plan,
    pattern: Pattern,
    lines: &[Raw],
    span: Duration,
    stop: &CancellationToken,
    tally: &Arc<Mutex<Tally>>,
) -> Duration {
    let over = stop.child_token();
    let slice = Arc::new(Slice {
        plan: plan.clone(),
        pattern,
        tally: Arc::clone(tally),
        prefix: format!(
            "{}{}-{}/",
            plan.prefix,
            pattern.word(),
            SLICES.fetch_add(1, Ordering::Relaxed)
        ),
        free: (0..plan.keys(pattern)).map(|_| Mutex::default()).collect(),
        over: over.clone(),
    });
    let begin = Instant::now();
    let mut callers: JoinSet<()> = (0..plan.callers(pattern))
        .zip(lines.iter().cycle())
        .map(|(number, line)| call(Arc::clone(&slice), number, line.clone()))
        .collect();
    tokio::select! {
        () = tokio::time::sleep(span) => {}
        () = over.cancelled() => {}
    }
    over.cancel();
    let rest = async { while callers.join_next().await.is_some() {} };
    // Whoever still waits for an answer then is aborted with the set.
    let _ = tokio::time::timeout(LAST_CALLS, rest).await;
    begin.elapsed()
}

/// One caller, until the slice is over.
async fn call(slice: Arc<Slice>, number: usize, line: Raw) {
    if let Err(error) = turns(&slice, number, line).await {
        slice.tally().fail(error);
        slice.over.cancel();
    }
}

async fn turns(slice: &Slice, number: usize, mut line: Raw) -> Result<(), Error> {
    let pattern = slice.pattern;
    let wait = pattern.waits().then_some(WAIT);
    let ttl = (pattern == Pattern::Expiry).then_some(slice.plan.ttl);
    for turn in 0.. {
        if slice.over.is_cancelled() {
            break;
        }
        let key = slice.plan.key(pattern, number, turn);
        let ask = slice.ask(key);
        let sent = Instant::now();
        let lease = tokio::select! {
            biased;
            granted = line.acquire(ask, wait, ttl) => granted?,
            // In other queues everybody gets a turn to the end, so that no grant is left behind.
            () = slice.over.cancelled(), if pattern == Pattern::Expiry => break,
        };
        slice.step(key, sent, lease, &mut line).await?;
    }
    Ok(())
}

impl Slice {
    fn ask(&self, key: usize) -> AcquireRequest {
        let kind = match self.pattern {
            Pattern::Shared => Some(Kind::Shared(Shared {})),
            Pattern::Semaphore => Some(Kind::Semaphore(Semaphore {
                permits: self.plan.permits,
                limit: self.plan.limit,
            })),
            _ => None,
        };
        AcquireRequest {
            namespace: self.plan.namespace.clone(),
            name: format!("{}{key:04}", self.prefix),
            owner: "bench".to_owned(),
            mode: kind.map(|kind| Mode { kind: Some(kind) }),
            ..AcquireRequest::default()
        }
    }

    /// Counts what was granted, and gives it back as the pattern wants.
    async fn step(&self, key: usize, sent: Instant, lease: Lease, line: &mut Raw) -> Result<(), Error> {
        let received = Instant::now();
        let since_free = self.since_free(key, received);
        match self.pattern {
            Pattern::Expiry => {
                *self.free(key) = Some(sent + time(lease.waited) + time(lease.ttl));
                if since_free.is_some() {
                    self.tally().add([(Kept::Lateness, since_free)]);
                }
            }
            Pattern::Lone => self.tally().add([(Kept::Acquire, Some(received - sent))]),
            _ => {
                let releasing = Instant::now();
                *self.free(key) = Some(releasing);
                line.release(lease.lease_id).await?;
                let hand_off = since_free.filter(|_| self.pattern == Pattern::Hot);
                self.tally().add([
                    (Kept::HandOff, hand_off),
                    (Kept::Acquire, Some(received - sent)),
                    (Kept::Release, Some(releasing.elapsed())),
                ]);
            }
        }
        Ok(())
    }

    /// How long the lock has been free when it was received.
    fn since_free(&self, key: usize, received: Instant) -> Option<Duration> {
        let free = self.free(key).take();
        free.map(|free| received.saturating_duration_since(free))
    }

    fn free(&self, key: usize) -> MutexGuard<'_, Option<Instant>> {
        self.free[key].lock()
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock()
    }
}
