//! What a page of locks counts.

use super::GuardedNamespaces;
use crate::api::authenticate::Caller;
use crate::locks::Locks;

/// How many locks of a page count as one call.
const PART_OF_PAGE: usize = 100;

impl GuardedNamespaces {
    /// Counts a page of this many locks against the call rates, as one call for each hundred. It is not refused, but later
    /// calls are.
    pub(in crate::api) fn count_page(&self, caller: &Caller, locks: &Locks, found: usize) {
        let more = found.div_ceil(PART_OF_PAGE).saturating_sub(1);
        if more > 0 {
            self.quotas
                .more_calls(&caller.identity, locks.namespace().as_str(), more);
        }
    }
}
