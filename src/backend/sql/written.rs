//! What a server wrote last.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::rows::ReadRow;
use crate::backend::record::store::{Stamp, StoreTime, Version};

/// How many batches are remembered: more than all connections have in flight.
const BATCHES: usize = 32;
/// For how long, by the clock of this server and by that of the database. A lock that nobody uses is removed later.
const REMEMBERED: Duration = Duration::from_secs(300);

/// A root that this server wrote.
#[derive(Debug, Clone)]
pub struct Wrote {
    /// Its id.
    pub id: Vec<u8>,
    /// Its version.
    pub version: Version,
    /// When it was written.
    pub stamp: Stamp,
}

impl Wrote {
    /// Until when nobody removes it, by the database's clock.
    pub fn kept_until(&self) -> StoreTime {
        StoreTime(self.stamp.time.0.saturating_add(super::rows::micros(REMEMBERED)))
    }

    /// Whether the database has it, or a later one, as this row shows.
    fn is_in(&self, row: &ReadRow) -> bool {
        row.root.is_some_and(|(_, root)| root.stamp().clock >= self.stamp.clock)
    }
}

/// One root of each of the last batches. A database has what was committed before, if it has the last one of each
/// connection.
#[derive(Debug, Default)]
pub struct LastWritten(Mutex<VecDeque<(Wrote, Instant)>>);

impl LastWritten {
    /// Notes a root of a batch.
    pub fn note(&self, wrote: Wrote) {
        let mut written = self.0.lock();
        written.truncate(BATCHES - 1);
        written.push_front((wrote, Instant::now()));
    }

    /// What was written last.
    pub fn last(&self) -> Option<Wrote> {
        let written = self.0.lock();
        let last = written.front().filter(|(_, at)| at.elapsed() < REMEMBERED);
        last.map(|(wrote, _)| wrote.clone())
    }

    /// What was written lately, the last one first.
    pub fn recent(&self) -> Vec<Wrote> {
        let written = self.0.lock();
        let recent = written.iter().filter(|(_, at)| at.elapsed() < REMEMBERED);
        recent.map(|(wrote, _)| wrote.clone()).collect()
    }

    /// Forgets these, which are removed.
    pub fn forget(&self, rows: &[(Vec<u8>, i64)]) {
        let is_kept = |(wrote, _): &(Wrote, Instant)| rows.iter().all(|(id, _)| *id != wrote.id);
        self.0.lock().retain(is_kept);
    }

    /// Forgets all, because it is known to be lost.
    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

/// What a database lacks of what this server wrote lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lacks {
    /// It has all.
    Nothing,
    /// Only what may have been removed by the database's clock, which is perhaps wrong.
    Removed,
    /// What nobody has removed.
    Lost,
}

impl Lacks {
    /// As the rows show that were read of these.
    pub fn of(written: &[Wrote], rows: &[ReadRow]) -> Self {
        let mut missing = written.iter().zip(rows).filter(|(wrote, row)| !wrote.is_in(row));
        let is_kept = |wrote: &Wrote, row: &ReadRow| u64::try_from(row.now).is_ok_and(|now| now < wrote.kept_until().0);
        match missing.next() {
            _ if rows.len() != written.len() => Self::Lost,
            None => Self::Nothing,
            Some((wrote, row)) if is_kept(wrote, row) => Self::Lost,
            Some(_) if missing.any(|(wrote, row)| is_kept(wrote, row)) => Self::Lost,
            Some(_) => Self::Removed,
        }
    }
}
