//! Which steps have the reads with them that a refused call continues with. These save a round trip if the step is refused,
//! and otherwise are a third of its bytes, so they go along only while steps are refused.

use std::sync::atomic::{AtomicU32, Ordering};

use etcd_client::TxnOp;

use crate::backend::etcd::data::snapshot::Call;

/// After how many grants since the last refused step the next ones have no reads with them.
const READ_ALONG: u32 = 16;

/// See the module. Counts down from the last refused step.
#[derive(Debug, Default)]
pub struct Refusals(AtomicU32);

impl Refusals {
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
