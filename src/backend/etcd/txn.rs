//! Group commit: steps that are requested at the same time are sent to etcd in one batch
//! ([`packing`]), and each gets its own answer.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{GetResponse, Txn, TxnOp, TxnOpResponse, TxnResponse};
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::cluster::client::ClusterClient;
use crate::backend::etcd::txn::packing::{BatchClass, Step, pack};
use crate::batch::{self, BatchBounds, BatchSender};

pub mod calls;
pub mod packing;

/// How many steps a batch takes, and how many batches are in flight: few, because each step costs less in a fuller
/// batch.
const BOUNDS: BatchBounds = BatchBounds {
    batch: 192,
    in_flight: 2,
    queue: 4096,
};

/// How many appends to one lock's queue are sent together at most. They fit into one transaction, because several would
/// not keep their order.
const APPENDS: usize = 96;
/// How long an append waits for a step on its lock that it can be sent with: the duration of a few batches.
const MAX_DELAY: Duration = Duration::from_millis(3);

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
    /// Each request is steps that keep their order.
    batch: BatchSender<Vec<Step>, Vec<Answered>>,
    /// By the lock's key prefix.
    appends: Mutex<HashMap<String, Appends>>,
    /// How many steps are in flight or wait for a batch.
    pending: AtomicUsize,
    /// A step was requested while another was in flight.
    overlapped: AtomicBool,
}

/// A step, and the caller that waits for its answer.
type Asked = (Step, oneshot::Sender<Answered>);

/// The appends to one lock's queue.
#[derive(Debug, Default)]
struct Appends {
    waiting: VecDeque<Asked>,
    in_flight: bool,
}

