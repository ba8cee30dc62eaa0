//! Group commit: steps that are requested at the same time are sent to etcd in one batch
//! ([`super::batch_packing`]), and each gets its own answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use etcd_client::{GetResponse, Txn, TxnOp, TxnOpResponse, TxnResponse};
use futures::future::join_all;
use tokio::time::{sleep, timeout};

use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::cluster::client::ClusterClient;
use crate::backend::etcd::txn::deferred::{DeferredSteps, MAX_DELAY, PiggybackBatch, Where};
use crate::backend::etcd::txn::packing::{BatchClass, Step, pack};
use crate::batch::{self, BatchBounds, BatchSender};

pub mod calls;
mod deferred;
pub mod packing;

/// How many steps a batch takes, and how many batches are in flight: few, because each step costs less in a fuller
/// batch.
const BOUNDS: BatchBounds = BatchBounds {
    batch: 192,
    in_flight: 2,
    queue: 4096,
};

/// How many deferred steps a batch takes at most. They fit into one transaction, because several would not keep their
/// order.
const DEFERRED: usize = 96;

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

/// Collects steps into batches.
#[derive(Debug)]
pub struct StepBatcher {
    link: Arc<ClusterClient>,
    batch: BatchSender<Step, Result<Answer, Failure>>,
    deferred: Arc<DeferredSteps>,
    /// How many steps are in flight or wait for a batch.
    pending: AtomicUsize,
    /// A step was requested while another was in flight.
    overlapped: AtomicBool,
}

impl StepBatcher {
    /// Sends batches until it is dropped. Must be called within a tokio runtime.
    pub fn begin(link: Arc<ClusterClient>) -> Self {
        let (batch, receiver) = batch::batch(BOUNDS);
        let deferred = Arc::new(DeferredSteps::default());
        let (client, piggyback) = (Arc::clone(&link), Arc::clone(&deferred));
        tokio::spawn(receiver.run_many(move |steps| {
            let deferred = piggyback.take(DEFERRED, &steps);
            send_batch_with(Arc::clone(&client), steps, deferred)
        }));
        Self {
            link,
            batch,
            deferred,
            pending: AtomicUsize::new(0),
            overlapped: AtomicBool::new(false),
        }
    }

    /// Executes a step, in one batch with others that are requested at the same time. A step that is alone, as the one
    /// before it was, is sent by its caller's task: a batch goes through more tasks, and each may wake a thread.
    ///
    /// # Errors
    /// The [`Failure`] says whether the step took effect. It is returned after at most two request timeouts: one for
    /// the wait for a batch, and one for the batch's answer.
    pub async fn ask(&self, step: Step) -> Result<Answer, Failure> {
        let answer = timeout(self.link.request_timeout() * 2, self.ask_without_limit(step)).await;
        answer.unwrap_or_else(|_| Err(Failure::Unavailable("etcd: no batch was answered in time".into())))
    }

    async fn ask_without_limit(&self, step: Step) -> Result<Answer, Failure> {
        let _pending = self.count();
        if step.class == BatchClass::FarTail {
            return self.ask_deferred(step).await;
        }
        if self.pending.load(Ordering::Relaxed) > 1 {
            self.overlapped.store(true, Ordering::Relaxed);
        } else if !self.overlapped.swap(false, Ordering::Relaxed) {
            return Ok(Answer::of(&self.link.txn(step.txn()).await?));
        }
        self.batch.ask(step).await.map_err(|_| closed())?
    }

    /// Sends a deferrable step with the next batch, or in a batch of its own if none is sent within [`MAX_DELAY`].
    async fn ask_deferred(&self, step: Step) -> Result<Answer, Failure> {
        self.overlapped.store(true, Ordering::Relaxed);
        let (slot, mut answered) = self.deferred.put(step);
        let delay = sleep(MAX_DELAY);
        tokio::pin!(delay);
        loop {
            tokio::select! {
                biased;
                answer = &mut answered => return answer.map_err(|_| closed())?,
                () = &mut delay, if !delay.is_elapsed() => {}
                () = slot.first(), if delay.is_elapsed() => {}
            }
            match slot.take_back() {
                Where::Back(step) => {
                    let mut lead = LeadStep(&self.deferred, Some(step.lock.clone()));
                    let answer = self.batch.ask(step).await;
                    // The batch has released the lock: it ended before its answer arrived.
                    lead.1 = None;
                    return answer.map_err(|_| closed())?;
                }
                Where::Here => {}
                Where::Taken => return answered.await.map_err(|_| closed())?,
            }
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

/// A deferred step that its caller sends with a batch, and its lock. If it is dropped before a batch took the step, the
/// next deferred step of that lock may be sent.
struct LeadStep<'a>(&'a DeferredSteps, Option<String>);

impl Drop for LeadStep<'_> {
    fn drop(&mut self) {
        if let Some(lock) = &self.1 {
            self.0.is_over(lock);
        }
    }
}

fn closed() -> Failure {
    Failure::Unavailable("the namespace is closed".into())
}

/// Sends a batch together with deferred steps, and answers the callers of those itself.
async fn send_batch_with(
    link: Arc<ClusterClient>,
    mut steps: Vec<Step>,
    deferred: PiggybackBatch,
) -> Vec<Result<Answer, Failure>> {
    let requested = steps.len();
    steps.extend(deferred.steps);
    let mut answers = send_batch(link, steps).await;
    drop(deferred.riding);
    for (caller, answer) in deferred.callers.into_iter().zip(answers.split_off(requested)) {
        // Fails only if the caller was dropped meanwhile.
        let _ = caller.send(answer);
    }
    answers
}

async fn send_batch(link: Arc<ClusterClient>, steps: Vec<Step>) -> Vec<Result<Answer, Failure>> {
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
async fn send(link: &ClusterClient, mut steps: Vec<Step>) -> Vec<Result<Answer, Failure>> {
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
    use std::pin::pin;

    use std::time::Duration;

    use futures::FutureExt;
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

    #[tokio::test]
    async fn a_deferred_step_is_sent_and_answered_with_the_next_batch() {
        let link = ClusterClient::new(&Settings::new(vec!["http://127.0.0.1:1".into()]));
        let batches = StepBatcher::begin(Arc::new(link));
        let far = Step::new("a", BatchClass::FarTail, Vec::new(), Vec::new(), Vec::new());
        let mut answered = pin!(batches.ask(far));
        assert!(answered.as_mut().now_or_never().is_none());
        let taken = batches.deferred.take(BOUNDS.batch, &[]);
        assert_eq!(taken.steps.len(), 1);
        let answer = || Err(Failure::Refused("the batch's answer".into()));
        for caller in taken.callers {
            assert!(caller.send(answer()).is_ok());
        }
        assert_eq!(answered.await.err(), answer().err());
    }
}
