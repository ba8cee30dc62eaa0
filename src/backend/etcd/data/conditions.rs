//! The conditions of transactions, and their writes.

use etcd_client::{Compare, CompareOp, PutOptions, TxnOp};

use super::keys::{LockKeys, behind};
use super::view::Entry;
use crate::name::Mode;

/// Puts a key on an etcd lease.
pub fn put_on(lease: i64, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> TxnOp {
    TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)))
}

/// The key does not exist.
pub fn absent(key: impl Into<Vec<u8>>) -> Compare {
    Compare::create_revision(key, CompareOp::Equal, 0)
}

/// The key exists.
pub fn present(key: impl Into<Vec<u8>>) -> Compare {
    Compare::create_revision(key, CompareOp::Greater, 0)
}

/// No key has this prefix. (Etcd walks past every key that had it since the last compaction.)
pub fn none_under(prefix: &str) -> Compare {
    absent(prefix).with_range(behind(prefix))
}

/// No key is in this range.
pub fn none_in((first, behind): (String, Vec<u8>)) -> Compare {
    absent(first).with_range(behind)
}

/// Some key has this prefix. (Etcd evaluates an empty range as a key that was never created.)
pub fn some_under(prefix: &str) -> Compare {
    present(prefix).with_range(behind(prefix))
}

/// No key with this prefix was created after this revision.
pub fn none_made_after(prefix: &str, revision: i64) -> Compare {
    Compare::create_revision(prefix, CompareOp::Less, revision + 1).with_range(behind(prefix))
}

/// The key is unchanged since it was read.
pub fn unchanged(key: impl Into<Vec<u8>>, entry: &Entry) -> Compare {
    Compare::mod_revision(key, CompareOp::Equal, entry.modified)
}

/// The conditions on the holders under which a claim of this mode may be added.
pub fn guard(lock: &LockKeys, mode: Mode, revision: i64) -> Vec<Compare> {
    match mode {
        Mode::Exclusive => vec![none_under(&lock.holders())],
        // Other readers do not matter, so any number of readers are granted concurrently.
        Mode::Shared => vec![
            none_under(&lock.exclusive_holders()),
            none_made_after(&lock.semaphore_holders(), revision),
        ],
        Mode::Semaphore { .. } => vec![
            none_under(&lock.exclusive_holders()),
            none_under(&lock.readers()),
            none_made_after(&lock.semaphore_holders(), revision),
        ],
    }
}
