//! What the steps on one lock need of its namespace and of the batch: they decide at once, so that nothing is a
//! placeholder, and there is one replica.

use std::time::{Duration, SystemTime};

use super::history::{Ended, Finished};
use super::record;
use super::txn_context::{NamespaceId, PendingMessage, RecordKey, TxnContext};
use crate::backend::Notification;
use crate::backend::cancel_marks::CancelMarks;
use crate::backend::local_clock::NO_BOOT;
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, LockName};
use crate::queue::{Change, Claim, EndedHold, EndedKey, Expiry, Refusal, ReplicaId, StepContext};

/// See the module.
pub struct LockContext<'a> {
    pub txn: &'a mut TxnContext,
    pub namespace: NamespaceId,
    pub lock: &'a LockName,
    /// The number of claims of the namespace, each further hold counted as one, and its limit.
    pub claims: usize,
    pub claim_limit: u32,
    pub is_watched: bool,
    pub finished: &'a mut Finished,
    pub marks: &'a mut CancelMarks<Duration>,
}

impl LockContext<'_> {
    /// The entry of a lease in the expiry table.
    fn expiry_entry(&self, ends: Expiry, position: u64) -> (Duration, NamespaceId, LockName, u64) {
        (ends.known(), self.namespace, self.lock.clone(), position)
    }
}

impl StepContext for LockContext<'_> {
    fn now(&self) -> Duration {
        self.txn.now
    }

    fn wall(&self) -> SystemTime {
        self.txn.wall
    }

    fn replica(&self) -> ReplicaId {
        ReplicaId::default()
    }

    fn next_token(&mut self) -> Option<FencingToken> {
        self.txn.next_token()
    }

    fn expiry(&self, ttl: Duration) -> Expiry {
        Expiry::at(self.txn.now + ttl)
    }

    fn store_limit_reached(&self) -> Option<Refusal> {
        let limit = self.claim_limit;
        (self.claims >= limit as usize).then_some(Refusal::StoreFull { limit })
    }

    fn is_cancelled(&self, call: &CallId) -> bool {
        self.marks.contains(call)
    }

    fn cancel(&mut self, call: CallId) {
        self.marks.insert(call, self.txn.now);
    }

    fn ended(&mut self, key: EndedKey<'_>) -> Option<Cause> {
        let ended = match key {
            EndedKey::Request(claim) => self.finished.by_id(&claim.id),
            EndedKey::Waiter(claim) => self.finished.by_secret(&claim.secret),
            EndedKey::Lease(lease) => {
                let ended = self.finished.by_secret(&lease.secret);
                ended.filter(|ended| ended.token == lease.token)
            }
            EndedKey::Token(token) => self.finished.by_token(self.lock, token),
        };
        ended.filter(|ended| ended.lock == *self.lock).map(|ended| ended.cause)
    }

    fn remember(&mut self, hold: EndedHold) {
        let Some(cause) = record::cause_record(hold.cause) else {
            return;
        };
        let ended = Ended {
            lock: self.lock.clone(),
            token: hold.token,
            cause: hold.cause,
            id: hold.id,
        };
        let record = self.txn.is_durable();
        let record = record.then(|| record::write_finished(&hold.secret, &ended, cause));
        let position = self.finished.insert(hold.secret, ended, self.txn.now);
        if let Some(record) = record {
            self.txn.put(RecordKey::Finished(self.namespace, position), || record);
        }
        while let Some(position) = self.finished.pop_past(hold.limit as usize) {
            self.txn.delete(RecordKey::Finished(self.namespace, position));
        }
    }

    fn notify(&mut self, _replica: ReplicaId, claim: ClaimId) {
        let next = Notification::Next(self.lock.clone(), claim);
        self.txn.notify(self.namespace, next);
    }

    fn is_watched(&self) -> bool {
        self.is_watched
    }

    fn changed(&mut self, change: Change) {
        self.txn.changes += 1;
        let message = PendingMessage::Change(self.namespace, self.lock.clone(), self.txn.changes, change);
        self.txn.outbox.push(message);
    }

    /// Only holders are in the file.
    fn saved(&mut self, position: u64, claim: &Claim) {
        if let Some(holding) = claim.holding().filter(|_| self.txn.is_durable()) {
            let key = RecordKey::Holder(self.namespace, self.lock.clone(), position);
            self.txn.put(key, || record::write_holder(claim, holding));
        }
    }

    fn expiry_moved(&mut self, position: u64, before: Option<Expiry>, after: Expiry) {
        if let Some(before) = before {
            let before = self.expiry_entry(before, position);
            self.txn.expiries.remove(&before);
            self.txn.set_ends_of(NO_BOOT);
        }
        let after = self.expiry_entry(after, position);
        self.txn.expiries.insert(after);
    }

    fn removed(&mut self, position: u64, claim: &Claim) {
        if let Some(holding) = claim.holding() {
            let expiry = self.expiry_entry(holding.ends, position);
            self.txn.expiries.remove(&expiry);
            let key = RecordKey::Holder(self.namespace, self.lock.clone(), position);
            self.txn.delete(key);
        }
    }
}
