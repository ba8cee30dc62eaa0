//! Group commit: steps that are requested at the same time are sent to etcd in one batch
//! ([`packing`]), and each gets its own answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{GetResponse, Txn, TxnOp, TxnOpResponse, TxnResponse};
use futures::future::{BoxFuture, FutureExt, join_all};
use tokio::time::timeout;

use self::appends::{AppendQueues, QueuedAppend};
use self::packing::{Append, Step, pack, request, shared_conditions};
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::cluster::client::ClusterClient;
use crate::batch::{self, BatchBounds, BatchSender};

mod appends;
pub mod calls;
pub mod packing;

/// How many steps a batch takes, and how many batches are in flight: few, because each step costs less in a fuller
/// batch.
const BOUNDS: BatchBounds = BatchBounds {
    batch: 192,
    in_flight: 2,
    queue: 4096,
};

/// How long an append waits for a step on its lock that it can be sent with: the duration of a few batches, also at a busy
/// etcd. A release waits for appends that were sent without it.
const MAX_DELAY: Duration = Duration::from_millis(10);

/// The answer to a step.
#[derive(Debug)]
pub struct Answer {
    /// Whether its conditions were met.
    pub succeeded: bool,
    /// The store's revision; of a step that wrote, the revision of its write.
    pub revision: i64,
    /// The revision up to which its reads are complete. It may be below `revision`: another step of the same request
    /// may have written to the lock after these reads.
    pub read_at: i64,
    /// The responses to its reads, in their order.
    pub reads: Vec<GetResponse>,
}

impl Answer {
    /// The answer to a transaction that was sent alone.
    pub fn of(answer: &TxnResponse) -> Self {
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        Self::nested(answer, revision, revision)
    }

    /// The answer to reads, which are executed at one revision.
    pub async fn read(link: &ClusterClient, reads: Vec<TxnOp>) -> Answered {
        Ok(Self::of(&link.txn(Txn::new().and_then(reads)).await?))
    }

    /// The answer to a nested transaction, which has no revision of its own.
    fn nested(answer: &TxnResponse, revision: i64, read_at: i64) -> Self {
        let reads = answer.op_responses().into_iter().filter_map(|one| match one {
            TxnOpResponse::Get(read) => Some(read),
            _ => None,
        });
        Self {
            succeeded: answer.succeeded(),
            revision,
            read_at,
            reads: reads.collect(),
        }
    }

    fn of_each(answer: &TxnResponse, steps: &[Step]) -> Vec<Self> {
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        let mut on_lock = HashMap::new();
        for step in steps {
            *on_lock.entry(step.lock.as_str()).or_insert(0) += 1;
        }
        let nested = answer.op_responses().into_iter().filter_map(|one| match one {
            TxnOpResponse::Txn(nested) => Some(nested),
            _ => None,
        });
        let answers = nested.zip(steps).map(|(nested, step)| {
            let has_others = on_lock[step.lock.as_str()] > 1;
            Self::nested(&nested, revision, revision - i64::from(has_others))
        });
        answers.collect()
    }
}

type Answered = Result<Answer, Failure>;

/// Collects steps into batches.
#[derive(Debug)]
pub struct StepBatcher {
    link: Arc<ClusterClient>,
    batch: BatchSender<Request, Option<Answered>>,
    appends: Arc<AppendQueues>,
    /// How many steps are in flight or wait for a batch.
    pending: AtomicUsize,
    /// A step was requested while another was in flight.
    overlapped: AtomicBool,
}

/// What a batch is asked for. It takes the waiting appends of each lock in it along.
#[derive(Debug)]
enum Request {
    Step(Step),
    /// The appends of the lock with this key prefix. It has no answer of its own.
    Appends(String),
}

impl StepBatcher {
    /// Sends batches until it is dropped. Must be called within a tokio runtime.
    pub fn begin(link: Arc<ClusterClient>) -> Arc<Self> {
        let (batch, receiver) = batch::batch(BOUNDS);
        let appends = Arc::<AppendQueues>::default();
        let (client, queues) = (Arc::clone(&link), Arc::clone(&appends));
        tokio::spawn(
            receiver.run_many(move |requests| send_requests(Arc::clone(&client), Arc::clone(&queues), requests)),
        );
        Arc::new(Self {
            link,
            batch,
            appends,
            pending: AtomicUsize::new(0),
            overlapped: AtomicBool::new(false),
        })
    }

