//! Commits as etcd's transactions.

use std::collections::HashSet;

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};

use super::revision;
use super::slots::{Node, Slots, TOGETHER, name_of, packed, place};
use crate::backend::tree::store::{ANY, Committed, Done, Failure, NodeKind, Op, Outcome, Reason, Stat, Version};

/// What is behind every key of this prefix.
pub fn behind(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// A condition of an operation.
#[derive(Debug)]
struct Condition {
    index: usize,
    key: String,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Absent,
    Present,
    /// It is the child that this revision created.
    Same(i64),
    /// This revision was the last to write it; and created it, if it is known which.
    At(Version, Option<i64>),
    /// No key has this prefix.
    NoneUnder(Reason),
}

impl Condition {
    fn compare(&self) -> Compare {
        let key = self.key.as_str();
        match self.kind {
            Kind::Absent => Compare::create_revision(key, CompareOp::Equal, 0),
            Kind::Present => Compare::create_revision(key, CompareOp::Greater, 0),
            Kind::Same(created) => Compare::create_revision(key, CompareOp::Equal, created),
            Kind::At(version, _) => Compare::mod_revision(key, CompareOp::Equal, version),
            Kind::NoneUnder(_) => Compare::create_revision(key, CompareOp::Equal, 0).with_range(behind(key)),
        }
    }

    /// Reads what tells, if it was not met.
    fn read(&self) -> TxnOp {
        let options = GetOptions::new().with_keys_only();
        let options = match self.kind {
            Kind::NoneUnder(_) => options.with_range(behind(&self.key)).with_limit(1),
            _ => options,
        };
        TxnOp::get(self.key.as_str(), Some(options))
    }

    /// Why it is not met, as far as what was read tells.
    fn refusal(&self, read: Option<&KeyValue>) -> Option<Reason> {
        match (&self.kind, read) {
            (Kind::Absent, Some(_)) => Some(Reason::NodeExists),
            (Kind::NoneUnder(reason), Some(_)) => Some(reason.clone()),
            (Kind::Absent | Kind::NoneUnder(_), None) | (Kind::Present, Some(_)) => None,
            (Kind::Present | Kind::Same(_) | Kind::At(..), None) => Some(Reason::NoNode),
            (Kind::Same(created) | Kind::At(_, Some(created)), Some(kv)) if *created != kv.create_revision() => {
                Some(Reason::NoNode)
            }
            (Kind::Same(_), Some(_)) => None,
            (Kind::At(version, _), Some(kv)) => (kv.mod_revision() != *version).then_some(Reason::BadVersion),
        }
    }
}

/// What happens to a key.
#[derive(Debug)]
enum Effect {
    Put(Vec<u8>, Option<i64>),
    Delete,
}

/// How an operation is answered once it took effect.
#[derive(Debug)]
enum Answered {
    Nothing,
    /// A node of this path was created.
    Created(String),
    /// A lock's child was, of this lock's prefix, stored name and key suffix.
    Child(String, String, String),
    Set,
}

/// The keys of children that a step makes and deletes: a lock's prefix, the end of the key, and the revision that made it.
#[derive(Debug, Default)]
pub struct Made {
    pub created: Vec<(String, String)>,
    pub deleted: Vec<(String, String, i64)>,
}

/// The operations of a step, or the guards, as etcd knows them.
#[derive(Debug, Default)]
struct Plan {
    conditions: Vec<Condition>,
    effects: Vec<(String, Effect)>,
    answers: Vec<Answered>,
    made: Made,
    /// An operation that is refused unasked, and why.
    refused: Option<(usize, Reason)>,
}

/// Where a plan is made.
struct Planner<'a> {
    root: &'a str,
    session: i64,
    slots: &'a mut Slots,
    /// Why no key can be put, if none can.
    refusal: Option<&'a str>,
    /// How many nodes were appended.
    appended: i64,
    /// The keys that are made.
    taken: HashSet<String>,
}

