//! The transaction that makes a holder. Every grant ends in it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, TxnOp};
use tokio::time::Instant;

use super::{Replica, history};
use crate::backend::etcd::cluster::{Failure, Finishing};
use crate::backend::etcd::data::conditions::{guard, put_on, unchanged};
use crate::backend::etcd::data::key_suffixes::KeySuffix;
use crate::backend::etcd::data::keys::LockKeys;
use crate::backend::etcd::data::record::Claim;
use crate::backend::etcd::data::snapshot::{Call, Snapshot};
use crate::backend::etcd::data::view::{Entry, View};
use crate::backend::etcd::lease::base::Base;
use crate::backend::etcd::lease::session::Session;
use crate::backend::etcd::lease::{Alive, Lease, LeasePool, ttl_of};
use crate::backend::etcd::txn::packing::{BatchClass, SharedCondition, Step};
use crate::backend::etcd::txn::{Answer, StepBatcher};
use crate::backend::{Grant, NewClaim, WaitPolicy};
use crate::clock::since_boot;
use crate::name::{Mode, Secret};

/// How soon etcd is asked again for the time that a holder's lease lives.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// A grant to be made, of a call's claim.
pub struct Granting {
    pub suffix: KeySuffix,
    /// The claim is made by this step. Otherwise it waits under the key suffix.
    pub is_new: bool,
    /// Its conditions, in addition to the token base.
    pub when: Vec<Compare>,
    /// It must not take effect after the end of the call's session.
    pub in_session: bool,
    /// The revision R, if the condition "no semaphore claim was granted after R" is among them.
    pub decided_at: Option<i64>,
    /// Further writes of the same transaction.
    pub with: Vec<TxnOp>,
    /// The reads if it is not granted.
    pub otherwise: Vec<TxnOp>,
}

/// Why a step of a call has no outcome. Nothing was written, unless it failed with an unknown outcome.
pub enum Retry {
    /// The lock, or what else decides the call, is not what the step was judged by. This is what is there now.
    Changed(Box<Snapshot>),
    /// The lock must be read again, under the current session.
    Read,
    Failed(Failure),
}

impl From<Failure> for Retry {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The grant of one hold, as its client receives it.
pub fn grant_of(entry: &Entry, secret: Secret, ttl: Duration, waited: Duration) -> Result<Grant, Failure> {
    let hold = entry.claim.holds.iter().find(|hold| hold.secret == secret);
    let claim = hold.map_or_else(|| entry.suffix.to_claim(), |hold| entry.claim_in_lease_id(hold));
    let (token, holds) = (entry.holder_token()?, entry.claim.holds.len());
    Ok(entry.claim.terms.grant((claim, secret), token, (ttl, waited), holds))
}

/// Sends keep-alives for a lease and for that of its request records, each unless it has its time from the last one.
/// Returns the times of the last ones, or None if one is dead.
async fn keep_alive_for_grant(leases: &LeasePool, lease: Lease) -> Result<Option<Alive>, Failure> {
    let now = since_boot();
    let request_lease = lease
        .request_lease
        .filter(|request_lease| !request_lease.outlives_a_grant(now));
    let of_requests = leases.keep_request_lease_alive(request_lease.map(|request_lease| request_lease.id));
    let of_lease = async {
        if lease.outlives_a_grant(now) {
            return Ok(Some(lease.alive));
        }
        Ok(leases.keep_alive(lease.id).await?.then_some(Some(now)))
    };
    let (request_lease_alive, alive) = tokio::try_join!(of_requests, of_lease)?;
    let of_requests = match request_lease {
        Some(_) => Some(now),
        None => lease.request_lease.and_then(|request_lease| request_lease.alive),
    };
    Ok(alive.filter(|_| request_lease_alive).map(|lease| Alive {
        lease,
        request_lease: of_requests,
    }))
}

impl Replica {
    /// Executes a transaction on a lock that grants nothing, in a batch with other steps.
    pub async fn step(&self, lock: &LockKeys, when: Vec<Compare>, then: Vec<TxnOp>) -> Result<Answer, Failure> {
        let step = Step::new(lock.all(), BatchClass::Other, when, then, Vec::new());
        ask(&self.batches, &self.session, step).await
    }

    /// Executes a step that makes or adopts a claim for a call, and reads [`Call::reads`] if it is refused. It continues
    /// if the call is dropped. `made` is the key suffix of a claim that it makes.
    pub async fn step_of(&self, call: &Call<'_>, step: Step, made: Option<KeySuffix>) -> Result<Answer, Retry> {
        let answer = Finishing::new(self.send(call.new, None, step, made)).await?;
        match answer.succeeded {
            true => Ok(answer),
            false => Err(self.refused(call, &answer).await?),
        }
    }

    /// What a refused step has read, or what is there now if it has read nothing.
    async fn refused(&self, call: &Call<'_>, answer: &Answer) -> Result<Retry, Failure> {
        self.refusals.note_refusal();
        let snapshot = match answer.reads.is_empty() {
            true => self.snapshot(call).await?,
            false => self.snapshot_of(call, answer).await?,
        };
        Ok(Retry::Changed(Box::new(snapshot)))
    }

