//! Steps on different locks, together in one transaction of nested ones.
//!
//! Etcd judges every condition of a request before any of its writes, refuses a key that is written
//! twice, counts operations along the depth against one limit, and refuses the whole request where
//! one lease is dead. So two steps on one lock do not go together: the second might be granted what
//! the first takes. The exception are claims at their way to the tail of a queue, which take nothing
//! from anybody ([`Company`]). Who does not go with a request goes beside it, in another one of the
//! same turn.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use etcd_client::proto::PbTxnOpRequest;
use etcd_client::{Compare, GetResponse, Txn, TxnOp, TxnOpResponse, TxnResponse};
use futures::future::join_all;

use super::link::{Failure, Link};
use crate::batch::{self, Batch, Bounds};

/// Etcd's limit on operations, by its defaults.
const DEPTH: usize = 128;
/// How many bytes a request carries at most: a good part of what etcd takes by its defaults.
const BYTES: usize = 512 * 1024;
/// How much a turn takes, and how many are under way at once: few, for the fuller a turn is the less
/// each of its steps costs.
const BOUNDS: Bounds = Bounds {
    turn: 192,
    turns: 2,
    queue: 4096,
};

/// Which steps on its own lock a step goes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    /// None.
    Alone,
    /// Claims at their way to the tail: what it is about is in the store already, so it is not about
    /// one of those.
    Host,
    /// A host, and others like itself: it puts a claim that no other step knows at the tail.
    Tail,
}

impl Company {
    /// Whether a step goes with those that are there already.
    fn joins(self, there: &[Self]) -> bool {
        let hosts = there.iter().filter(|there| **there != Self::Tail).count();
        match self {
            Self::Alone => there.is_empty(),
            Self::Host => hosts == 0,
            Self::Tail => !there.contains(&Self::Alone),
        }
    }
}

/// A transaction of one lock.
#[derive(Debug, Clone)]
pub struct Step {
    lock: String,
    company: Company,
    when: Vec<Compare>,
    then: Vec<TxnOp>,
    otherwise: Vec<TxnOp>,
    written: Vec<Vec<u8>>,
    bytes: usize,
    puts: bool,
}

impl Step {
    /// A step on the lock whose keys begin so. What it writes beside them no step on another lock
    /// may need.
    pub fn new(lock: &str, company: Company, when: Vec<Compare>, then: Vec<TxnOp>, otherwise: Vec<TxnOp>) -> Self {
        let mut step = Self {
            lock: lock.to_owned(),
            company,
            when,
            then: Vec::new(),
            otherwise,
            written: Vec::new(),
            bytes: 0,
            puts: false,
        };
        for op in &then {
            step.count(op);
        }
        step.then = then;
        step
    }

    fn count(&mut self, op: &TxnOp) {
        match op.clone().into() {
            PbTxnOpRequest::RequestPut(put) => {
                self.bytes += put.key.len() + put.value.len();
                self.written.push(put.key);
                self.puts = true;
            }
            PbTxnOpRequest::RequestDeleteRange(delete) => {
                self.bytes += delete.key.len();
                self.written.push(delete.key);
            }
            PbTxnOpRequest::RequestRange(_) | PbTxnOpRequest::RequestTxn(_) => {}
        }
    }

    /// Whether it may write a key.
    pub fn puts(&self) -> bool {
        self.puts
    }

    /// How many operations it adds below the one that it is.
    fn width(&self) -> usize {
        self.when.len().max(self.then.len()).max(self.otherwise.len())
    }

    /// About how large it is: conditions and reads are little more than their keys.
    fn size(&self) -> usize {
        self.bytes + (self.when.len() + self.otherwise.len()) * (self.lock.len() + 64)
    }

    fn txn(self) -> Txn {
        Txn::new().when(self.when).and_then(self.then).or_else(self.otherwise)
    }
}

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
pub struct Turns {
    link: Arc<Link>,
    batch: Batch<Step, Result<Answer, Failure>>,
    /// How many steps are under way, or wait for a turn.
    asked: AtomicUsize,
    /// Some came while others were under way.
    met: AtomicBool,
}

impl Turns {
    /// Begins to make turns, until it is dropped. Must be called within a tokio runtime.
    pub fn begin(link: Arc<Link>) -> Self {
        let (batch, turns) = batch::batch(BOUNDS);
        let way = Arc::clone(&link);
        tokio::spawn(turns.run_many(move |steps| turn(Arc::clone(&way), steps)));
        Self {
            link,
            batch,
            asked: AtomicUsize::new(0),
            met: AtomicBool::new(false),
        }
    }