    /// Executes a step, in one batch with others that are requested at the same time. A step that is alone, as the one
    /// before it was, is sent by its caller's task: a batch goes through more tasks, and each may wake a thread.
    ///
    /// # Errors
    /// The [`Failure`] says whether the step took effect. It is returned after at most two request timeouts: one for
    /// the wait for a batch, and one for the batch's answer.
    pub async fn ask(&self, step: Step) -> Answered {
        let answer = timeout(self.link.request_timeout() * 2, self.ask_without_limit(step)).await;
        answer.unwrap_or_else(|_| Err(Failure::Unavailable("etcd: no batch was answered in time".into())))
    }

    async fn ask_without_limit(&self, step: Step) -> Answered {
        let _pending = self.count();
        if let Some(append) = step.append {
            self.overlapped.store(true, Ordering::Relaxed);
            return self.append(step, append).await;
        }
        if self.pending.load(Ordering::Relaxed) > 1 {
            self.overlapped.store(true, Ordering::Relaxed);
        } else if !self.overlapped.swap(false, Ordering::Relaxed) {
            return Ok(Answer::of(&self.link.txn(step.txn()).await?));
        }
        let answer = self
            .batch
            .ask(Request::Step(step))
            .await
            .map_err(|_| Failure::closed())?;
        answer.unwrap_or_else(lost)
    }

    /// Appends a claim to a queue. An append behind other waiters is sent with the next step on its lock, or after
    /// [`MAX_DELAY`].
    ///
    /// On a contended lock each hand-over is a batch, and a caller that has just released the lock is appended to its
    /// queue shortly after that. A batch of its own would delay the next hand-over.
    async fn append(&self, step: Step, append: Append) -> Answered {
        let lock = step.lock.clone();
        let (number, mut answered) = self.appends.push(step);
        let mut may_wait = append == Append::NextBatch;
        while may_wait {
            if let Ok(answer) = timeout(MAX_DELAY, &mut answered).await {
                return answer.map_err(|_| Failure::closed())?;
            }
            // Another batch must not overtake the one with earlier appends.
            may_wait = self.appends.are_in_flight(&lock);
        }
        if self.appends.is_waiting(&lock, number) {
            tokio::select! {
                biased;
                answer = &mut answered => return answer.map_err(|_| Failure::closed())?,
                sent = self.batch.ask(Request::Appends(lock)) => drop(sent.map_err(|_| Failure::closed())?),
            }
        }
        answered.await.map_err(|_| Failure::closed())?
    }

    /// Waits until no append that was made to the queue of a lock before this call is in flight: a later batch may overtake
    /// theirs. Those that wait are sent with the next step on the lock. Waits no longer than for a request.
    pub async fn appended(&self, lock: &str) {
        let last = self.appends.last(lock);
        let answered = async {
            while let Some(answered) = self.appends.in_flight(lock, last) {
                // Closed, because nobody sends.
                let _ = answered.await;
            }
        };
        // A step that is sent although the store hangs has no order.
        let _ = timeout(self.link.request_timeout(), answered).await;
    }

    fn count(&self) -> PendingStep<'_> {
        self.pending.fetch_add(1, Ordering::Relaxed);
        PendingStep(&self.pending)
    }
}

/// Counts a step as pending until it is dropped.
struct PendingStep<'a>(&'a AtomicUsize);

impl Drop for PendingStep<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lost() -> Answered {
    Err(Failure::Unavailable("etcd: a transaction lacks an answer".into()))
}

