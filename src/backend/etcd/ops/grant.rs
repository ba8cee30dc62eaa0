//! The transaction that makes a holder. Every grant ends in it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp};
use tokio::time::Instant;

use super::Replica;
use crate::backend::etcd::cluster::{Failure, Finishing};
use crate::backend::etcd::data::keys::LockKeys;
use crate::backend::etcd::data::record::Claim;
use crate::backend::etcd::data::snapshot::Snapshot;
use crate::backend::etcd::data::view::{Entry, View};
use crate::backend::etcd::lease::base::Base;
use crate::backend::etcd::lease::session::{Session, SessionEpoch};
use crate::backend::etcd::lease::{Lease, Leases, span};
use crate::backend::etcd::ops::history;
use crate::backend::etcd::txn::conditions::{absent, guard, present, unchanged};
use crate::backend::etcd::txn::packing::{BatchClass, Step};
use crate::backend::etcd::txn::{Answer, StepBatcher};
use crate::backend::{Grant, NewClaim, WaitPolicy};
use crate::name::{CallId, ClaimId, LockName, Mode, Secret};

/// The greatest age of a lease's last keep-alive that a grant may count from.
const JUST_NOW: Duration = Duration::from_millis(50);

/// A grant to be made.
pub struct Granting<'a> {
    pub name: &'a LockName,
    pub lock: &'a LockKeys,
    pub new: &'a NewClaim,
    pub class: BatchClass,
    /// Its conditions, in addition to those of [`Replica::fence`].
    pub when: Vec<Compare>,
    /// The revision R, if the condition "no semaphore claim was granted after R" is among them.
    pub judged_at: Option<i64>,
    /// Further writes of the same transaction.
    pub with: Vec<TxnOp>,
    /// The reads if it is not granted.
    pub otherwise: Vec<TxnOp>,
}

/// The result of a grant.
pub enum Granted {
    /// It holds.
    Yes(Grant),
    /// A condition was not met.
    No(Answer),
}

/// The grant of one hold, as its client receives it.
pub fn grant_of(entry: &Entry, secret: Secret, ttl: Duration, waited: Duration) -> Result<Grant, Failure> {
    let token = entry.token();
    Ok(Grant {
        claim: entry.id,
        kind: entry.claim.mode.into(),
        secret,
        token: token.ok_or_else(|| Failure::Refused("etcd: a holder has no token".into()))?,
        owner: entry.claim.owner.clone(),
        ttl,
        waited,
        holds: u32::try_from(entry.claim.holds.len()).unwrap_or(u32::MAX),
    })
}

/// Sends a keep-alive for a lease, unless one was sent within [`JUST_NOW`] and after the call's arrival. Returns the
/// time that the lease counts from, or None if it is dead.
async fn keep_alive_for_grant(
    leases: &Leases,
    lease: Lease,
    arrived: Instant,
    sent: Instant,
) -> Result<Option<Instant>, Failure> {
    if let Some(alive) = lease
        .alive
        .filter(|alive| *alive >= arrived && *alive + JUST_NOW >= sent)
    {
        return Ok(Some(alive.min(sent)));
    }
    Ok(leases.keep_alive(lease.id).await?.then_some(sent))
}

/// Executes a step, in a batch with other steps.
async fn ask(batches: &StepBatcher, session: &Session, step: Step) -> Result<Answer, Failure> {
    if step.puts() {
        // Some versions of etcd accept nested writes beyond their space limit.
        session.has_space()?;
    }
    let answer = batches.ask(step).await;
    if matches!(answer, Err(Failure::Full(_))) {
        session.is_full();
    }
    answer
}

impl Replica {
    /// Executes a transaction on a lock, in a batch with other steps.
    pub async fn step(
        &self,
        lock: &LockKeys,
        class: BatchClass,
        when: Vec<Compare>,
        then: Vec<TxnOp>,
        otherwise: Vec<TxnOp>,
    ) -> Result<Answer, Failure> {
        let step = Step::new(lock.all(), class, when, then, otherwise);
        ask(&self.batches, &self.session, step).await
    }

    /// Executes a step that makes or adopts a claim for a call. It continues if the call is dropped.
    pub async fn step_of(
        &self,
        call: CallId,
        lock: &LockKeys,
        class: BatchClass,
        when: Vec<Compare>,
        (then, otherwise): (Vec<TxnOp>, Vec<TxnOp>),
    ) -> Result<Answer, Failure> {
        let step = Step::new(lock.all(), class, when, then, otherwise);
        Finishing::new(self.send(call, None, step)).await
    }

    fn send(
        &self,
        call: CallId,
        lease: Option<Lease>,
        step: Step,
    ) -> impl Future<Output = Result<Answer, Failure>> + Send + use<> {
        let (batches, session) = (Arc::clone(&self.batches), Arc::clone(&self.session));
        let sent = self.calls.begin(call, lease);
        async move {
            let Some(sent) = sent else {
                return Err(Failure::NotSent("the call was cancelled".into()));
            };
            let answer = ask(&batches, &session, step).await;
            sent.answered(&answer);
            answer
        }
    }