    /// Makes a step, together with others that come at the same time. One that is alone, as the one
    /// before it was, is sent from here: each task on the way through a turn may be a thread to wake.
    ///
    /// # Errors
    /// Whether the step took effect then is said by the [`Failure`].
    pub async fn ask(&self, step: Step) -> Result<Answer, Failure> {
        let _asked = self.count();
        if self.asked.load(Ordering::Relaxed) > 1 {
            self.met.store(true, Ordering::Relaxed);
        } else if !self.met.swap(false, Ordering::Relaxed) {
            return Ok(Answer::of(&self.link.txn(step.txn()).await?));
        }
        let closed = |_| Failure::Away("the namespace is closed".into());
        self.batch.ask(step).await.map_err(closed)?
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

async fn turn(link: Arc<Link>, steps: Vec<Step>) -> Vec<Result<Answer, Failure>> {
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
    let lost = || Err(Failure::Away("etcd: a transaction lacks an answer".into()));
    answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect()
}

/// Sends what may go together. A lost outcome is unknown for each of them.
async fn send(link: &Link, mut steps: Vec<Step>) -> Vec<Result<Answer, Failure>> {
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
            let lost = || Failure::Away("etcd: a transaction lacks an answer".into());
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

/// Steps that go together, as they fill up.
#[derive(Debug, Default)]
struct Group<'a> {
    members: Vec<usize>,
    locks: HashMap<&'a str, Vec<Company>>,
    written: HashSet<&'a [u8]>,
    widest: usize,
    bytes: usize,
    puts: bool,
}

impl<'a> Group<'a> {
    fn takes(&self, step: &Step) -> bool {
        self.members.is_empty()
            || (self.locks.get(step.lock.as_str()).is_none_or(|there| step.company.joins(there))
                && !step.written.iter().any(|key| self.written.contains(key.as_slice()))
                && self.members.len() + 1 + self.widest.max(step.width()) <= DEPTH
                && self.bytes + step.size() <= BYTES
                // On a full store only what puts nothing passes.
                && self.puts == step.puts)
    }

    fn take(&mut self, at: usize, step: &'a Step) {
        self.members.push(at);
        self.locks.entry(&step.lock).or_default().push(step.company);
        self.written.extend(step.written.iter().map(Vec::as_slice));
        self.widest = self.widest.max(step.width());
        self.bytes += step.size();
        self.puts = step.puts;
    }
}

/// Which steps go together, each named by its place.
fn pack(steps: &[Step]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        match groups.iter_mut().find(|group| group.takes(step)) {
            Some(group) => group.take(at, step),
            None => {
                let mut group = Group::default();
                group.take(at, step);
                groups.push(group);
            }
        }
    }
    groups.into_iter().map(|group| group.members).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(lock: &str, key: &str) -> Step {
        Step::new(
            lock,
            Company::Alone,
            Vec::new(),
            vec![TxnOp::put(key, "1", None)],
            Vec::new(),
        )
    }

    #[test]
    fn two_steps_on_one_lock_never_go_together() {
        let steps = [step("a", "a/1"), step("b", "b/1"), step("a", "a/2"), step("a", "a/3")];
        assert_eq!(pack(&steps), [vec![0, 1], vec![2], vec![3]]);
    }

    #[test]
    fn claims_for_the_tail_go_with_one_host_and_with_nobody_who_is_alone() {
        let one = |company, key: &str| Step {
            company,
            ..step("a", key)
        };
        use Company::{Alone, Host, Tail};
        let steps = [
            one(Tail, "1"),
            one(Host, "2"),
            one(Tail, "3"),
            one(Host, "4"),
            one(Alone, "5"),
            one(Tail, "6"),
        ];
        assert_eq!(pack(&steps), [vec![0, 1, 2, 5], vec![3], vec![4]]);
    }

    #[test]
    fn no_key_is_written_twice_in_one_request() {
        let forgets = Step::new(
            "b",
            Company::Alone,
            Vec::new(),
            vec![TxnOp::put("b", "1", None), TxnOp::delete("x", None)],
            Vec::new(),
        );
        let steps = [step("a", "x"), forgets, step("c", "c")];
        assert_eq!(pack(&steps), [vec![0, 2], vec![1]]);
    }

    #[test]
    fn a_request_stays_below_the_limit_of_operations_along_its_depth() {
        let wide = |n: usize| {
            let reads = vec![TxnOp::get("k", None); 28];
            Step::new(
                &format!("w{n}"),
                Company::Alone,
                Vec::new(),
                vec![TxnOp::put(format!("w{n}"), "1", None)],
                reads,
            )
        };
        let steps: Vec<_> = (0..150).map(wide).collect();
        let sizes: Vec<_> = pack(&steps).iter().map(Vec::len).collect();
        assert_eq!(sizes, [100, 50]);
    }

    #[test]
    fn a_request_stays_below_the_limit_of_bytes_and_one_that_is_larger_goes_alone() {
        let large = |n: usize, bytes: usize| {
            let put = TxnOp::put(format!("l{n}"), vec![0; bytes], None);
            Step::new(&format!("l{n}"), Company::Alone, Vec::new(), vec![put], Vec::new())
        };
        let steps = [
            large(0, BYTES * 2),
            large(1, BYTES / 2),
            large(2, BYTES / 3),
            large(3, BYTES / 3),
        ];
        assert_eq!(pack(&steps), [vec![0], vec![1, 2], vec![3]]);
    }

    #[test]
    fn what_puts_nothing_goes_apart_from_what_puts() {
        let only_deletes = Step::new(
            "b",
            Company::Alone,
            Vec::new(),
            vec![TxnOp::delete("b", None)],
            Vec::new(),
        );
        assert_eq!(pack(&[step("a", "a"), only_deletes]), [vec![0], vec![1]]);
    }
}
