//! What a step needs to know before it acts, read at one revision.

use etcd_client::{GetOptions, GetResponse, TxnOp};

use super::keys::{Keys, LockKeys};
use super::cluster_client::Failure;
use super::record::{End, Request};
use super::session::SessionEpoch;
use super::batches::Answer;
use super::view::View;
use crate::backend::NewClaim;
use crate::claim::Cause;
use crate::name::LockName;

/// How many claims of a lock a step reads beside what else it asks, at most: a queue may be long, and many steps are
/// answered together. Holders come first.
pub const GLIMPSE: i64 = 8;

/// A lock and what stands in the way of one call on it.
#[derive(Debug)]
pub struct Snapshot {
    pub view: View,
    /// The view has all claims of the lock. Where it has not, the first ones are in it.
    pub is_whole: bool,
    /// The session that it was sent under lives.
    pub in_session: bool,
    /// The base as it is now.
    pub base: u64,
    /// The call has left.
    pub marked: bool,
    /// How the request ended, if it has neither a waiter nor a holder.
    pub finished: Option<Cause>,
    /// How the very hold ended.
    pub ended: Option<Cause>,
}

impl Snapshot {
    /// The reads of which [`Self::read`] makes a survey.
    pub fn ops(keys: &Keys, name: &LockName, lock: &LockKeys, new: &NewClaim, ticket: SessionEpoch) -> Vec<TxnOp> {
        vec![
            TxnOp::get(keys.session(ticket.session), Some(GetOptions::new().with_keys_only())),
            TxnOp::get(keys.base(), None),
            TxnOp::get(keys.mark(new.call), Some(GetOptions::new().with_keys_only())),
            TxnOp::get(keys.request(new.id), None),
            TxnOp::get(keys.end(name, &new.secret), None),
            Self::glimpse(lock),
        ]
    }

    /// The read of the first claims of a lock.
    pub fn glimpse(lock: &LockKeys) -> TxnOp {
        let first = GetOptions::new().with_range(lock.behind()).with_limit(GLIMPSE);
        TxnOp::get(lock.all(), Some(first))
    }

    /// Reads what those reads gave.
    pub fn read(lock: &LockKeys, answer: &Answer) -> Result<Self, Failure> {
        let [session, base, mark, request, end, claims] = answer.reads.as_slice() else {
            return Err(Failure::Refused("etcd: a transaction lacks an answer".into()));
        };
        let view =
            View::read(lock, answer.read_at, claims.kvs()).map_err(|error| Failure::Refused(error.to_string()))?;
        let base = base.kvs().first().and_then(|kv| kv.value_str().ok()?.parse().ok());
        Ok(Self {
            is_whole: !claims.more(),
            view,
            in_session: !session.kvs().is_empty(),
            base: base.unwrap_or(0),
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
