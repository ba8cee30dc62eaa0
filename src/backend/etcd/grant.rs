//! The step that makes a holder, which every way to a grant ends in.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp};
use tokio::time::Instant;

use super::Replica;
use super::calls::Finishing;
use super::history;
use super::keys::{LockKeys, behind};
use super::leases::{Lease, Leases, span};
use super::cluster_client::Failure;
use super::batch_packing::{BatchClass, Step};
use super::record::Claim;
use super::lock_watch;
use super::session::{Session, SessionEpoch};
use super::snapshot::Snapshot;
use super::batches::{Answer, StepBatcher};
use super::view::Entry;
use crate::backend::{Grant, NewClaim, WaitPolicy};
use crate::name::{CallId, ClaimId, LockName, Mode, Secret};

/// How old a lease's last sign of life is at most, for a grant to count from that one.
const JUST_NOW: Duration = Duration::from_millis(50);

/// A grant to be made.
pub struct Granting<'a> {
    pub name: &'a LockName,
    pub lock: &'a LockKeys,
    pub new: &'a NewClaim,
    pub company: BatchClass,
    /// What must be so beside the call's own conditions.
    pub when: Vec<Compare>,
    /// What is done with it.
    pub with: Vec<TxnOp>,
    /// What is read where it is not granted.
    pub otherwise: Vec<TxnOp>,
}

/// What came of it.
pub enum Granted {
    /// It holds.
    Yes(Grant),
    /// A condition was not met.
    No(Answer),
}

/// That no key is there.
pub fn absent(key: impl Into<Vec<u8>>) -> Compare {
    Compare::create_revision(key, CompareOp::Equal, 0)
}

/// That a key is there.
pub fn present(key: impl Into<Vec<u8>>) -> Compare {
    Compare::create_revision(key, CompareOp::Greater, 0)
}

/// That no key begins so. (Etcd walks past every key that began so since its last compaction.)
pub fn none_under(prefix: &str) -> Compare {
    absent(prefix).with_range(behind(prefix))
}

/// That some key begins so. (An empty range is judged as a key that was never made.)
pub fn some_under(prefix: &str) -> Compare {
    present(prefix).with_range(behind(prefix))
}

/// That no key that begins so was made after this revision.
pub fn none_made_after(prefix: &str, revision: i64) -> Compare {
    Compare::create_revision(prefix, CompareOp::Less, revision + 1).with_range(behind(prefix))
}

/// That no key that begins so was changed after this revision.
pub fn none_changed_after(prefix: &str, revision: i64) -> Compare {
    Compare::mod_revision(prefix, CompareOp::Less, revision + 1).with_range(behind(prefix))
}

/// That a key is what it was.
pub fn unchanged(key: impl Into<Vec<u8>>, entry: &Entry) -> Compare {
    Compare::mod_revision(key, CompareOp::Equal, entry.modified)
}

/// That this key is what it was, and the only one that begins so.
pub fn only(prefix: &str, entry: &Entry) -> Compare {
    // An empty range is judged as a key that is not there, which was changed at revision 0.
    unchanged(prefix, entry).with_range(behind(prefix))
}

/// What must be so among the holders for a claim of this mode to be one more.
pub fn guard(lock: &LockKeys, mode: Mode, revision: i64) -> Vec<Compare> {
    match mode {
        Mode::Exclusive => vec![none_under(&lock.holders())],
        Mode::Shared => vec![none_under(&lock.exclusive_holders())],
        Mode::Semaphore { .. } => vec![
            none_under(&lock.exclusive_holders()),
            none_made_after(&lock.other_holders(), revision),
        ],
    }
}

/// The grant of one hold as its client gets it.
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