/// Sends requests in one batch, with the waiting appends of their locks.
async fn send_requests(
    link: Arc<ClusterClient>,
    appends: Arc<AppendQueues>,
    requests: Vec<Request>,
) -> Vec<Option<Answered>> {
    let (mut steps, mut locks) = (Vec::with_capacity(requests.len()), Vec::with_capacity(requests.len()));
    let has_answer: Vec<_> = requests
        .iter()
        .map(|request| matches!(request, Request::Step(_)))
        .collect();
    for request in requests {
        match request {
            Request::Step(step) => {
                locks.extend(appends.take(&step.lock, false).map(|taken| (step.lock.clone(), taken)));
                steps.push(step);
            }
            Request::Appends(lock) => locks.extend(appends.take(&lock, true).map(|taken| (lock, taken))),
        }
    }
    let mut answers = send_with_appends(link, steps, locks, appends).await.into_iter();
    let each = has_answer
        .into_iter()
        .map(|is_step| is_step.then(|| answers.next().unwrap_or_else(lost)));
    each.collect()
}

/// Sends the appends that were taken of each lock and then steps, in one batch. Returns the answers of the steps alone. It
/// is boxed, because it is recursive.
fn send_with_appends(
    link: Arc<ClusterClient>,
    own: Vec<Step>,
    locks: Vec<(String, Vec<QueuedAppend>)>,
    appends: Arc<AppendQueues>,
) -> BoxFuture<'static, Vec<Answered>> {
    async move {
        let (mut names, mut callers, mut steps) = (Vec::new(), Vec::new(), Vec::new());
        for (lock, taken) in locks {
            names.push(lock);
            for (step, caller) in taken {
                steps.push(step);
                callers.push(caller);
            }
        }
        steps.extend(own);
        let mut of_appends = send_batch(&link, steps).await;
        let answers = of_appends.split_off(callers.len());
        // Appends that came meanwhile, and that no other step will take along.
        let due = |lock: String| appends.ended(&lock).map(|taken| (lock, taken));
        let due: Vec<_> = names.into_iter().filter_map(due).collect();
        for (caller, answer) in callers.into_iter().zip(of_appends) {
            // Fails only if the caller was dropped meanwhile.
            let _ = caller.send(answer);
        }
        if !due.is_empty() {
            tokio::spawn(send_with_appends(link, Vec::new(), due, appends));
        }
        answers
    }
    .boxed()
}

async fn send_batch(link: &ClusterClient, steps: Vec<Step>) -> Vec<Answered> {
    let groups = pack(&steps);
    let mut steps: Vec<_> = steps.into_iter().map(Some).collect();
    let mut answers: Vec<_> = steps.iter().map(|_| None).collect();
    let sent = groups.into_iter().map(|group| {
        let members: Vec<Step> = group.iter().filter_map(|at| steps[*at].take()).collect();
        async move { (group, send(link, members).await) }
    });
    for (group, answered) in join_all(sent.collect::<Vec<_>>()).await {
        for (at, answer) in group.into_iter().zip(answered) {
            answers[at] = Some(answer);
        }
    }
    answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect()
}

/// Sends steps in one transaction. If its outcome is unknown, so is that of each step.
async fn send(link: &ClusterClient, mut steps: Vec<Step>) -> Vec<Answered> {
    let alone = |step: Step| async move { Ok(Answer::of(&link.txn(step.txn()).await?)) };
    if steps.len() == 1
        && let Some(step) = steps.pop()
    {
        return vec![alone(step).await];
    }
    let shared = shared_conditions(&steps);
    let mut sent = link.txn(request(&steps, &shared)).await;
    if !shared.is_empty() && sent.as_ref().is_ok_and(|answer| !answer.succeeded()) {
        // Nothing was executed, and only some of the steps have the condition that is not met.
        sent = link.txn(request(&steps, &[])).await;
    }
    match sent {
        Ok(answer) => {
            let mut answers = Answer::of_each(&answer, &steps).into_iter();
            steps.iter().map(|_| answers.next().map_or_else(lost, Ok)).collect()
        }
        // Nothing was written, and only some of the steps caused it.
        Err(Failure::LeaseGone | Failure::Refused(_)) => send_singly(steps, alone).await,
        Err(unknown) => steps.iter().map(|_| Err(unknown.clone())).collect(),
    }
}

