//! The token base that the nodes of a namespace and the wall clock demand.

use crate::backend::clock::is_usable;
use crate::backend::tree::store::{Failure, Version};

/// The nodes that are read when a connection is fenced.
pub struct Read {
    /// The number of the transaction that raised the fence.
    pub number: u64,
    pub base: u64,
    pub base_version: Version,
    /// The last token, and the version of the node that says so; `None` if the base is never lowered.
    pub last: Option<(u64, Version)>,
}

impl Read {
    /// What the tokens have reached, as far as they are within their range.
    pub fn reached(&self, largest: u64) -> u64 {
        self.usable_base()
            .map_or(0, |base| base + self.number)
            .max(self.usable_last())
            .max(largest)
    }

    fn usable_base(&self) -> Option<u64> {
        Some(self.base).filter(|base| is_usable(*base, self.number))
    }

    /// The last token; zero if it is beyond the range, so that nobody was given it.
    fn usable_last(&self) -> u64 {
        let last = self.last.map(|(last, _)| last);
        last.filter(|last| is_usable(*last, 0)).unwrap_or(0)
    }
}

/// The base under which every later token is larger than all before. If that may be lower than it was, also the version at
/// which the node of the last token must be. `clock` is the time in microseconds, read before anything was written, if it
/// says anything.
pub fn wanted_base(read: &Read, clock: Option<u64>, largest: u64) -> (u64, Option<Version>) {
    let lowered_at = read.last.map(|(_, version)| version);
    let Some(base) = read.usable_base() else {
        let floor = clock.unwrap_or(0).max(largest + 1).max(read.usable_last() + 1);
        return (floor.saturating_sub(read.number), lowered_at);
    };
    let floor = clock.unwrap_or(0).max(largest + 1).saturating_sub(read.number);
    // Elections have driven the tokens ahead of the clock.
    if lowered_at.is_some()
        && let Some(clock) = clock.filter(|clock| base + read.number > clock + 1)
    {
        let lowest = clock
            .max(largest + 1)
            .max(read.usable_last() + 1)
            .saturating_sub(read.number);
        if lowest < base {
            return (lowest, lowered_at);
        }
    }
    (base.max(floor), None)
}

pub fn read_number(data: &[u8]) -> Result<u64, Failure> {
    let bytes = data
        .try_into()
        .map_err(|_| Failure::Damaged("a number is damaged".into()))?;
    Ok(u64::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests;
