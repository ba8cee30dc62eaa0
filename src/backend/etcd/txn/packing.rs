//! Which steps of a batch share a transaction, as nested transactions.
//!
//! Etcd evaluates every condition of a request before any of its writes, refuses a key that is written twice, counts
//! nested operations against one limit, and refuses the whole request if one lease is dead. So two steps on one lock
//! must not share a request: the second might be granted what the first takes. The exceptions are steps that take
//! nothing from the others, such as appends to a queue's tail ([`BatchClass`]). Steps that cannot share a request are
//! sent in parallel requests of the same batch.

use std::collections::{HashMap, HashSet};

use etcd_client::proto::PbTxnOpRequest;
use etcd_client::{Compare, Txn, TxnOp};

/// Etcd's default limit on the operations of a transaction.
const DEPTH: usize = 128;
/// The size limit of a request, in bytes: a third of etcd's default limit of 1.5 MiB.
const BYTES: usize = 512 * 1024;

/// Which steps on the same lock a step may share a request with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchClass {
    /// Only with removals.
    Alone,
    /// With appends and removals. It changes a claim that the store already has.
    Host,
    /// With ends and removals. It grants a claim that shares the lock, without waiting.
    Sharer,
    /// With other ends, sharers, appends and removals. It removes one of several holders, which blocks no other claim.
    End,
    /// With a host, ends, removals and other appends. It appends a claim, or adopts one that waits; a step that writes
    /// the same claim's key is in another request. A grant without waiting must not join it, because that may be of the
    /// same claim: a call and its retry.
    Tail,
    /// As [`Self::Tail`], behind other waiters, so that it may wait for a step that it can be sent with.
    FarTail,
    /// With all that write other keys. It removes one waiter, which grants nothing and invalidates no grant, or it only
    /// reads.
    Removal,
}

impl BatchClass {
    /// Whether it appends to a queue.
    pub fn is_append(self) -> bool {
        matches!(self, Self::Tail | Self::FarTail)
    }

    /// Whether a step may share a request with these.
    fn joins(self, there: &[Self]) -> bool {
        let has = |others: &[Self]| there.iter().any(|there| others.contains(there));
        match self {
            Self::Removal => true,
            Self::Alone => there.iter().all(|there| *there == Self::Removal),
            Self::Sharer => !has(&[Self::Alone, Self::Host, Self::Sharer, Self::Tail, Self::FarTail]),
            Self::Host => !has(&[Self::Alone, Self::Host, Self::Sharer, Self::End]),
            Self::End => !has(&[Self::Alone, Self::Host]),
            Self::Tail | Self::FarTail => !has(&[Self::Alone, Self::Sharer]),
        }
    }
}

/// A transaction on one lock.
#[derive(Debug, Clone)]
pub struct Step {
    pub lock: String,
    pub class: BatchClass,
    when: Vec<Compare>,
    then: Vec<TxnOp>,
    otherwise: Vec<TxnOp>,
    pub(super) written: Vec<Vec<u8>>,
    bytes: usize,
    puts: bool,
}