/// Sends each step alone, those of one lock in their order.
async fn send_singly<F: Future<Output = Answered>>(steps: Vec<Step>, alone: impl Fn(Step) -> F) -> Vec<Answered> {
    let alone = &alone;
    let mut of_lock = HashMap::<String, Vec<(usize, Step)>>::new();
    for (at, step) in steps.into_iter().enumerate() {
        of_lock.entry(step.lock.clone()).or_default().push((at, step));
    }
    let in_order = of_lock.into_values().map(|steps| async move {
        let mut answers = Vec::with_capacity(steps.len());
        for (at, step) in steps {
            answers.push((at, alone(step).await));
        }
        answers
    });
    let mut answers: Vec<_> = join_all(in_order).await.into_iter().flatten().collect();
    answers.sort_unstable_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use etcd_client::TxnOp;
    use tokio::net::TcpListener;
    use tokio::time::Instant;

    use super::packing::BatchClass;
    use super::*;
    use crate::backend::etcd::cluster::settings::Settings;

    #[tokio::test]
    async fn every_step_is_answered_in_time_however_many_wait_for_a_store_that_hangs() {
        // Accepts connections and never answers.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let request = Duration::from_secs(1);
        let link = ClusterClient::new(&Settings {
            timeout: request,
            ..Settings::new(vec![format!("http://{}", silent.local_addr().unwrap())])
        });
        let batches = StepBatcher::begin(Arc::new(link));
        let begun = Instant::now();
        let step = |n| Step::new(&format!("l{n}"), BatchClass::Grant, Vec::new(), Vec::new(), Vec::new());
        let many = 8 * BOUNDS.in_flight * BOUNDS.batch;
        let answers = join_all((0..many).map(|n| batches.ask(step(n)))).await;
        assert!(answers.iter().all(Result::is_err));
        // One after another, the batches would take 8 request timeouts.
        assert!(begun.elapsed() < request * 6, "{:?}", begun.elapsed());
    }

    fn unreachable() -> Arc<StepBatcher> {
        StepBatcher::begin(Arc::new(ClusterClient::new(&Settings::new(vec![
            "http://127.0.0.1:1".into(),
        ]))))
    }

    fn step(lock: &str, key: &str) -> Step {
        let put = TxnOp::put(key, "1", None);
        Step::new(lock, BatchClass::Other, Vec::new(), vec![put], Vec::new())
    }

    #[tokio::test(start_paused = true)]
    async fn an_append_that_may_be_next_is_sent_at_once_and_one_behind_others_after_a_delay() {
        for (append, delay) in [(Append::OwnBatch, Duration::ZERO), (Append::NextBatch, MAX_DELAY)] {
            let batches = unreachable();
            let begun = Instant::now();
            let asked = batches.append(step("a", "1"), append);
            tokio::pin!(asked);
            while {
                assert!(futures::poll!(&mut asked).is_pending());
                batches.appends.is_waiting("a", 1)
            } {
                tokio::task::yield_now().await;
                if begun.elapsed() < delay {
                    tokio::time::advance(Duration::from_millis(1)).await;
                }
            }
            assert_eq!(begun.elapsed(), delay);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn steps_that_are_sent_singly_keep_the_order_of_their_lock() {
        let order = parking_lot::Mutex::new(Vec::new());
        let alone = |step: Step| {
            let order = &order;
            async move {
                let key = step.written[0].clone();
                let delay = if key == b"a/1" { 10 } else { 1 };
                tokio::time::sleep(Duration::from_millis(delay)).await;
                order.lock().push(String::from_utf8(key).unwrap());
                Err(Failure::LeaseGone)
            }
        };
        let steps = vec![step("a", "a/1"), step("b", "b/1"), step("a", "a/2")];
        assert_eq!(send_singly(steps, alone).await.len(), 3);
        assert_eq!(*order.lock(), ["b/1", "a/1", "a/2"]);
    }

    #[tokio::test]
    async fn an_append_is_sent_with_the_next_step_on_its_lock() {
        let batches = unreachable();
        let _answered = batches.appends.push(step("a", "1"));
        let requests = |lock| vec![Request::Step(step(lock, "2"))];
        let send = |lock| send_requests(Arc::clone(&batches.link), Arc::clone(&batches.appends), requests(lock));
        let (other, same) = (send("b"), send("a"));
        tokio::pin!(other, same);
        assert!(futures::poll!(&mut other).is_pending());
        assert!(batches.appends.is_waiting("a", 1));
        assert!(futures::poll!(&mut same).is_pending());
        assert!(!batches.appends.is_waiting("a", 1));
    }
}
