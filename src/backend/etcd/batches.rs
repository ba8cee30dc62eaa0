//! The turns: what is asked at the same time goes to etcd together ([`super::batch_packing`]), and each gets its
//! own answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use etcd_client::{GetResponse, Txn, TxnOp, TxnOpResponse, TxnResponse};
use futures::future::join_all;
use tokio::time::{sleep, timeout};

use super::deferred::{DeferredSteps, MAX_DELAY, PiggybackBatch, Where};
use super::cluster_client::{Failure, ClusterClient};
use super::batch_packing::{BatchClass, Step, pack};
use crate::batch::{self, BatchSender, BatchBounds};

/// How much a turn takes, and how many are under way at once: few, for the fuller a turn is the less
/// each of its steps costs.
const BOUNDS: BatchBounds = BatchBounds {
    batch: 192,
    in_flight: 2,
    queue: 4096,
};

/// How many go along with a turn: they fit into one transaction, for others would not keep their order.
const ALONG: usize = 96;

/// What came of a step.
#[derive(Debug)]
pub struct Answer {
    /// Whether its conditions were met.
    pub succeeded: bool,
    /// The store's revision then; where it wrote, the revision of that.
    pub revision: i64,
    /// Up to which revision its reads have everything: another step on the lock may have written
    /// behind them in the same request.
    pub read_at: i64,
    /// What its reads gave, in their order.
    pub reads: Vec<GetResponse>,
}

impl Answer {
    /// The answer to a transaction that was sent alone.
    pub fn of(answer: &TxnResponse) -> Self {
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        Self::nested(answer, revision, revision)
    }

    /// A nested answer has no revision of its own.
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
            let beside = on_lock[step.lock.as_str()] > 1;
            Self::nested(&nested, revision, revision - i64::from(beside))
        });
        answers.collect()
    }
}

/// Where steps are put.
#[derive(Debug)]
pub struct StepBatcher {
    link: Arc<ClusterClient>,
    batch: BatchSender<Step, Result<Answer, Failure>>,
    along: Arc<DeferredSteps>,
    /// How many steps are under way, or wait for a turn.
    asked: AtomicUsize,
    /// Some came while others were under way.
    met: AtomicBool,
}

impl StepBatcher {
    /// Begins to make turns, until it is dropped. Must be called within a tokio runtime.
    pub fn begin(link: Arc<ClusterClient>) -> Self {
        let (batch, turns) = batch::batch(BOUNDS);
        let along = Arc::new(DeferredSteps::default());
        let (way, beside) = (Arc::clone(&link), Arc::clone(&along));
        tokio::spawn(turns.run_many(move |steps| {
            let riders = beside.take(ALONG, &steps);
            turn_with(Arc::clone(&way), steps, riders)
        }));
        Self {
            link,
            batch,
            along,
            asked: AtomicUsize::new(0),
            met: AtomicBool::new(false),
        }
    }

    /// Makes a step, together with others that come at the same time. One that is alone, as the one
    /// before it was, is sent from here: each task on the way through a turn may be a thread to wake.
    ///
    /// # Errors
    /// Whether the step took effect then is said by the [`Failure`]. It comes after two requests' time at the latest:
    /// one to wait for a turn, one for its answer.
    pub async fn ask(&self, step: Step) -> Result<Answer, Failure> {
        let asked = timeout(self.link.wait_policy() * 2, self.ask_however_long(step)).await;
        asked.unwrap_or_else(|_| Err(Failure::Unavailable("etcd: no turn was answered in time".into())))
    }

    async fn ask_however_long(&self, step: Step) -> Result<Answer, Failure> {
        let _asked = self.count();
        if step.company == BatchClass::FarTail {
            return self.ask_along(step).await;
        }
        if self.asked.load(Ordering::Relaxed) > 1 {
            self.met.store(true, Ordering::Relaxed);
        } else if !self.met.swap(false, Ordering::Relaxed) {
            return Ok(Answer::of(&self.link.txn(step.txn()).await?));
        }
        self.batch.ask(step).await.map_err(|_| closed())?
    }

