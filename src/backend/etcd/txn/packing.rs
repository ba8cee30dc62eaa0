//! Which steps of a batch share a transaction, as nested transactions.
//!
//! Etcd evaluates every condition of a request before any of its writes, refuses a key that is written twice, counts
//! nested operations against one limit, and refuses the whole request if one lease is dead. So two steps that grant the
//! same lock must not share a request: the second might be granted what the first takes, and both would have the same
//! token. All other steps take nothing from each other, unless they write the same key. Steps that cannot share a request
//! are sent in parallel requests of the same batch.
//!
//! The conditions that many steps share, such as the token base, are conditions of the request. If one is not met, nothing
//! was executed, and the steps are sent again, each with its own conditions.

use std::collections::HashSet;

use etcd_client::proto::PbTxnOpRequest;
use etcd_client::{Compare, CompareOp, Txn, TxnOp};

use crate::backend::etcd::data::conditions::present;

/// Etcd's default limit on the operations of a transaction.
const DEPTH: usize = 128;
/// The size limit of a request, in bytes: a third of etcd's default limit of 1.5 MiB.
const BYTES: usize = 512 * 1024;

/// Which steps on the same lock a step may share a request with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchClass {
    /// With all that do not grant. It makes a holder.
    Grant,
    /// With all.
    Other,
}

/// A condition that many steps have. In a request that they share, etcd evaluates it once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SharedCondition {
    /// The key has this value.
    Value(String, String),
    /// The key exists.
    Present(String),
}

impl SharedCondition {
    fn compare(&self) -> Compare {
        match self {
            Self::Value(key, value) => Compare::value(key.as_str(), CompareOp::Equal, value.as_str()),
            Self::Present(key) => present(key.as_str()),
        }
    }
}

/// A transaction on one lock.
#[derive(Debug, Clone)]
pub struct Step {
    pub lock: String,
    pub class: BatchClass,
    /// Its conditions that are not on the lock or the call.
    pub shared: Vec<SharedCondition>,
    /// It appends to the lock's queue. Such steps keep their order.
    pub append: Option<Append>,
    when: Vec<Compare>,
    then: Vec<TxnOp>,
    otherwise: Vec<TxnOp>,
    pub(super) written: Vec<Vec<u8>>,
    bytes: usize,
    puts: bool,
}

/// An append to a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Append {
    /// Sent at once, because the claim may be the next one.
    OwnBatch,
    /// Sent with the next step on its lock, because the claim is behind other waiters.
    NextBatch,
}

impl Step {
    /// A step on the lock with this key prefix. Other keys that it writes must not matter to steps on other locks.
    pub fn new(lock: &str, class: BatchClass, when: Vec<Compare>, then: Vec<TxnOp>, otherwise: Vec<TxnOp>) -> Self {
        let mut step = Self {
            lock: lock.to_owned(),
            class,
            shared: Vec::new(),
            append: None,
            when,
            then: Vec::new(),
            otherwise,
            written: Vec::new(),
            bytes: 0,
            puts: false,
        };
        for op in &then {
            step.count(op.clone().into());
        }
        step.then = then;
        step
    }

    fn count(&mut self, op: PbTxnOpRequest) {
        match op {
            PbTxnOpRequest::RequestPut(put) => {
                self.bytes += put.key.len() + put.value.len();
                self.written.push(put.key);
                self.puts = true;
            }
            PbTxnOpRequest::RequestDeleteRange(delete) => {
                self.bytes += delete.key.len();
                self.written.push(delete.key);
            }
            PbTxnOpRequest::RequestTxn(nested) => {
                for op in nested.success.into_iter().filter_map(|op| op.request) {
                    self.count(op);
                }
            }
            PbTxnOpRequest::RequestRange(_) => {}
        }
    }

    /// Whether it may put a key.
    pub fn puts(&self) -> bool {
        self.puts
    }

    /// How many operations it nests, with one for a transaction in it.
    fn width(&self) -> usize {
        let conditions = self.shared.len() + self.when.len();
        conditions.max(self.then.len()).max(self.otherwise.len()) + 1
    }

    /// Its estimated size in bytes: conditions and reads are little more than their keys.
    fn size(&self) -> usize {
        self.bytes + (self.shared.len() + self.when.len() + self.otherwise.len()) * (self.lock.len() + 64)
    }

    /// The transaction for etcd.
    pub fn txn(self) -> Txn {
        self.txn_within(&[])
    }

    /// The transaction for a request that has these conditions.
    fn txn_within(mut self, request: &[SharedCondition]) -> Txn {
        let own = self.shared.iter().filter(|condition| !request.contains(condition));
        self.when.extend(own.map(SharedCondition::compare));
        Txn::new().when(self.when).and_then(self.then).or_else(self.otherwise)
    }
}

/// The conditions that the steps of a request share.
pub fn shared_conditions(steps: &[Step]) -> Vec<SharedCondition> {
    let mut all = Vec::new();
    for condition in steps.iter().flat_map(|step| &step.shared) {
        if !all.contains(condition) {
            all.push(condition.clone());
        }
    }
    all
}

/// One request for several steps. With `shared`, it executes nothing unless these conditions are met.
pub fn request(steps: &[Step], shared: &[SharedCondition]) -> Txn {
    let when: Vec<_> = shared.iter().map(SharedCondition::compare).collect();
    let nested = |step: Step| TxnOp::txn(step.txn_within(shared));
    let all: Vec<_> = steps.iter().cloned().map(nested).collect();
    Txn::new().when(when).and_then(all)
}

