//! Which steps go together in one transaction of nested ones.
//!
//! Etcd judges every condition of a request before any of its writes, refuses a key that is written
//! twice, counts operations along the depth against one limit, and refuses the whole request where
//! one lease is dead. So two steps on one lock do not go together: the second might be granted what
//! the first takes. The exception are claims at their way to the tail of a queue, which take nothing
//! from anybody ([`BatchClass`]). Who does not go with a request goes beside it, in another one of the
//! same turn.

use std::collections::{HashMap, HashSet};

use etcd_client::proto::PbTxnOpRequest;
use etcd_client::{Compare, Txn, TxnOp};

/// Etcd's limit on operations, by its defaults.
const DEPTH: usize = 128;
/// How many bytes a request carries at most: a good part of what etcd takes by its defaults.
const BYTES: usize = 512 * 1024;

/// Which steps on its own lock a step goes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchClass {
    /// None.
    Alone,
    /// Claims at their way to the tail: what it is about is in the store already, so it is not about
    /// one of those.
    Host,
    /// A host, and others like itself: it puts a claim that no other step knows at the tail.
    Tail,
    /// The same behind others who wait, so that it is in no hurry.
    FarTail,
    /// All that write other keys: it takes one waiter out, which grants nothing and makes no grant of the others
    /// wrong, or it only reads.
    Removal,
}

impl BatchClass {
    /// Whether a step goes with those that are there already.
    fn joins(self, there: &[Self]) -> bool {
        let is_host = |there: &&Self| matches!(there, Self::Alone | Self::Host);
        match self {
            Self::Removal => true,
            Self::Alone => there.iter().all(|there| *there == Self::Removal),
            Self::Host => !there.iter().any(|there| is_host(&there)),
            Self::Tail | Self::FarTail => !there.contains(&Self::Alone),
        }
    }
}

/// A transaction of one lock.
#[derive(Debug, Clone)]
pub struct Step {
    pub lock: String,
    pub company: BatchClass,
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
    pub fn new(lock: &str, company: BatchClass, when: Vec<Compare>, then: Vec<TxnOp>, otherwise: Vec<TxnOp>) -> Self {
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

    /// Itself, as etcd takes it.
    pub fn txn(self) -> Txn {
        Txn::new().when(self.when).and_then(self.then).or_else(self.otherwise)
    }
}

/// Steps that go together, as they fill up.
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
pub fn pack(steps: &[Step]) -> Vec<Vec<usize>> {
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
            BatchClass::Alone,
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
    fn waiters_are_taken_out_together_and_beside_any_step_on_another_key() {
        let one = |company, key: &str| Step {
            company,
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
    fn a_request_stays_below_the_limit_of_operations_along_its_depth() {
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
    fn a_request_stays_below_the_limit_of_bytes_and_one_that_is_larger_goes_alone() {
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
    fn what_puts_nothing_goes_apart_from_what_puts() {
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