impl Planner<'_> {
    fn plan(&mut self, ops: &[Op]) -> Plan {
        let mut plan = Plan::default();
        for (index, op) in ops.iter().enumerate() {
            let answer = match op {
                Op::Check { path, version } => {
                    self.require(&mut plan, index, path, *version);
                    Answered::Nothing
                }
                Op::Readers { path } => {
                    plan.require(index, format!("{path}/x"), Kind::NoneUnder(Reason::NodeExists));
                    Answered::Nothing
                }
                Op::Create { path, data, kind } => self.create(&mut plan, index, (path, data, *kind)),
                Op::Set { path, data, version } => {
                    self.set(&mut plan, index, (path, data, *version));
                    Answered::Set
                }
                Op::Delete { path, version } => {
                    self.delete(&mut plan, (index, ops), path, *version);
                    Answered::Nothing
                }
            };
            plan.answers.push(answer);
            if let Some(why) = self.refusal
                && plan.effects.iter().any(|(_, effect)| matches!(effect, Effect::Put(..)))
            {
                plan.refuse(index, Reason::Other(why.to_owned()));
            }
        }
        plan
    }

    /// Requires that a node is there, and returns its key.
    fn require(&self, plan: &mut Plan, index: usize, path: &str, version: Version) -> String {
        let (key, created) = match Node::of(self.root, path) {
            Node::Child { lock, name } => match place(name) {
                Some((suffix, created)) => {
                    let key = format!("{lock}{suffix}");
                    // Its key may be used again.
                    if self.taken.contains(&key) || !self.slots.may_be_there(lock, suffix, created) {
                        plan.refuse(index, Reason::NoNode);
                    }
                    (key, Some(created))
                }
                // No key is named like this.
                None => (path.to_owned(), None),
            },
            _ => (path.to_owned(), None),
        };
        let kind = match (version, created) {
            (ANY, Some(created)) => Kind::Same(created),
            (ANY, None) => Kind::Present,
            (version, created) => Kind::At(version, created),
        };
        plan.require(index, key.clone(), kind);
        key
    }

    fn create(&mut self, plan: &mut Plan, index: usize, (path, data, kind): (&str, &[u8], NodeKind)) -> Answered {
        let lease = (kind != NodeKind::Persistent).then_some(self.session);
        match Node::of(self.root, path) {
            Node::Directory => {
                plan.refuse(index, Reason::NodeExists);
                Answered::Nothing
            }
            Node::Lock => {
                let prefix = format!("{path}/");
                if plan.conditions.iter().all(|condition| condition.key != prefix) {
                    plan.require(index, prefix, Kind::NoneUnder(Reason::NodeExists));
                }
                Answered::Created(path.to_owned())
            }
            Node::Child { lock, name } => {
                let mut stored = name.to_owned();
                if kind == NodeKind::EphemeralSequential {
                    stored = format!("{name}+{}", self.appended % TOGETHER);
                    self.appended += 1;
                }
                let suffix = self.slots.take(lock, name);
                let key = format!("{lock}{suffix}");
                self.taken.insert(key.clone());
                plan.effects.push((key, Effect::Put(packed(&stored, data), lease)));
                plan.made.created.push((lock.to_owned(), suffix.clone()));
                Answered::Child(lock.to_owned(), stored, suffix)
            }
            Node::Session | Node::Other => {
                plan.require(index, path.to_owned(), Kind::Absent);
                plan.effects.push((path.to_owned(), Effect::Put(data.to_vec(), lease)));
                Answered::Created(path.to_owned())
            }
        }
    }

    fn set(&self, plan: &mut Plan, index: usize, (path, data, version): (&str, &[u8], Version)) {
        // The step has created it.
        if let Some((_, Effect::Put(made, _))) = plan.effects.iter_mut().find(|(key, _)| key == path) {
            *made = data.to_vec();
            return;
        }
        let key = self.require(plan, index, path, version);
        let (data, lease) = match Node::of(self.root, path) {
            Node::Child { name, .. } => (packed(name, data), None),
            Node::Session => (data.to_vec(), Some(self.session)),
            Node::Directory | Node::Lock | Node::Other => (data.to_vec(), None),
        };
        plan.effects.push((key, Effect::Put(data, lease)));
    }

    fn delete(&self, plan: &mut Plan, (index, ops): (usize, &[Op]), path: &str, version: Version) {
        let node = Node::of(self.root, path);
        if matches!(node, Node::Lock) {
            // It is there while it has children, and is deleted with the last one.
            let is_again = |op: &Op| matches!(op, Op::Create { path: other, .. } if other == path);
            if ops[index..].iter().any(is_again) {
                plan.require(index, format!("{path}/"), Kind::NoneUnder(Reason::NotEmpty));
            }
            return;
        }
        let key = self.require(plan, index, path, version);
        if let Node::Child { lock, name } = node
            && let Some((suffix, created)) = place(name)
        {
            plan.made.deleted.push((lock.to_owned(), suffix.to_owned(), created));
        }
        plan.effects.push((key, Effect::Delete));
    }
}

