//! Which database a server has.

use serde::{Deserialize, Serialize};

/// Which database a server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Origin {
    /// Its identifier.
    pub system: i64,
    /// A number that rises when another server becomes the primary.
    pub timeline: i64,
    /// Which tables the store has, once it was entered: a number that new ones do not have.
    pub tables: i64,
}

impl Origin {
    /// Whether another database was used last.
    pub fn was_elsewhere(self, last: Self) -> bool {
        last != Self::default() && (last.system, last.timeline) != (self.system, self.timeline)
    }
}
