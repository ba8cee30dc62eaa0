//! What a server wrote last.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::backend::record::store::{LockTime, Stamp};

/// How many batches are remembered: more than all connections have in flight.
const BATCHES: usize = 32;
/// For how long. A lock that nobody uses is removed later.
const REMEMBERED: Duration = Duration::from_secs(300);

/// One root of each of the last batches, by its id, with the lock's clock when it was written. A standby has what was
/// committed before, if it has the last one of each connection.
#[derive(Debug, Default)]
pub struct LastWritten(Mutex<VecDeque<(Vec<u8>, LockTime, Instant)>>);

impl LastWritten {
    /// Notes a root of a batch.
    pub fn note(&self, id: &[u8], stamp: Stamp) {
        let mut written = self.0.lock();
        written.truncate(BATCHES - 1);
        written.push_front((id.to_vec(), stamp.clock, Instant::now()));
    }

    /// What was written lately.
    pub fn recent(&self) -> Vec<(Vec<u8>, LockTime)> {
        let written = self.0.lock();
        let recent = written.iter().filter(|(_, _, at)| at.elapsed() < REMEMBERED);
        recent.map(|(id, clock, _)| (id.clone(), *clock)).collect()
    }
}
