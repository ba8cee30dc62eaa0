//! The permission to watch a lock.
//!
//! A caller that waits is checked every two seconds, and once more when its lock is granted; a grant that is then
//! refused is undone.

use super::GuardedNamespaces;
use crate::api::authenticate::Caller;
use crate::auth::Verb;
use crate::error::Error;
use crate::name::{LockName, Namespace};
use crate::quota::QuotaUse;

/// The permission of a caller to watch a lock, and the watch's entry in the quota. It holds no namespace open, so that
/// one can be removed.
#[derive(Debug)]
pub(in crate::api) struct WatchPermission {
    pub(super) guarded: GuardedNamespaces,
    pub(super) caller: Caller,
    pub(super) namespace: Namespace,
    pub(super) _quota: QuotaUse,
}

impl WatchPermission {
    /// Ready when the caller may not read the lock any more. The watch counts until the permission is dropped.
    pub(in crate::api) async fn until_denied(self, name: LockName) -> (Error, Self) {
        let denied = self
            .guarded
            .until_denied(&self.caller, Verb::Read, &self.namespace, std::slice::from_ref(&name));
        (denied.await, self)
    }
}