impl Plan {
    fn refuse(&mut self, index: usize, reason: Reason) {
        self.refused.get_or_insert((index, reason));
    }

    fn require(&mut self, index: usize, key: String, kind: Kind) {
        self.conditions.push(Condition { index, key, kind });
    }

    fn compares(&self) -> impl Iterator<Item = Compare> {
        self.conditions.iter().map(Condition::compare)
    }

    fn reads(&self) -> impl Iterator<Item = TxnOp> {
        self.conditions.iter().map(Condition::read)
    }

    fn effects(&self) -> impl Iterator<Item = TxnOp> {
        self.effects.iter().map(|(key, effect)| match effect {
            Effect::Put(data, lease) => {
                let options = lease.map(|lease| PutOptions::new().with_lease(lease));
                TxnOp::put(key.as_str(), data.as_slice(), options)
            }
            Effect::Delete => TxnOp::delete(key.as_str(), None),
        })
    }

    fn txn(&self) -> Txn {
        Txn::new()
            .when(self.compares().collect::<Vec<_>>())
            .and_then(self.effects().collect::<Vec<_>>())
            .or_else(self.reads().collect::<Vec<_>>())
    }

    fn done(&self, revision: i64) -> Vec<Done> {
        let done = self.answers.iter().map(|answer| match answer {
            Answered::Nothing => Done::Nothing,
            Answered::Created(path) => Done::Created(path.clone(), revision),
            Answered::Child(lock, stored, suffix) => {
                Done::Created(format!("{lock}{}", name_of(stored, suffix, revision)), revision)
            }
            Answered::Set => Done::Set(Stat {
                created: 0,
                modified: revision,
                version: revision,
            }),
        });
        done.collect()
    }

    /// The operation that is refused by what was read instead, and why.
    fn refusal(&self, reads: &[TxnOpResponse]) -> Option<(usize, Reason)> {
        self.conditions.iter().zip(reads).find_map(|(condition, read)| {
            let TxnOpResponse::Get(read) = read else { return None };
            Some((condition.index, condition.refusal(read.kvs().first())?))
        })
    }

    /// The same if it is known that one was refused. Another step of the request may have changed what was read.
    fn refused(&self, reads: &[TxnOpResponse]) -> (usize, Reason) {
        let first = self.conditions.first().map_or(0, |condition| condition.index);
        self.refusal(reads).unwrap_or((first, Reason::BadVersion))
    }
}

/// A commit as one transaction: a nested one for each step, or a flat one for a single step.
#[derive(Debug)]
pub struct Commit {
    guards: Plan,
    steps: Vec<Plan>,
}

impl Commit {
    /// A plan over a session's connection to the namespace at `root`. If there is a `refusal`, no key is put.
    pub fn plan(
        (root, session, refusal): (&str, i64, Option<&str>),
        slots: &mut Slots,
        guards: &[Op],
        steps: &[Vec<Op>],
    ) -> Self {
        let mut planner = Planner {
            root,
            session,
            slots,
            refusal,
            appended: 0,
            taken: HashSet::new(),
        };
        Self {
            guards: planner.plan(guards),
            steps: steps.iter().map(|ops| planner.plan(ops)).collect(),
        }
    }