impl Step {
    /// A step on the lock with this key prefix. Other keys that it writes must not matter to steps on other locks.
    pub fn new(lock: &str, class: BatchClass, when: Vec<Compare>, then: Vec<TxnOp>, otherwise: Vec<TxnOp>) -> Self {
        let mut step = Self {
            lock: lock.to_owned(),
            class,
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

    /// Whether it may put a key.
    pub fn puts(&self) -> bool {
        self.puts
    }

    /// How many operations it nests.
    fn width(&self) -> usize {
        self.when.len().max(self.then.len()).max(self.otherwise.len())
    }

    /// Its estimated size in bytes: conditions and reads are little more than their keys.
    fn size(&self) -> usize {
        self.bytes + (self.when.len() + self.otherwise.len()) * (self.lock.len() + 64)
    }

    /// The transaction for etcd.
    pub fn txn(self) -> Txn {
        Txn::new().when(self.when).and_then(self.then).or_else(self.otherwise)
    }
}

/// Steps that share a request, while it is filled.
#[derive(Debug, Default)]
struct Group<'a> {
    members: Vec<usize>,
    locks: HashMap<&'a str, Vec<BatchClass>>,
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
            self.locks.get(step.lock.as_str()).is_none_or(|there| step.class.joins(there))
                && !step.written.iter().any(|key| self.written.contains(key.as_slice()))
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
        self.locks.entry(&step.lock).or_default().push(step.class);
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
    let is_block = |one: &Step, next: &Step| one.class.is_append() && next.class.is_append() && one.lock == next.lock;
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

    fn step(lock: &str, key: &str) -> Step {
        Step::new(
            lock,
            BatchClass::Alone,
            Vec::new(),
            vec![TxnOp::put(key, "1", None)],
            Vec::new(),
        )
    }

    #[test]
    fn two_steps_on_one_lock_never_share_a_request() {
        let steps = [step("a", "a/1"), step("b", "b/1"), step("a", "a/2"), step("a", "a/3")];
        assert_eq!(pack(&steps), [vec![0, 1], vec![2], vec![3]]);
    }

    #[test]
    fn appends_share_a_request_with_one_host_and_with_no_step_that_is_alone() {
        let one = |class, key: &str| Step {
            class,
            ..step("a", key)
        };
        use BatchClass::{Alone, FarTail, Host, Tail};
        let steps = [
            one(Tail, "1"),
            one(Host, "2"),
            one(FarTail, "3"),
            one(Host, "4"),
            one(Alone, "5"),
            one(Tail, "6"),
        ];
        assert_eq!(pack(&steps), [vec![0, 1, 2, 5], vec![3], vec![4]]);
    }

    #[test]
    fn ends_of_shared_holders_share_a_request_with_each_other_and_with_one_grant() {
        let one = |class, key: &str| Step {
            class,
            ..step("a", key)
        };
        use BatchClass::{Alone, End, Host, Sharer, Tail};
        let steps = [
            one(End, "1"),
            one(Sharer, "2"),
            one(End, "3"),
            one(Sharer, "4"),
            one(Host, "5"),
            one(Tail, "6"),
            one(Alone, "7"),
        ];
        // Two grants at one revision would have the same token.
        assert_eq!(pack(&steps), [vec![0, 1, 2], vec![3], vec![4, 5], vec![6]]);
        for first in [Alone, Host] {
            assert_eq!(pack(&[one(first, "1"), one(End, "2")]), [[0], [1]]);
        }
    }

    #[test]
    fn removals_of_waiters_share_a_request_with_each_other_and_with_any_step_on_another_key() {
        let one = |class, key: &str| Step {
            class,
            ..step("a", key)
        };
        use BatchClass::{Alone, Host, Removal};
        let steps = [
            one(Removal, "1"),
            one(Alone, "2"),
            one(Removal, "3"),
            one(Removal, "2"),
            one(Host, "1"),
        ];
        assert_eq!(pack(&steps), [vec![0, 1, 2], vec![3, 4]]);
    }

    #[test]
    fn appends_to_one_lock_are_not_divided_between_requests() {
        let append = |n: usize| Step {
            class: BatchClass::Tail,
            ..step("z", &format!("z/{n}"))
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
            BatchClass::Alone,
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
                BatchClass::Alone,
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
    fn a_request_stays_below_the_size_limit_and_a_larger_step_is_sent_alone() {
        let large = |n: usize, bytes: usize| {
            let put = TxnOp::put(format!("l{n}"), vec![0; bytes], None);
            Step::new(&format!("l{n}"), BatchClass::Alone, Vec::new(), vec![put], Vec::new())
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
            BatchClass::Alone,
            Vec::new(),
            vec![TxnOp::delete("b", None)],
            Vec::new(),
        );
        assert_eq!(pack(&[step("a", "a"), only_deletes]), [vec![0], vec![1]]);
    }
}