impl StepBatcher {
    /// Sends batches until it is dropped. Must be called within a tokio runtime.
    pub fn begin(link: Arc<ClusterClient>) -> Arc<Self> {
        let (batch, receiver) = batch::batch(BOUNDS);
        let client = Arc::clone(&link);
        tokio::spawn(receiver.run_many(move |requests| send_requests(Arc::clone(&client), requests)));
        Arc::new(Self {
            link,
            batch,
            appends: Mutex::default(),
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
    pub async fn ask(self: &Arc<Self>, step: Step) -> Answered {
        let answer = timeout(self.link.request_timeout() * 2, self.ask_without_limit(step)).await;
        answer.unwrap_or_else(|_| Err(Failure::Unavailable("etcd: no batch was answered in time".into())))
    }

    async fn ask_without_limit(self: &Arc<Self>, step: Step) -> Answered {
        let _pending = self.count();
        let is_append = step.class.is_append();
        if self.pending.load(Ordering::Relaxed) > 1 || is_append {
            self.overlapped.store(true, Ordering::Relaxed);
        } else if !self.overlapped.swap(false, Ordering::Relaxed) {
            return Ok(Answer::of(&self.link.txn(step.txn()).await?));
        }
        let (caller, answered) = oneshot::channel();
        if is_append {
            self.append((step, caller));
        } else if let Some(appends) = self.take_appends(&step.lock) {
            let (batcher, lock) = (Arc::clone(self), step.lock.clone());
            let steps = [(step, caller)].into_iter().chain(appends).collect();
            tokio::spawn(async move {
                batcher.send_together(&lock, steps).await;
                batcher.send_appends(lock).await;
            });
        } else {
            let answers = self.batch.ask(vec![step]).await.map_err(|_| closed())?;
            return answers.into_iter().next().unwrap_or_else(lost);
        }
        answered.await.map_err(|_| closed())?
    }

    /// Puts an append among those of its lock. If all of them are behind other waiters, they are sent with the next step
    /// on the lock, or after [`MAX_DELAY`].
    ///
    /// On a contended lock each hand-over is a batch, and a caller that has just released the lock is appended to its
    /// queue shortly after that. A batch of its own would delay the next hand-over. Batches may overtake each other, so
    /// the appends of one lock are in one batch at a time.
    fn append(self: &Arc<Self>, asked: Asked) {
        let lock = asked.0.lock.clone();
        let mut all = self.appends.lock();
        let appends = all.entry(lock.clone()).or_default();
        let is_near = asked.0.class == BatchClass::Tail;
        appends.waiting.push_back(asked);
        if (appends.waiting.len() == 1 || is_near) && !appends.in_flight {
            tokio::spawn(Arc::clone(self).send_appends(lock));
        }
    }

    /// Sends the appends of a lock until none waits, or another task sends them.
    async fn send_appends(self: Arc<Self>, lock: String) {
        while let Some(are_far) = self.are_far(&lock) {
            if are_far {
                sleep(MAX_DELAY).await;
            }
            let Some(appends) = self.take_appends(&lock) else {
                return;
            };
            self.send_together(&lock, appends).await;
        }
    }

    /// Whether all appends of a lock are behind other waiters. None if there are none.
    fn are_far(&self, lock: &str) -> Option<bool> {
        let all = self.appends.lock();
        let mut classes = all.get(lock)?.waiting.iter().map(|(step, _)| step.class);
        Some(classes.all(|class| class == BatchClass::FarTail))
    }

    /// Takes the appends of a lock, in their order, unless some are in flight. None of them writes the key of another.
    fn take_appends(&self, lock: &str) -> Option<Vec<Asked>> {
        let mut all = self.appends.lock();
        let appends = all.get_mut(lock).filter(|appends| !appends.in_flight)?;
        appends.waiting.retain(|(_, caller)| !caller.is_closed());
        let (mut taken, mut written) = (Vec::new(), HashSet::new());
        while let Some((step, _)) = appends.waiting.front()
            && taken.len() < APPENDS
            && step.written.iter().all(|key| written.insert(key.clone()))
        {
            taken.extend(appends.waiting.pop_front());
        }
        appends.in_flight = true;
        Some(taken)
    }

    /// Sends the appends of a lock that were taken, and a step that they go with.
    async fn send_together(&self, lock: &str, steps: Vec<Asked>) {
        let (steps, callers): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
        let answers = self.batch.ask(steps).await;
        {
            let mut all = self.appends.lock();
            if let Some(appends) = all.get_mut(lock) {
                appends.in_flight = false;
                if appends.waiting.is_empty() {
                    all.remove(lock);
                }
            }
        }
        let answers = answers.unwrap_or_else(|_| callers.iter().map(|_| Err(closed())).collect());
        for (caller, answer) in callers.into_iter().zip(answers) {
            // Fails only if the caller was dropped meanwhile.
            let _ = caller.send(answer);
        }
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
    Err(Failure::no_answer())
}

fn closed() -> Failure {
    Failure::Unavailable("the namespace is closed".into())
}

/// Sends the steps of several requests in one batch. Returns the answers to each request.
async fn send_requests(link: Arc<ClusterClient>, requests: Vec<Vec<Step>>) -> Vec<Vec<Answered>> {
    let counts: Vec<_> = requests.iter().map(Vec::len).collect();
    let mut answers = send_batch(link, requests.into_iter().flatten().collect())
        .await
        .into_iter();
    let each = counts.into_iter().map(|count| answers.by_ref().take(count).collect());
    each.collect()
}

async fn send_batch(link: Arc<ClusterClient>, steps: Vec<Step>) -> Vec<Answered> {
    let groups = pack(&steps);
    let mut steps: Vec<_> = steps.into_iter().map(Some).collect();
    let mut answers: Vec<_> = steps.iter().map(|_| None).collect();
    let sent = groups.into_iter().map(|group| {
        let members: Vec<Step> = group.iter().filter_map(|at| steps[*at].take()).collect();
        let link = &link;
        async move { (group, send(link, members).await) }
    });
    for (group, answered) in join_all(sent.collect::<Vec<_>>()).await {
        for (at, answer) in group.into_iter().zip(answered) {
            answers[at] = Some(answer);
        }
    }
    let lost = || Err(Failure::Unavailable("etcd: a transaction lacks an answer".into()));
    answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect()
}

/// Sends steps in one transaction. If its outcome is unknown, so is that of each step.
async fn send(link: &ClusterClient, mut steps: Vec<Step>) -> Vec<Answered> {
    if steps.len() == 1 {
        let alone = steps.drain(..).map(Step::txn).map(|txn| link.txn(txn));
        return join_all(alone)
            .await
            .into_iter()
            .map(|answer| Ok(Answer::of(&answer?)))
            .collect();
    }
    let all: Vec<TxnOp> = steps.iter().cloned().map(|step| TxnOp::txn(step.txn())).collect();
    match link.txn(Txn::new().and_then(all)).await {
        Ok(answer) => {
            let mut answers = Answer::of_each(&answer, &steps).into_iter();
            let lost = || Failure::Unavailable("etcd: a transaction lacks an answer".into());
            steps.iter().map(|_| answers.next().ok_or_else(lost)).collect()
        }
        // Nothing was written, and only some of the steps caused it: each is sent alone.
        Err(Failure::LeaseGone | Failure::Refused(_)) => {
            let each = steps.into_iter().map(|step| link.txn(step.txn()));
            let answers = join_all(each).await;
            answers.into_iter().map(|answer| Ok(Answer::of(&answer?))).collect()
        }
        Err(unknown) => steps.iter().map(|_| Err(unknown.clone())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;
    use tokio::time::Instant;

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
        let step = |n| Step::new(&format!("l{n}"), BatchClass::Alone, Vec::new(), Vec::new(), Vec::new());
        let many = 8 * BOUNDS.in_flight * BOUNDS.batch;
        let answers = join_all((0..many).map(|n| batches.ask(step(n)))).await;
        assert!(answers.iter().all(Result::is_err));
        // One after another, the batches would take 8 request timeouts.
        assert!(begun.elapsed() < request * 6, "{:?}", begun.elapsed());
    }

    /// Appends a claim with this key. The answer is the caller's.
    fn append(batches: &Arc<StepBatcher>, lock: &str, key: usize) -> oneshot::Receiver<Answered> {
        append_as(BatchClass::FarTail, batches, lock, key)
    }

    fn append_as(class: BatchClass, batches: &Arc<StepBatcher>, lock: &str, key: usize) -> oneshot::Receiver<Answered> {
        let put = TxnOp::put(format!("{lock}/{key}"), "1", None);
        let step = Step::new(lock, class, Vec::new(), vec![put], Vec::new());
        let (caller, answered) = oneshot::channel();
        batches.append((step, caller));
        answered
    }

    fn unreachable() -> Arc<StepBatcher> {
        StepBatcher::begin(Arc::new(ClusterClient::new(&Settings::new(vec![
            "http://127.0.0.1:1".into(),
        ]))))
    }

    #[tokio::test]
    async fn the_appends_of_one_lock_are_in_flight_once_at_a_time_and_in_their_order() {
        let batches = unreachable();
        let _callers: Vec<_> = (0..=APPENDS).map(|n| append(&batches, "a", n)).collect();
        let _other = append(&batches, "b", 0);
        let taken = batches.take_appends("a").unwrap();
        let keys: Vec<_> = taken.iter().map(|(step, _)| step.written[0].clone()).collect();
        assert!(
            keys.iter()
                .enumerate()
                .all(|(n, key)| *key == format!("a/{n}").as_bytes())
                && keys.len() == APPENDS
        );
        assert!(batches.take_appends("a").is_none(), "another batch might overtake it");
        assert!(batches.take_appends("b").is_some());
        batches.send_together("a", taken).await;
        assert_eq!(batches.take_appends("a").unwrap().len(), 1);
        batches.send_together("a", Vec::new()).await;
        assert!(!batches.appends.lock().contains_key("a"));
    }

    #[tokio::test]
    async fn a_call_and_its_retry_are_not_appended_together() {
        let batches = unreachable();
        let callers = [1, 2, 1, 3].map(|key| append(&batches, "a", key));
        assert_eq!(batches.take_appends("a").unwrap().len(), 2);
        batches.send_together("a", Vec::new()).await;
        let [.., retry, gone] = callers;
        drop(gone);
        assert_eq!(
            batches.take_appends("a").unwrap().len(),
            1,
            "a caller that has gone appends nothing"
        );
        drop(retry);
    }

    #[tokio::test(start_paused = true)]
    async fn an_append_that_may_be_next_is_sent_at_once_with_those_before_it() {
        let batches = unreachable();
        let _far = append(&batches, "a", 1);
        let begun = Instant::now();
        let _near = append_as(BatchClass::Tail, &batches, "a", 2);
        while batches.are_far("a") == Some(false) {
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test]
    async fn an_append_is_sent_with_the_next_step_on_its_lock() {
        let batches = unreachable();
        let _caller = append(&batches, "a", 1);
        let host = |lock| Step::new(lock, BatchClass::Host, Vec::new(), Vec::new(), Vec::new());
        let waiting = || batches.appends.lock()["a"].waiting.len();
        batches.overlapped.store(true, Ordering::Relaxed);
        let (other, same) = (batches.ask(host("b")), batches.ask(host("a")));
        tokio::pin!(other, same);
        assert!(futures::poll!(&mut other).is_pending());
        assert_eq!(waiting(), 1);
        assert!(futures::poll!(&mut same).is_pending());
        assert_eq!(waiting(), 0);
    }
}