    /// The keys that each step makes and deletes.
    pub fn made(&self) -> impl Iterator<Item = &Made> {
        self.steps.iter().map(|step| &step.made)
    }

    /// The steps that are sent.
    fn sent(&self) -> Vec<&Plan> {
        self.steps.iter().filter(|step| step.refused.is_none()).collect()
    }

    /// Whether any step is sent.
    pub fn is_sent(&self) -> bool {
        self.steps.iter().any(|step| step.refused.is_none())
    }

    /// The answer if no step is sent.
    pub fn unsent(&self) -> Committed {
        Committed {
            guards: Vec::new(),
            steps: self.outcomes(std::iter::empty()),
            number: None,
        }
    }

    /// The outcomes of all steps, from those of the steps that were sent.
    fn outcomes(&self, mut sent: impl Iterator<Item = Outcome>) -> Vec<Outcome> {
        let outcomes = self.steps.iter().map(|step| match step.refused.clone() {
            Some((index, reason)) => Outcome::Refused { index, reason },
            None => sent.next().unwrap_or(Outcome::NotJudged),
        });
        outcomes.collect()
    }

    pub fn txn(&self) -> Txn {
        let sent = self.sent();
        if let [step] = sent.as_slice() {
            let parts = || [&self.guards, *step].into_iter();
            return Txn::new()
                .when(parts().flat_map(Plan::compares).collect::<Vec<_>>())
                .and_then(parts().flat_map(Plan::effects).collect::<Vec<_>>())
                .or_else(parts().flat_map(Plan::reads).collect::<Vec<_>>());
        }
        let nested = sent.iter().map(|step| TxnOp::txn(step.txn()));
        Txn::new()
            .when(self.guards.compares().collect::<Vec<_>>())
            .and_then(self.guards.effects().chain(nested).collect::<Vec<_>>())
            .or_else(self.guards.reads().collect::<Vec<_>>())
    }

    /// What the answer says, and whether each step took effect.
    pub fn answer(&self, answer: &TxnResponse) -> (Result<Committed, Failure>, Vec<bool>) {
        let revision = revision(answer.header());
        let responses = answer.op_responses();
        let sent = self.sent();
        let none = || vec![false; self.steps.len()];
        if !answer.succeeded() {
            let (of_guards, of_step) = responses.split_at(self.guards.conditions.len().min(responses.len()));
            let outcome = match (self.guards.refusal(of_guards), sent.as_slice()) {
                (None, [step]) => {
                    let (index, reason) = step.refused(of_step);
                    Ok(Committed {
                        guards: Vec::new(),
                        steps: self.outcomes(std::iter::once(Outcome::Refused { index, reason })),
                        number: None,
                    })
                }
                (refusal, _) => {
                    let (index, reason) = refusal.unwrap_or((0, Reason::BadVersion));
                    Err(Failure::Refused { index, reason })
                }
            };
            return (outcome, none());
        }
        let guards = self.guards.done(revision);
        let nested = responses.iter().skip(self.guards.effects.len());
        let steps = if let [step] = sent.as_slice() {
            self.outcomes(std::iter::once(Outcome::Done(step.done(revision))))
        } else {
            self.outcomes(nested.zip(&sent).map(|(response, step)| match response {
                TxnOpResponse::Txn(one) if one.succeeded() => Outcome::Done(step.done(revision)),
                TxnOpResponse::Txn(one) => {
                    let (index, reason) = step.refused(&one.op_responses());
                    Outcome::Refused { index, reason }
                }
                _ => Outcome::NotJudged,
            }))
        };
        let fates = steps.iter().map(|step| matches!(step, Outcome::Done(_))).collect();
        let number = Some(revision);
        (Ok(Committed { guards, steps, number }), fates)
    }
}

#[cfg(test)]
mod tests;
