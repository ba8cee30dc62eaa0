//! How many bytes callers may leave in the memory of a server by waiting: their owners and metadata.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::local_waiters::LocalWaiters;
use super::{Acquire, NamespaceState};
use crate::error::Error;
use crate::name::{Identity, Metadata};

/// How much an Acquire may always bring: so nobody's metadata keeps those out who have none. How many may come is
/// bounded by the server.
const ALWAYS_TAKEN: usize = 512;

/// The bytes of a waiter; they count while it lives.
#[derive(Debug)]
pub struct WaitingBytes {
    lines: Arc<LocalWaiters>,
    identity: Identity,
    bytes: usize,
}

impl Drop for WaitingBytes {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.lines.bytes().remove(&self.identity, self.bytes);
        }
    }
}

/// The bytes of all waiters of a namespace.
#[derive(Debug, Default)]
pub struct BytesInUse {
    all: usize,
    /// Of each identity that has any.
    by_identity: HashMap<Identity, usize>,
}

impl BytesInUse {
    /// Counts them, and answers how many there are now: of all, and of this identity.
    fn add(&mut self, identity: &Identity, bytes: usize) -> (usize, usize) {
        self.all += bytes;
        let own = self.by_identity.entry(identity.clone()).or_default();
        *own += bytes;
        (self.all, *own)
    }

    fn remove(&mut self, identity: &Identity, bytes: usize) {
        self.all -= bytes;
        if let Entry::Occupied(mut own) = self.by_identity.entry(identity.clone()) {
            *own.get_mut() -= bytes;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

impl NamespaceState {
    /// Counts what an Acquire brings that may wait; a try leaves nothing behind.
    ///
    /// # Errors
    /// [`Error::Overloaded`] past the limit of the namespace, or past the identity's share of it.
    pub(super) fn waiting_bytes(&self, ask: &Acquire) -> Result<WaitingBytes, Error> {
        let bytes = if ask.wait.is_zero() { 0 } else { bytes_of(ask) };
        let counted = WaitingBytes {
            lines: Arc::clone(&self.lines),
            identity: ask.identity.clone(),
            bytes,
        };
        if bytes == 0 {
            return Ok(counted);
        }
        let (all, own) = self.lines.bytes().add(&ask.identity, bytes);
        let limits = self.limits.load();
        let limit = limits.waiting_bytes as usize;
        let share = limit.saturating_mul(limits.identity_share as usize) / 100;
        if bytes <= ALWAYS_TAKEN {
            return Ok(counted);
        }
        let (whose, most) = if all > limit {
            ("", limit)
        } else if own > share {
            (" of one identity", share)
        } else {
            return Ok(counted);
        };
        let what = format!(
            "the owners and the metadata of the Acquires{whose} that wait in the namespace on this server may have \
             {most} bytes (waiting_bytes_limit), and this one brings more than {ALWAYS_TAKEN}"
        );
        Err(Error::Overloaded { what })
    }
}

fn bytes_of(ask: &Acquire) -> usize {
    let entries = Metadata::entries(&ask.metadata).iter();
    let metadata: usize = entries.map(|(key, value)| key.len() + value.len()).sum();
    ask.owner.as_str().len() + metadata
}