    /// A step in no hurry goes along with the next turn, if there is one in a moment.
    async fn ask_along(&self, step: Step) -> Result<Answer, Failure> {
        self.met.store(true, Ordering::Relaxed);
        let (stand, mut answered) = self.along.put(step);
        let moment = sleep(MAX_DELAY);
        tokio::pin!(moment);
        loop {
            tokio::select! {
                biased;
                answer = &mut answered => return answer.map_err(|_| closed())?,
                () = &mut moment, if !moment.is_elapsed() => {}
                () = stand.first(), if moment.is_elapsed() => {}
            }
            match stand.take_back() {
                Where::Back(step) => {
                    let mut bringing = LeadStep(&self.along, Some(step.lock.clone()));
                    let answer = self.batch.ask(step).await;
                    // Its turn was over before its answer came.
                    bringing.1 = None;
                    return answer.map_err(|_| closed())?;
                }
                Where::Here => {}
                Where::Taken => return answered.await.map_err(|_| closed())?,
            }
        }
    }

    fn count(&self) -> Asked<'_> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Asked(&self.asked)
    }
}

/// A step that is under way.
struct Asked<'a>(&'a AtomicUsize);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A step that its caller brings to a turn. Dropped before it was with one, it keeps nobody waiting.
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

/// A turn, with steps that go along with it and are answered beside it.
async fn turn_with(link: Arc<ClusterClient>, mut steps: Vec<Step>, riders: PiggybackBatch) -> Vec<Result<Answer, Failure>> {
    let asked = steps.len();
    steps.extend(riders.steps);
    let mut answers = turn(link, steps).await;
    drop(riders.riding);
    for (caller, answer) in riders.callers.into_iter().zip(answers.split_off(asked)) {
        // A caller that went away meanwhile does not want its answer.
        let _ = caller.send(answer);
    }
    answers
}

async fn turn(link: Arc<ClusterClient>, steps: Vec<Step>) -> Vec<Result<Answer, Failure>> {
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

/// Sends what may go together. A lost outcome is unknown for each of them.
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
        // Nothing was written, and only some of them are to blame.
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

    use super::super::settings::Settings;
    use super::*;

    #[tokio::test]
    async fn every_step_is_answered_in_time_however_many_wait_for_a_store_that_hangs() {
        // It accepts connections, and says nothing.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let request = Duration::from_secs(1);
        let link = ClusterClient::new(&Settings {
            timeout: request,
            ..Settings::new(vec![format!("http://{}", silent.local_addr().unwrap())])
        });
        let turns = StepBatcher::begin(Arc::new(link));
        let begun = Instant::now();
        let step = |n| Step::new(&format!("l{n}"), BatchClass::Alone, Vec::new(), Vec::new(), Vec::new());
        let many = 8 * BOUNDS.turns * BOUNDS.turn;
        let answers = join_all((0..many).map(|n| turns.ask(step(n)))).await;
        assert!(answers.iter().all(Result::is_err));
        // One after another their turns would take 8 requests' time.
        assert!(begun.elapsed() < request * 6, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn a_claim_far_behind_others_waits_for_a_turn_that_it_goes_along_with() {
        let link = ClusterClient::new(&Settings::new(vec!["http://127.0.0.1:1".into()]));
        let turns = StepBatcher::begin(Arc::new(link));
        let far = Step::new("a", BatchClass::FarTail, Vec::new(), Vec::new(), Vec::new());
        let mut asked = pin!(turns.ask(far));
        assert!(asked.as_mut().now_or_never().is_none());
        let riders = turns.along.take(BOUNDS.turn, &[]);
        assert_eq!(riders.steps.len(), 1);
        let answer = || Err(Failure::Refused("the turn's answer".into()));
        for caller in riders.callers {
            assert!(caller.send(answer()).is_ok());
        }
        assert_eq!(asked.await.err(), answer().err());
    }
}