    fn send(
        &self,
        new: &NewClaim,
        lease: Option<Lease>,
        step: Step,
        made: Option<KeySuffix>,
    ) -> impl Future<Output = Result<Answer, Failure>> + Send + use<> {
        let (batches, session) = (Arc::clone(&self.batches), Arc::clone(&self.session));
        let (call, suffixes) = (new.call, Arc::clone(&self.suffixes));
        let sent = self.calls.begin(call, lease);
        if let Some(suffix) = made {
            suffixes.sending(call, suffix);
        }
        async move {
            let answer = match sent {
                None => Err(Failure::NotSent("the call was cancelled".into())),
                Some(sent) => {
                    let answer = ask(&batches, &session, step).await;
                    sent.answered(&answer);
                    answer
                }
            };
            let wrote_nothing = match &answer {
                Ok(answer) => !answer.succeeded,
                Err(failure) => failure.is_without_effect(),
            };
            if made.is_some() && wrote_nothing {
                suffixes.not_made(call);
            }
            answer
        }
    }

    /// Makes a claim a holder, if all conditions are met. The inner error is the answer to a step whose conditions were
    /// not met.
    ///
    /// The TTL counts from here, which is also the end of `waited`. Unless the lease [outlives the
    /// grant](Lease::outlives_a_grant), a keep-alive is sent concurrently with the transaction, and both must succeed.
    pub async fn grant(&self, call: &Call<'_>, granting: Granting) -> Result<Result<Grant, Answer>, Failure> {
        let sent = Instant::now();
        let ttl = call.new.ttl.get();
        let remembered = history::is_remembered(call.new);
        let lease = match self.leases.take(ttl, remembered).await {
            Err(Failure::Full(reason)) => {
                self.session.note_full();
                return Err(Failure::Full(reason));
            }
            lease => lease?,
        };
        match self.grant_on(call, &granting, lease, sent).await {
            // Nothing was written: a pooled lease had ended.
            Err(Failure::LeaseGone) if lease.used => {
                let lease = self.leases.make(ttl, remembered).await?;
                self.grant_on(call, &granting, lease, sent).await
            }
            answer => answer,
        }
    }

    async fn grant_on(
        &self,
        call: &Call<'_>,
        granting: &Granting,
        lease: Lease,
        sent: Instant,
    ) -> Result<Result<Grant, Answer>, Failure> {
        let (new, epoch) = (call.new, call.epoch);
        let claim = Claim {
            base: epoch.base,
            granted_ttl_s: lease.granted_ttl_s,
            request_lease: lease.request_lease.map_or(0, |request_lease| request_lease.id),
            ..Claim::of(new)
        };
        let mut entry = Entry {
            suffix: granting.suffix,
            claim,
            created: 0,
            modified: 0,
            lease: lease.id,
        };
        let mut then = vec![put_on(lease.id, call.holder(entry.suffix), entry.claim.encode())];
        then.extend(self.history.holds(&entry));
        then.extend(granting.with.iter().cloned());
        let mut step = Step::new(
            call.lock.all(),
            BatchClass::Grant,
            granting.when.clone(),
            then,
            granting.otherwise.clone(),
        );
        let base = SharedCondition::Value(call.keys.sessions.base(), epoch.base.to_string());
        let session = granting.in_session.then(|| SharedCondition::Present(call.session()));
        step.shared = [base].into_iter().chain(session).collect();
        // Another hold may have joined a reentrant claim on this lease, even if the step's outcome is unknown.
        let own = (!new.reentrant).then_some(lease);
        let step = self.send(new, own, step, granting.is_new.then_some(entry.suffix));
        let leases = Arc::clone(&self.leases);
        let (session, calls, id) = (Arc::clone(&self.session), Arc::clone(&self.calls), new.call);
        let suffixes = Arc::clone(&self.suffixes);
        let granted = Finishing::new(async move {
            let (answer, alive) = tokio::join!(step, keep_alive_for_grant(&leases, lease));
            let is_unused = match &answer {
                Ok(answer) => !answer.succeeded,
                Err(failure) => matches!(failure, Failure::NotSent(_)),
            };
            if is_unused {
                // No key is attached to the lease: the step was refused, or nothing was sent.
                leases.put_back(lease.kept_alive(alive.clone().ok().flatten()));
            }
            let is_connected = session.is_connected(epoch);
            if matches!(&answer, Ok(answer) if answer.succeeded) {
                // Earlier steps of unknown outcome found no waiter any more.
                calls.over(id);
                suffixes.end(id);
                if !is_connected {
                    // The step may have reached a store that was restored meanwhile, where its token may have been used
                    // and another key may be on its lease. So its outcome counts as unknown.
                    calls.mark_unknown(id, own);
                }
            }
            (answer, alive, is_connected)
        });
        let (answer, alive, is_connected) = granted.await;
        let answer = answer?;
        if !answer.succeeded {
            return Ok(Err(answer));
        }
        let Some(alive) = alive? else {
            return Err(Failure::Unavailable("etcd: a lease ended with its grant".into()));
        };
        if !is_connected {
            return Err(Failure::Unavailable("etcd: the connection broke during a grant".into()));
        }
        (entry.created, entry.modified) = (answer.revision, answer.revision);
        let waited = sent.saturating_duration_since(new.arrived);
        let grant = grant_of(&entry, new.secret, ttl_of(lease.granted_ttl_s), waited)?;
        self.history.note(call.name, &entry, Some(alive));
        self.locks.granted(call.name, &entry, granting.decided_at);
        Ok(Ok(grant))
    }