/// Gives a lease a sign of life, unless it had one just now, after the call came; from when on it
/// counts, or nothing if it is dead.
async fn sign_of_life(
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

/// One transaction of a lock, together with those of others that come at the same time.
async fn ask(turns: &StepBatcher, session: &Session, step: Step) -> Result<Answer, Failure> {
    if step.puts() {
        // Old servers let nested writes pass.
        session.has_space()?;
    }
    let answer = turns.ask(step).await;
    if matches!(answer, Err(Failure::Full(_))) {
        session.is_full();
    }
    answer
}

impl Replica {
    /// One transaction of a lock, together with those of others that come at the same time.
    pub async fn step(
        &self,
        lock: &LockKeys,
        company: BatchClass,
        when: Vec<Compare>,
        then: Vec<TxnOp>,
        otherwise: Vec<TxnOp>,
    ) -> Result<Answer, Failure> {
        let step = Step::new(lock.all(), company, when, then, otherwise);
        ask(&self.turns, &self.session, step).await
    }

    /// A step that makes or adopts a claim for a call. It goes on where the call is dropped.
    pub async fn step_of(
        &self,
        call: CallId,
        lock: &LockKeys,
        company: BatchClass,
        when: Vec<Compare>,
        (then, otherwise): (Vec<TxnOp>, Vec<TxnOp>),
    ) -> Result<Answer, Failure> {
        let step = Step::new(lock.all(), company, when, then, otherwise);
        Finishing::new(self.send(call, None, step)).await
    }

    fn send(
        &self,
        call: CallId,
        lease: Option<Lease>,
        step: Step,
    ) -> impl Future<Output = Result<Answer, Failure>> + Send + use<> {
        let (turns, session) = (Arc::clone(&self.turns), Arc::clone(&self.session));
        let sent = self.calls.begin(call, lease);
        async move {
            let Some(sent) = sent else {
                return Err(Failure::NotSent("the call has left".into()));
            };
            let answer = ask(&turns, &session, step).await;
            sent.answered(&answer);
            answer
        }
    }

    /// That a call of this replica may still take effect.
    pub fn fence(&self, ticket: SessionEpoch, new: &NewClaim) -> Vec<Compare> {
        vec![
            present(self.keys.session(ticket.session)),
            absent(self.keys.mark(new.call)),
        ]
    }

    /// What must be so for a grant of this call, besides.
    fn grant_fence(&self, ticket: SessionEpoch, new: &NewClaim) -> Vec<Compare> {
        let mut when = self.fence(ticket, new);
        when.push(Compare::value(
            self.keys.base(),
            CompareOp::Equal,
            ticket.base.to_string(),
        ));
        when
    }

    /// Makes a claim a holder, if all is as it must be.
    ///
    /// The lease's sign of life goes out beside the transaction, no earlier than what `waited`
    /// counts to; the lease counts from its sending, and both must succeed. A lease that had one just
    /// now, while the call waited, needs no other: `waited` counts to that one.
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
        };
        let key = granting.lock.holder(new.mode.into(), new.id);
        let put = TxnOp::put(key, entry.claim.encode(), Some(PutOptions::new().with_lease(lease.id)));
        let mut when = self.grant_fence(ticket, new);
        when.extend(granting.when.iter().cloned());
        let mut then = vec![put];
        then.extend(self.ends.holds(&entry.claim));
        then.extend(granting.with.iter().cloned());
        let otherwise = granting.otherwise.clone();
        let step = Step::new(granting.lock.all(), granting.company, when, then, otherwise);
        // A hold that joined stands on the lease of the first one, whatever became of that.
        let own = (!new.reentrant).then_some(lease);
        let step = self.send(new.call, own, step);
        let (leases, arrived) = (Arc::clone(&self.leases), new.arrived);
        let (session, calls, call) = (Arc::clone(&self.session), Arc::clone(&self.calls), new.call);
        let granted = Finishing::new(async move {
            let (answer, alive, ()) = tokio::join!(
                step,
                sign_of_life(&leases, lease, arrived, sent),
                leases.keep_memory(lease.memory.filter(|_| lease.used))
            );
            let is_unused = match &answer {
                Ok(answer) => !answer.succeeded,
                Err(failure) => matches!(failure, Failure::NotSent(_)),
            };
            if is_unused {
                // No key is on it: the answer says so, or nothing was sent.
                let alive = alive.clone().ok().flatten().or(lease.alive);
                leases.put_back(Lease { alive, ..lease });
            }
            let is_connected = session.is_connected(ticket);
            if matches!(&answer, Ok(answer) if answer.succeeded) {
                // Whatever of it was lost before found no waiter any more.
                calls.over(call);
                if !is_connected {
                    // It may have come to a store that was restored meanwhile, where its token is an old one and
                    // another key may be on its lease: as if its answer was lost.
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
            return Err(Failure::Unavailable("etcd: the connection broke under a grant".into()));
        }
        entry.created = answer.revision;
        entry.modified = entry.created;
        let waited = alive.saturating_duration_since(new.arrived);
        let grant = grant_of(&entry, new.secret, span(lease.span_s), waited)?;
        self.ends.granted_on(granting.name, &entry, alive);
        self.scenes.granted(granting.name, &entry);
        Ok(Granted::Yes(grant))
    }

    /// Makes a waiting claim that a view has shown within the prefix a holder.
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
            company: BatchClass::Host,
            when,
            with: vec![TxnOp::delete(lock.waiter(new.id), None)],
            otherwise: Snapshot::ops(&self.keys, name, &lock, new, ticket),
        };
        self.granted_or_survey(ticket, &lock, granting).await
    }

    pub async fn granted_or_survey(
        &self,
        ticket: SessionEpoch,
        lock: &LockKeys,
        granting: Granting<'_>,
    ) -> Result<Result<Grant, Snapshot>, Failure> {
        let (name, new) = (granting.name, granting.new);
        match self.grant(ticket, granting).await? {
            Granted::Yes(grant) => {
                self.scenes.part(name, &new.id, new.call);
                Ok(Ok(grant))
            }
            Granted::No(answer) => Ok(Err(self.surveyed((ticket, lock, name, new), &answer).await?)),
        }
    }

    /// Reads all that a call needs to know.
    pub async fn survey(&self, ticket: SessionEpoch, name: &LockName, new: &NewClaim) -> Result<Snapshot, Failure> {
        let lock = self.keys.lock(name);
        let ops = Snapshot::ops(&self.keys, name, &lock, new, ticket);
        let answer = self.link.txn(Txn::new().and_then(ops)).await?;
        self.surveyed((ticket, &lock, name, new), &Answer::of(&answer)).await
    }

    /// What a step has read that was refused. Where a queue is longer than what that shows the lock is read anew, and
    /// after it what else the call needs to know: so nothing that ended a claim of the view is missed.
    pub async fn surveyed(
        &self,
        (ticket, lock, name, new): (SessionEpoch, &LockKeys, &LockName, &NewClaim),
        answer: &Answer,
    ) -> Result<Snapshot, Failure> {
        let survey = Snapshot::read(lock, answer)?;
        // Holders come first, so all of them are in it where a waiter is.
        if survey.is_whole || (is_plain_try(new) && survey.view.waiters.len() > 0) {
            return Ok(survey);
        }
        if is_plain_try(new) {
            let view = self.oldest_holder(lock).await?;
            if view.len() > 0 {
                return Ok(Snapshot { view, ..survey });
            }
        }
        let view = lock_watch::read(&self.link, lock).await?;
        let ops = Snapshot::ops(&self.keys, name, lock, new, ticket);
        let answer = self.link.txn(Txn::new().and_then(ops)).await?;
        Ok(Snapshot {
            view,
            is_whole: true,
            ..Snapshot::read(lock, &Answer::of(&answer))?
        })
    }

    /// Follows what a survey says of the session and the base; whether both are as the ticket says.
    pub fn holds_good(&self, ticket: SessionEpoch, survey: &Snapshot) -> bool {
        if !survey.in_session {
            self.session.is_over(ticket);
        }
        self.session.rebase(survey.base);
        survey.in_session && survey.base == ticket.base
    }

    /// When the next holder's TTL runs out, as far as this replica knows; etcd is asked only for
    /// the first waiter, who is to look then.
    pub async fn frees_in(&self, holder: (ClaimId, i64), is_first: bool) -> Option<Duration> {
        let (claim, lease) = holder;
        match self.ends.left(&claim) {
            None if is_first => self.leases.remaining(lease).await.ok().flatten(),
            left => left,
        }
    }
}

/// Whether the first claim of a lock tells a call all that it needs to know: any keeps it out, and it joins none.
fn is_plain_try(new: &NewClaim) -> bool {
    new.wait_policy == WaitPolicy::Try && new.mode == Mode::Exclusive && !new.retryable && !new.reentrant
}
