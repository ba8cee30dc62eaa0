//! A closed loop of callers: each sends its next call after the response to the previous one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fencepost::api::proto::AcquireRequest;
use fencepost::api::proto::mode::{Kind, Semaphore, Shared};
use fencepost::api::proto::{Lease, Mode};
use fencepost_client::raw::wire;
use fencepost_client::{Error, time};
use parking_lot::{Mutex, MutexGuard};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::call_path::CallPath;
use super::pattern::{Pattern, Plan};
use super::tally::{Metric, Tally};

/// How long calls in flight may take at the end of a slice.
const LAST_CALLS: Duration = Duration::from_millis(400);
/// Longer than any wait for a lock: the end of the slice ends the wait.
const WAIT: Duration = Duration::from_secs(3600);

/// The number of slices so far.
static SLICES: AtomicU64 = AtomicU64::new(0);

/// The state that all callers of a slice share.
#[derive(Debug)]
struct Slice {
    plan: Plan,
    pattern: Pattern,
    tally: Arc<Mutex<Tally>>,
    /// The prefix of the lock names. It is unique, because an earlier slice may have left claims in
    /// its queues.
    prefix: String,
    /// For each lock, when it became or becomes free.
    free: Vec<Mutex<Option<Instant>>>,
    over: CancellationToken,
}

/// Applies load for `span`, or until `stop`, or until a call fails. Results go to the tally.
/// Returns the elapsed time.
pub async fn load(
    plan: &Plan,
    pattern: Pattern,
    callers: &[CallPath],
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
            pattern.name(),
            SLICES.fetch_add(1, Ordering::Relaxed)
        ),
        free: (0..plan.keys(pattern)).map(|_| Mutex::default()).collect(),
        over: over.clone(),
    });
    let begin = Instant::now();
    let mut running: JoinSet<()> = (0..plan.callers())
        .zip(callers.iter().cycle())
        .map(|(number, caller)| call(Arc::clone(&slice), number, caller.clone()))
        .collect();
    tokio::select! {
        () = tokio::time::sleep(span) => {}
        () = over.cancelled() => {}
    }
    over.cancel();
    let rest = async { while running.join_next().await.is_some() {} };
    // Callers that still wait then are aborted with the set.
    let _ = tokio::time::timeout(LAST_CALLS, rest).await;
    begin.elapsed()
}

/// Runs one caller until the slice is over.
async fn call(slice: Arc<Slice>, number: usize, caller: CallPath) {
    if let Err(error) = run_rounds(&slice, number, caller).await {
        slice.tally().set_error(error);
        slice.over.cancel();
    }
}

async fn run_rounds(slice: &Slice, number: usize, mut caller: CallPath) -> Result<(), Error> {
    let pattern = slice.pattern;
    for round in 0.. {
        if slice.over.is_cancelled() {
            break;
        }
        let key = slice.plan.key(pattern, number, round);
        let request = slice.request(key);
        let sent = Instant::now();
        let lease = tokio::select! {
            biased;
            granted = caller.acquire(request) => granted?,
            // With other patterns, each waiter is granted and releases, so that no grant is left
            // behind.
            () = slice.over.cancelled(), if pattern == Pattern::Expiry => break,
        };
        slice.finish_round(key, sent, lease, &mut caller).await?;
    }
    Ok(())
}

impl Slice {
    fn request(&self, key: usize) -> AcquireRequest {
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
            wait: self.pattern.waits().then(|| wire(WAIT)),
            ttl: (self.pattern == Pattern::Expiry).then(|| wire(self.plan.ttl)),
            ..AcquireRequest::default()
        }
    }

    /// Counts a grant, and releases the lease if the pattern does.
    async fn finish_round(&self, key: usize, sent: Instant, lease: Lease, caller: &mut CallPath) -> Result<(), Error> {
        let received = Instant::now();
        let since_free = self.since_free(key, received);
        match self.pattern {
            Pattern::Expiry => {
                *self.free(key) = Some(sent + time(lease.waited) + time(lease.ttl));
                if since_free.is_some() {
                    self.tally().add([(Metric::Lateness, since_free)]);
                }
            }
            _ => {
                let releasing = Instant::now();
                *self.free(key) = Some(releasing);
                caller.release(lease.lease_id).await?;
                let hand_off = since_free.filter(|_| self.pattern == Pattern::Hot);
                self.tally().add([
                    (Metric::HandOff, hand_off),
                    (Metric::Acquire, Some(received - sent)),
                    (Metric::Release, Some(releasing.elapsed())),
                ]);
            }
        }
        Ok(())
    }

    /// How long the lock had been free when the lease was received.
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