    /// Makes a waiting claim a holder, if it was within the prefix of the view with this revision.
    ///
    /// A waiter of this call needs neither the fence's session nor its mark: it lives on that session, and a call that was
    /// undone has no waiter.
    pub async fn grant_waiting(&self, call: &Call<'_>, waiter: &Entry, revision: i64) -> Result<Grant, Retry> {
        let key = call.lock.waiter(waiter.suffix);
        let mut when = guard(&call.lock, call.new.mode, revision);
        when.push(unchanged(key.clone(), waiter));
        let is_another_calls = !waiter.waits_for(call.new);
        when.extend(is_another_calls.then(|| call.not_cancelled()));
        let granting = Granting {
            suffix: waiter.suffix,
            is_new: false,
            when,
            in_session: is_another_calls,
            decided_at: matches!(call.new.mode, Mode::Semaphore { .. }).then_some(revision),
            with: vec![TxnOp::delete(key, None)],
            otherwise: self.refusals.reads(call),
        };
        self.granted(call, granting).await
    }

    /// Makes a claim a holder. Its `otherwise` must be that of [`RecentRefusals`](super::refusals::RecentRefusals).
    pub async fn granted(&self, call: &Call<'_>, granting: Granting) -> Result<Grant, Retry> {
        match self.grant(call, granting).await? {
            Ok(grant) => {
                self.refusals.note_grant();
                self.locks.remove_waiter(call.name, &call.new.id, call.new.call);
                Ok(grant)
            }
            Err(answer) => Err(self.refused(call, &answer).await?),
        }
    }

    /// Reads a snapshot for a call.
    pub async fn snapshot(&self, call: &Call<'_>) -> Result<Snapshot, Failure> {
        let answer = Answer::read(&self.link, call.reads()).await?;
        self.snapshot_of(call, &answer).await
    }

    /// The snapshot that a refused step has read. If the queue is longer than that snapshot, the whole lock is read, and
    /// the rest of the snapshot at the same revision: the record of a request and its claim belong together.
    async fn snapshot_of(&self, call: &Call<'_>, answer: &Answer) -> Result<Snapshot, Failure> {
        let snapshot = Snapshot::read(call, answer.read_at, &answer.reads)?;
        // Holders are read first, so a snapshot with a waiter has all of them.
        if snapshot.is_whole || (is_plain_try(call.new) && snapshot.view.waiters.len() > 0) {
            return Ok(snapshot);
        }
        if is_plain_try(call.new) {
            let view = self.oldest_holder(&call.lock).await?;
            if view.len() > 0 {
                return Ok(Snapshot { view, ..snapshot });
            }
        }
        let view = View::fetch(&self.link, &call.lock).await?;
        let answer = Answer::read(&self.link, call.reads_at(view.revision)).await?;
        let rest = Snapshot::read(call, view.revision, &answer.reads)?;
        Ok(Snapshot {
            view,
            is_whole: true,
            ..rest
        })
    }

    /// Notes the session and the base of a snapshot. True if both are those of the call's epoch.
    pub fn holds_good(&self, call: &Call<'_>, snapshot: &Snapshot) -> bool {
        if !snapshot.in_session {
            self.session.note_ended(call.epoch);
        }
        self.session.rebase(call.epoch, snapshot.base);
        snapshot.in_session && snapshot.base == Base::Open(call.epoch.base)
    }

    /// The time until the next holder's TTL expires, as far as this replica knows. Etcd is queried only for the first
    /// waiter, which retries at that time.
    pub async fn frees_in(&self, (suffix, lease): (KeySuffix, i64), is_first: bool) -> Option<Duration> {
        match self.history.left(suffix) {
            None if is_first => {
                let left = self.leases.remaining(lease).await.ok().flatten()?;
                // Etcd rounds down to whole seconds; the end of the lease is an event.
                Some(left.max(ASK_AGAIN))
            }
            left => left,
        }
    }
}

/// Executes a step, in a batch with other steps.
async fn ask(batches: &Arc<StepBatcher>, session: &Session, step: Step) -> Result<Answer, Failure> {
    if step.puts() {
        // Some versions of etcd accept nested writes beyond their space limit.
        session.has_space()?;
    }
    let answer = batches.ask(step).await;
    if matches!(answer, Err(Failure::Full(_))) {
        session.note_full();
    }
    answer
}

/// Whether any one claim of a lock decides a call: each blocks it, and it can join none.
fn is_plain_try(new: &NewClaim) -> bool {
    new.wait_policy == WaitPolicy::NoWait && new.mode == Mode::Exclusive && !new.retryable && !new.reentrant
}
