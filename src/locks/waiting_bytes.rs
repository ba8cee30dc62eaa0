//! How many bytes callers may leave in the memory of a server by waiting: their owners and metadata.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::local_waiters::LocalWaiters;
use super::{Acquire, NamespaceState};
use crate::error::Error;
use crate::name::Metadata;

/// How much an Acquire may always bring: so nobody's metadata keeps those out who have none. How many may come is
/// bounded by the server.
const ALWAYS_TAKEN: usize = 512;

/// The bytes of a waiter; they count while it lives.
#[derive(Debug)]
pub struct WaitingBytes {
    lines: Arc<LocalWaiters>,
    bytes: usize,
}

impl Drop for WaitingBytes {
    fn drop(&mut self) {
        self.lines.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl NamespaceState {
    /// Counts what an Acquire brings that may wait; a try leaves nothing behind.
    ///
    /// # Errors
    /// [`Error::Overloaded`] past the limit of the namespace.
    pub(super) fn waiting_bytes(&self, ask: &Acquire) -> Result<WaitingBytes, Error> {
        let bytes = if ask.wait.is_zero() { 0 } else { bytes_of(ask) };
        let counted = WaitingBytes {
            lines: Arc::clone(&self.lines),
            bytes,
        };
        let limit = self.limits.load().waiting_bytes as usize;
        let before = self.lines.bytes.fetch_add(bytes, Ordering::Relaxed);
        if bytes <= ALWAYS_TAKEN || before + bytes <= limit {
            return Ok(counted);
        }
        let what = format!(
            "the owners and the metadata of the Acquires that wait in the namespace on this server may have {limit} \
             bytes (waiting_bytes_limit), and this one brings more than {ALWAYS_TAKEN}"
        );
        Err(Error::Overloaded { what })
    }
}

fn bytes_of(ask: &Acquire) -> usize {
    let entries = Metadata::entries(&ask.metadata).iter();
    let metadata: usize = entries.map(|(key, value)| key.len() + value.len()).sum();
    ask.owner.as_str().len() + metadata
}
