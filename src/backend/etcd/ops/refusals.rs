//! Decides whether the else-branch of a transaction reads the lock again. The read saves a round trip if the conditions
//! fail, but is a third of the bytes. So it is included only if one of the last 16 transactions was refused.

use std::sync::atomic::{AtomicU32, Ordering};

use etcd_client::TxnOp;

use crate::backend::etcd::data::snapshot::Call;

/// The number of grants after a refused step whose else-branches read.
const READ_ALONG: u32 = 16;

/// Counts down from the last refused step.
#[derive(Debug, Default)]
pub struct RecentRefusals(AtomicU32);

impl RecentRefusals {
    /// The reads of a step that may be refused.
    pub fn reads(&self, call: &Call<'_>) -> Vec<TxnOp> {
        match self.0.load(Ordering::Relaxed) {
            0 => Vec::new(),
            _ => call.reads(),
        }
    }

    pub fn note_refusal(&self) {
        self.0.store(READ_ALONG, Ordering::Relaxed);
    }

    pub fn note_grant(&self) {
        // Fails only at zero, where the countdown has ended.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    }
}