    /// The conditions under which a step of a call of this replica may still take effect.
    pub fn fence(&self, ticket: SessionEpoch, new: &NewClaim) -> Vec<Compare> {
        vec![
            present(self.keys.sessions.session(ticket.session)),
            absent(self.keys.mark(new.call)),
        ]
    }

    /// The same for a grant.
    fn grant_fence(&self, ticket: SessionEpoch, new: &NewClaim) -> Vec<Compare> {
        let mut when = self.fence(ticket, new);
        when.push(Compare::value(
            self.keys.sessions.base(),
            CompareOp::Equal,
            ticket.base.to_string(),
        ));
        when
    }

    /// Makes a claim a holder, if all conditions are met.
    ///
    /// The lease's keep-alive is sent concurrently with the transaction, and both must succeed. The lease counts from
    /// the sending of the keep-alive, which is also the end of `waited`. A lease whose last keep-alive was sent within
    /// [`JUST_NOW`], while the call waited, needs no other: then both count from that one.
    pub async fn grant(&self, ticket: SessionEpoch, granting: Granting<'_>) -> Result<Granted, Failure> {
        let sent = Instant::now();
        let ttl = granting.new.ttl.get();
        let remembered = history::is_remembered(granting.new);
        let lease = match self.leases.take(ttl, remembered).await {
            Err(Failure::Full(reason)) => {
                self.session.is_full();
                return Err(Failure::Full(reason));
            }
            lease => lease?,
        };
        match self.grant_on(ticket, &granting, lease, sent).await {
            // Nothing was written: a pooled lease had ended.
            Err(Failure::LeaseGone) if lease.used => {
                let lease = self.leases.make(ttl, remembered).await?;
                self.grant_on(ticket, &granting, lease, sent).await
            }
            answer => answer,
        }
    }

    async fn grant_on(
        &self,
        ticket: SessionEpoch,
        granting: &Granting<'_>,
        lease: Lease,
        sent: Instant,
    ) -> Result<Granted, Failure> {
        let new = granting.new;
        let mut entry = Entry {
            id: new.id,
            claim: Claim {
                base: ticket.base,
                span_s: lease.span_s,
                memory: lease.memory.unwrap_or_default(),
                ..Claim::of(new)
            },
            created: 0,
            modified: 0,
            lease: lease.id,
            is_earlier: false,
        };
        let key = granting.lock.holder(new.mode.into(), new.id);
        let put = TxnOp::put(key, entry.claim.encode(), Some(PutOptions::new().with_lease(lease.id)));
        let mut when = self.grant_fence(ticket, new);
        when.extend(granting.when.iter().cloned());
        let mut then = vec![put];
        then.extend(self.history.holds(&entry.claim));
        then.extend(granting.with.iter().cloned());
        let otherwise = granting.otherwise.clone();
        let step = Step::new(granting.lock.all(), granting.class, when, then, otherwise);
        // Another hold may have joined a reentrant claim on this lease, even if the step's outcome is unknown.
        let own = (!new.reentrant).then_some(lease);
        let step = self.send(new.call, own, step);
        let (leases, arrived) = (Arc::clone(&self.leases), new.arrived);
        let (session, calls, call) = (Arc::clone(&self.session), Arc::clone(&self.calls), new.call);
        let granted = Finishing::new(async move {
            let (answer, alive, ()) = tokio::join!(
                step,
                keep_alive_for_grant(&leases, lease, arrived, sent),
                leases.keep_memory(lease.memory.filter(|_| lease.used))
            );
            let is_unused = match &answer {
                Ok(answer) => !answer.succeeded,
                Err(failure) => matches!(failure, Failure::NotSent(_)),
            };
            if is_unused {
                // No key is attached to the lease: the step was refused, or nothing was sent.
                let alive = alive.clone().ok().flatten().or(lease.alive);
                leases.put_back(Lease { alive, ..lease });
            }
            let is_connected = session.is_connected(ticket);
            if matches!(&answer, Ok(answer) if answer.succeeded) {
                // Earlier steps of unknown outcome found no waiter any more.
                calls.over(call);
                if !is_connected {
                    // The step may have reached a store that was restored meanwhile, where its token may have been used
                    // and another key may be on its lease. So its outcome counts as unknown.
                    calls.doubt(call, own);
                }
            }
            (answer, alive, is_connected)
        });
        let (answer, alive, is_connected) = granted.await;
        let answer = answer?;
        if !answer.succeeded {
            return Ok(Granted::No(answer));
        }
        let Some(alive) = alive? else {
            return Err(Failure::Unavailable("etcd: a lease ended with its grant".into()));
        };
        if !is_connected {
            return Err(Failure::Unavailable("etcd: the connection broke during a grant".into()));
        }
        entry.created = answer.revision;
        entry.modified = entry.created;
        let waited = alive.saturating_duration_since(new.arrived);
        let grant = grant_of(&entry, new.secret, span(lease.span_s), waited)?;
        self.history.granted_on(granting.name, &entry, alive);
        self.lock_watches.granted(granting.name, &entry, granting.judged_at);
        Ok(Granted::Yes(grant))
    }

