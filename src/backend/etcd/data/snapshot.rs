//! A lock and the other keys that a step depends on, read at one revision.

use etcd_client::{GetOptions, GetResponse, TxnOp};

use crate::backend::NewClaim;
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::data::keys::{Keys, LockKeys};
use crate::backend::etcd::data::record::{End, Request};
use crate::backend::etcd::data::view::View;
use crate::backend::etcd::lease::base::Base;
use crate::backend::etcd::lease::session::SessionEpoch;
use crate::claim::Cause;
use crate::name::LockName;

/// How many claims of a lock a step reads at most, the holders first. A queue may be long, and many steps are answered
/// in one message.
pub const GLIMPSE: i64 = 8;

/// A lock, and what decides one call on it.
#[derive(Debug)]
pub struct Snapshot {
    pub view: View,
    /// The view has all claims of the lock. Otherwise it has only the first [`GLIMPSE`].
    pub is_whole: bool,
    /// The session that the call's step was sent under lives.
    pub in_session: bool,
    /// The token base.
    pub base: Base,
    /// The call has a cancel mark.
    pub marked: bool,
    /// How the call's request ended, if it has neither a waiter nor a holder.
    pub finished: Option<Cause>,
    /// How the call's hold ended.
    pub ended: Option<Cause>,
}

impl Snapshot {
    /// The reads for [`Self::read`].
    pub fn ops(keys: &Keys, name: &LockName, lock: &LockKeys, new: &NewClaim, ticket: SessionEpoch) -> Vec<TxnOp> {
        vec![
            TxnOp::get(
                keys.sessions.session(ticket.session),
                Some(GetOptions::new().with_keys_only()),
            ),
            TxnOp::get(keys.sessions.base(), None),
            TxnOp::get(keys.mark(new.call), Some(GetOptions::new().with_keys_only())),
            TxnOp::get(keys.request(new.id), None),
            TxnOp::get(keys.end(name, &new.secret), None),
            Self::glimpse(lock),
        ]
    }

    /// The read of the first [`GLIMPSE`] claims of a lock.
    pub fn glimpse(lock: &LockKeys) -> TxnOp {
        let first = GetOptions::new().with_range(lock.behind()).with_limit(GLIMPSE);
        TxnOp::get(lock.all(), Some(first))
    }

    /// Decodes the responses to [`Self::ops`].
    pub fn read(lock: &LockKeys, read_at: i64, reads: &[GetResponse]) -> Result<Self, Failure> {
        let [session, base, mark, request, end, claims] = reads else {
            return Err(Failure::Refused("etcd: a transaction lacks an answer".into()));
        };
        let view = View::read(lock, read_at, claims.kvs())?;
        Ok(Self {
            is_whole: !claims.more(),
            view,
            in_session: !session.kvs().is_empty(),
            base: Base::read(base.kvs().first()),
            marked: !mark.kvs().is_empty(),
            finished: request
                .kvs()
                .first()
                .and_then(|kv| Request::decode(kv.value()).ok())
                .map(|request| request.cause()),
            ended: cause(end),
        })
    }
}

fn cause(read: &GetResponse) -> Option<Cause> {
    End::decode(read.kvs().first()?.value()).ok().map(|end| end.cause)
}
