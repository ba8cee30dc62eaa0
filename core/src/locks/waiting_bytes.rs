//! Limits the bytes of owner and metadata that waiting calls occupy on a server.

use std::sync::Arc;

use super::local_waiters::LocalWaiters;
use super::{Acquire, NamespaceState};
use crate::error::Error;
use crate::name::Identity;

/// The bytes that an Acquire may always bring, so that calls with large metadata cannot crowd out calls without. The
/// server limits the number of calls.
const ALWAYS_TAKEN: usize = 512;

/// The bytes of a waiting call, counted until this is dropped.
#[derive(Debug)]
pub struct WaitingBytes {
    waiters: Arc<LocalWaiters>,
    identity: Identity,
    bytes: usize,
}

impl Drop for WaitingBytes {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.waiters.bytes().remove(&self.identity, self.bytes);
        }
    }
}

impl NamespaceState {
    /// Counts the bytes of an Acquire that may wait. A try (`wait` = 0) counts 0 bytes.
    ///
    /// # Errors
    /// [`Error::Overloaded`] past the limit of the namespace, or past the identity's share of it.
    pub(super) fn waiting_bytes(&self, request: &Acquire) -> Result<WaitingBytes, Error> {
        let bytes = if request.wait.is_zero() { 0 } else { bytes_of(request) };
        self.count_bytes(&request.identity, bytes)
    }

    /// Counts these bytes of a call that waits, or whose place is kept.
    ///
    /// # Errors
    /// As [`Self::waiting_bytes`].
    pub(super) fn count_bytes(&self, identity: &Identity, bytes: usize) -> Result<WaitingBytes, Error> {
        let counted = WaitingBytes {
            waiters: Arc::clone(&self.waiters),
            identity: identity.clone(),
            bytes,
        };
        if bytes == 0 {
            return Ok(counted);
        }
        let (all, own) = self.waiters.bytes().add(identity, bytes);
        let limits = self.limits.load();
        let limit = limits.waiting_bytes as usize;
        let share = limit.saturating_mul(limits.identity_share as usize) / 100;
        if bytes <= ALWAYS_TAKEN {
            return Ok(counted);
        }
        let (whose, most) = if all > limit {
            ("", limit)
        } else if own > share && !identity.as_str().is_empty() {
            (" of one identity", share)
        } else {
            return Ok(counted);
        };
        let what = format!(
            "the owners and metadata of the waiting Acquires{whose} of the namespace on this server may have \
             {most} bytes (waiting_bytes_limit), and this one brings more than {ALWAYS_TAKEN}"
        );
        Err(Error::Overloaded { what })
    }
}

fn bytes_of(request: &Acquire) -> usize {
    request.owner.as_str().len() + request.metadata.bytes()
}
