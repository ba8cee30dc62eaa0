//! Limits the bytes of owner and metadata that waiting calls occupy on a server.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::local_waiters::LocalWaiters;
use super::{Acquire, NamespaceState};
use crate::error::Error;
use crate::name::Metadata;

/// The bytes that an Acquire may always bring, so that calls with large metadata cannot crowd out calls without. The
/// server limits the number of calls.
const ALWAYS_TAKEN: usize = 512;

/// The bytes of a waiting call, counted until this is dropped.
#[derive(Debug)]
pub struct WaitingBytes {
    waiters: Arc<LocalWaiters>,
    bytes: usize,
}

impl Drop for WaitingBytes {
    fn drop(&mut self) {
        self.waiters.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl NamespaceState {
    /// Counts the bytes of an Acquire that may wait. A try (`wait` = 0) counts 0 bytes.
    ///
    /// # Errors
    /// [`Error::Overloaded`] past the limit of the namespace.
    pub(super) fn waiting_bytes(&self, request: &Acquire) -> Result<WaitingBytes, Error> {
        let bytes = if request.wait.is_zero() { 0 } else { bytes_of(request) };
        let counted = WaitingBytes {
            waiters: Arc::clone(&self.waiters),
            bytes,
        };
        let limit = self.limits.load().waiting_bytes as usize;
        let before = self.waiters.bytes.fetch_add(bytes, Ordering::Relaxed);
        if bytes <= ALWAYS_TAKEN || before + bytes <= limit {
            return Ok(counted);
        }
        let what = format!(
            "the owners and metadata of the waiting Acquires of the namespace on this server may have {limit} \
             bytes (waiting_bytes_limit), and this one brings more than {ALWAYS_TAKEN}"
        );
        Err(Error::Overloaded { what })
    }
}

fn bytes_of(request: &Acquire) -> usize {
    let entries = Metadata::entries(&request.metadata).iter();
    let metadata: usize = entries.map(|(key, value)| key.len() + value.len()).sum();
    request.owner.as_str().len() + metadata
}