    /// Makes a waiting claim a holder, if it was within the prefix of a view.
    pub async fn grant_waiting(
        &self,
        ticket: SessionEpoch,
        name: &LockName,
        new: &NewClaim,
        seen: (&Entry, i64),
    ) -> Result<Result<Grant, Snapshot>, Failure> {
        let lock = self.keys.lock(name);
        let (entry, revision) = seen;
        let mut when = guard(&lock, new.mode, revision);
        when.push(unchanged(lock.waiter(new.id), entry));
        let granting = Granting {
            name,
            lock: &lock,
            new,
            class: BatchClass::Host,
            when,
            judged_at: matches!(new.mode, Mode::Semaphore { .. }).then_some(revision),
            with: vec![TxnOp::delete(lock.waiter(new.id), None)],
            otherwise: Snapshot::ops(&self.keys, name, &lock, new, ticket),
        };
        self.granted_or_snapshot(ticket, &lock, granting).await
    }

    pub async fn granted_or_snapshot(
        &self,
        ticket: SessionEpoch,
        lock: &LockKeys,
        granting: Granting<'_>,
    ) -> Result<Result<Grant, Snapshot>, Failure> {
        let (name, new) = (granting.name, granting.new);
        match self.grant(ticket, granting).await? {
            Granted::Yes(grant) => {
                self.lock_watches.part(name, &new.id, new.call);
                Ok(Ok(grant))
            }
            Granted::No(answer) => Ok(Err(self.snapshot_of((ticket, lock, name, new), &answer).await?)),
        }
    }

    /// Reads a snapshot for a call.
    pub async fn read_snapshot(
        &self,
        ticket: SessionEpoch,
        name: &LockName,
        new: &NewClaim,
    ) -> Result<Snapshot, Failure> {
        let lock = self.keys.lock(name);
        let ops = Snapshot::ops(&self.keys, name, &lock, new, ticket);
        let answer = self.link.txn(Txn::new().and_then(ops)).await?;
        self.snapshot_of((ticket, &lock, name, new), &Answer::of(&answer)).await
    }

    /// The snapshot that a refused step has read. If the queue is longer than that snapshot, the whole lock is read,
    /// and after it the rest of the snapshot: so the end of no claim of the view is missed.
    pub async fn snapshot_of(
        &self,
        (ticket, lock, name, new): (SessionEpoch, &LockKeys, &LockName, &NewClaim),
        answer: &Answer,
    ) -> Result<Snapshot, Failure> {
        let snapshot = Snapshot::read(lock, answer.read_at, &answer.reads)?;
        // Holders are read first, so a snapshot with a waiter has all of them.
        if snapshot.is_whole || (is_plain_try(new) && snapshot.view.waiters.len() > 0) {
            return Ok(snapshot);
        }
        if is_plain_try(new) {
            let view = self.oldest_holder(lock).await?;
            if view.len() > 0 {
                return Ok(Snapshot { view, ..snapshot });
            }
        }
        let view = View::fetch(&self.link, lock).await?;
        let ops = Snapshot::ops(&self.keys, name, lock, new, ticket);
        let answer = Answer::of(&self.link.txn(Txn::new().and_then(ops)).await?);
        Ok(Snapshot {
            view,
            is_whole: true,
            ..Snapshot::read(lock, answer.read_at, &answer.reads)?
        })
    }

    /// Notes the session and the base of a snapshot. True if both are those of the ticket.
    pub fn holds_good(&self, ticket: SessionEpoch, snapshot: &Snapshot) -> bool {
        if !snapshot.in_session {
            self.session.is_over(ticket);
        }
        self.session.rebase(ticket, snapshot.base);
        snapshot.in_session && snapshot.base == Base::Open(ticket.base)
    }

    /// The time until the next holder's TTL expires, as far as this replica knows. Etcd is queried only for the first
    /// waiter, which retries at that time.
    pub async fn frees_in(&self, holder: (ClaimId, i64), is_first: bool) -> Option<Duration> {
        let (claim, lease) = holder;
        match self.history.left(&claim) {
            None if is_first => self.leases.remaining(lease).await.ok().flatten(),
            left => left,
        }
    }
}

/// Whether any one claim of a lock decides a call: each blocks it, and it can join none.
fn is_plain_try(new: &NewClaim) -> bool {
    new.wait_policy == WaitPolicy::Try && new.mode == Mode::Exclusive && !new.retryable && !new.reentrant
}