/// Steps that share a request, while it is filled.
#[derive(Debug, Default)]
struct Group<'a> {
    members: Vec<usize>,
    /// The locks that a step of it may grant.
    granted: HashSet<&'a str>,
    written: HashSet<&'a [u8]>,
    widest: usize,
    bytes: usize,
    puts: bool,
}

impl<'a> Group<'a> {
    /// Whether it takes all of these steps.
    fn takes(&self, steps: &[Step]) -> bool {
        let widest = steps.iter().map(Step::width).max().unwrap_or(0);
        let is_good = |step: &Step| {
            let grants_twice = step.class == BatchClass::Grant && self.granted.contains(step.lock.as_str());
            let writes_twice = step.written.iter().any(|key| self.written.contains(key.as_slice()));
            !grants_twice
                && !writes_twice
                // A full store executes only requests that put nothing.
                && self.puts == step.puts
        };
        self.members.is_empty()
            || (steps.iter().all(is_good)
                && self.members.len() + steps.len() + self.widest.max(widest) <= DEPTH
                && self.bytes + steps.iter().map(Step::size).sum::<usize>() <= BYTES)
    }

    fn take(&mut self, at: usize, step: &'a Step) {
        self.members.push(at);
        if step.class == BatchClass::Grant {
            self.granted.insert(&step.lock);
        }
        self.written.extend(step.written.iter().map(Vec::as_slice));
        self.widest = self.widest.max(step.width());
        self.bytes += step.size();
        self.puts = step.puts;
    }
}

/// Groups steps into requests, each step given by its index. Appends to one lock that follow each other share a request,
/// because parallel requests would not keep their order.
pub fn pack(steps: &[Step]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut at = 0;
    let is_block = |one: &Step, next: &Step| one.append.is_some() && next.append.is_some() && one.lock == next.lock;
    for block in steps.chunk_by(is_block) {
        let taking = groups.iter().position(|group| group.takes(block)).unwrap_or_else(|| {
            groups.push(Group::default());
            groups.len() - 1
        });
        for step in block {
            groups[taking].take(at, step);
            at += 1;
        }
    }
    groups.into_iter().map(|group| group.members).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step_of(class: BatchClass, lock: &str, key: &str) -> Step {
        Step::new(lock, class, Vec::new(), vec![TxnOp::put(key, "1", None)], Vec::new())
    }

    fn step(lock: &str, key: &str) -> Step {
        step_of(BatchClass::Grant, lock, key)
    }

    #[test]
    fn two_grants_of_one_lock_never_share_a_request() {
        let steps = [step("a", "a/1"), step("b", "b/1"), step("a", "a/2"), step("a", "a/3")];
        assert_eq!(pack(&steps), [vec![0, 1], vec![2], vec![3]]);
    }

    #[test]
    fn steps_that_do_not_grant_share_a_request_with_each_other_and_with_one_grant() {
        let other = |key: &str| step_of(BatchClass::Other, "a", key);
        let steps = [other("1"), step("a", "2"), other("3"), step("a", "4"), other("5")];
        assert_eq!(pack(&steps), [vec![0, 1, 2, 4], vec![3]]);
    }

    #[test]
    fn a_key_that_a_nested_transaction_writes_is_not_written_twice() {
        let nested = TxnOp::txn(Txn::new().and_then([TxnOp::delete("a/1", None)]));
        let forgets = Step::new("b", BatchClass::Other, Vec::new(), vec![nested], Vec::new());
        assert_eq!(pack(&[step("a", "a/1"), forgets]), [[0], [1]]);
    }

    #[test]
    fn appends_to_one_lock_are_not_divided_between_requests() {
        let append = |n: usize| Step {
            append: Some(Append::OwnBatch),
            ..step_of(BatchClass::Other, "z", &format!("z/{n}"))
        };
        let mut steps: Vec<_> = (0..100).map(|n| step(&format!("l{n}"), &format!("l{n}"))).collect();
        steps.extend((0..40).map(append));
        let sizes: Vec<_> = pack(&steps).iter().map(Vec::len).collect();
        assert_eq!(sizes, [100, 40]);
    }

    #[test]
    fn no_key_is_written_twice_in_one_request() {
        let forgets = Step::new(
            "b",
            BatchClass::Grant,
            Vec::new(),
            vec![TxnOp::put("b", "1", None), TxnOp::delete("x", None)],
            Vec::new(),
        );
        let steps = [step("a", "x"), forgets, step("c", "c")];
        assert_eq!(pack(&steps), [vec![0, 2], vec![1]]);
    }

    #[test]
    fn a_request_stays_below_the_limit_of_nested_operations() {
        let wide = |n: usize| {
            let reads = vec![TxnOp::get("k", None); 28];
            Step::new(
                &format!("w{n}"),
                BatchClass::Grant,
                Vec::new(),
                vec![TxnOp::put(format!("w{n}"), "1", None)],
                reads,
            )
        };
        let steps: Vec<_> = (0..150).map(wide).collect();
        let sizes: Vec<_> = pack(&steps).iter().map(Vec::len).collect();
        assert_eq!(sizes, [99, 51]);
    }

    #[test]
    fn a_request_stays_below_the_size_limit_and_a_larger_step_is_sent_alone() {
        let large = |n: usize, bytes: usize| {
            let put = TxnOp::put(format!("l{n}"), vec![0; bytes], None);
            Step::new(&format!("l{n}"), BatchClass::Grant, Vec::new(), vec![put], Vec::new())
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
    fn steps_that_put_nothing_share_no_request_with_steps_that_put() {
        let only_deletes = Step::new(
            "b",
            BatchClass::Grant,
            Vec::new(),
            vec![TxnOp::delete("b", None)],
            Vec::new(),
        );
        assert_eq!(pack(&[step("a", "a"), only_deletes]), [vec![0], vec![1]]);
    }
}
