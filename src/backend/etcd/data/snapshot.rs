//! A call on a lock, and the lock with the other keys that the call depends on, read at one revision.

use etcd_client::{Compare, GetOptions, GetResponse, KeyValue, TxnOp};

use super::conditions::absent;
use super::key_suffixes::KeySuffix;
use super::keys::{Keys, LockKeys};
use super::record::{End, Request};
use super::view::View;
use crate::backend::NewClaim;
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::lease::base::Base;
use crate::backend::etcd::lease::session::SessionEpoch;
use crate::claim::Cause;
use crate::name::LockName;

/// How many claims of a lock a step reads at most, the holders first. A queue may be long, and many steps are answered
/// in one message.
pub const FIRST_CLAIMS: i64 = 8;

/// A call that acquires or promotes a claim, and the session epoch that its next step is sent under.
pub struct Call<'a> {
    pub keys: &'a Keys,
    pub name: &'a LockName,
    pub lock: LockKeys,
    pub new: &'a NewClaim,
    pub epoch: SessionEpoch,
}

impl<'a> Call<'a> {
    pub fn new(keys: &'a Keys, name: &'a LockName, new: &'a NewClaim, epoch: SessionEpoch) -> Self {
        let lock = keys.lock(name);
        Self {
            keys,
            name,
            lock,
            new,
            epoch,
        }
    }

    /// The key of its claim under this key suffix, once that holds.
    pub fn holder(&self, suffix: KeySuffix) -> String {
        self.lock.holder(self.new.mode.into(), suffix)
    }

    /// The key of its request.
    pub fn request(&self) -> String {
        self.keys.request(self.new.id)
    }

    /// The call has no cancel mark.
    pub fn not_cancelled(&self) -> Compare {
        absent(self.keys.mark(self.new.call))
    }

    /// The key of the session that its step is sent under. A step of the call that writes nothing on the session must not
    /// take effect without it, because the cancel mark is gone with the session.
    pub fn session(&self) -> String {
        self.keys.sessions.session(self.epoch.session)
    }

    /// The request was not used yet. None for a call without a request id.
    pub fn request_is_new(&self) -> Option<Compare> {
        self.new.retryable.then(|| absent(self.request()))
    }

    /// The reads for [`Snapshot::read`].
    pub fn reads(&self) -> Vec<TxnOp> {
        self.reads_at(0)
    }

    /// The same at a revision; 0 for the present one.
    pub fn reads_at(&self, revision: i64) -> Vec<TxnOp> {
        let whole = || Some(GetOptions::new().with_revision(revision));
        let keys_only = || Some(GetOptions::new().with_revision(revision).with_keys_only());
        vec![
            TxnOp::get(self.session(), keys_only()),
            TxnOp::get(self.keys.sessions.base(), whole()),
            TxnOp::get(self.keys.mark(self.new.call), keys_only()),
            TxnOp::get(self.request(), whole()),
            TxnOp::get(self.keys.end(self.name, &self.new.secret), whole()),
            self.read_first_claims(revision),
        ]
    }

    /// The read of the first [`FIRST_CLAIMS`] claims of the lock.
    pub fn read_first_claims(&self, revision: i64) -> TxnOp {
        let first = GetOptions::new()
            .with_range(self.lock.behind())
            .with_limit(FIRST_CLAIMS);
        TxnOp::get(self.lock.all(), Some(first.with_revision(revision)))
    }
}

/// A lock, and what decides one call on it.
#[derive(Debug)]
pub struct Snapshot {
    pub view: View,
    /// The view has all claims of the lock. Otherwise it has only the first [`FIRST_CLAIMS`].
    pub is_whole: bool,
    /// The session that the call's step was sent under lives.
    pub in_session: bool,
    /// The token base.
    pub base: Base,
    /// The call has a cancel mark.
    pub marked: bool,
    /// How the call's request ended, if it has no claim in the view.
    pub finished: Option<Cause>,
    /// How the call's hold ended.
    pub ended: Option<Cause>,
}

impl Snapshot {
    /// Decodes the responses to [`Call::reads`], which are complete up to the revision `read_at`.
    pub fn read(call: &Call<'_>, read_at: i64, reads: &[GetResponse]) -> Result<Self, Failure> {
        let [session, base, mark, request, end, claims] = reads else {
            return Err(Failure::no_answer());
        };
        let first = |read: &GetResponse| read.kvs().first().map(KeyValue::value).map(<[u8]>::to_vec);
        let request = first(request).and_then(|value| Request::decode(&value).ok());
        let end = first(end).and_then(|value| End::decode(&value).ok());
        Ok(Self {
            is_whole: !claims.more(),
            view: View::read(&call.lock, read_at, claims.kvs())?,
            in_session: !session.kvs().is_empty(),
            base: Base::read(base.kvs().first()),
            marked: !mark.kvs().is_empty(),
            finished: request.and_then(|request| request.cause()),
            ended: end.map(|end| end.cause),
        })
    }
}
