//! Why a server is in quarantine.

use std::fmt;

/// Why a server may have lost grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuarantineCause {
    /// It has no marker: it is new, or has lost its data.
    Empty,
    /// It has no marker, and a server has granted leases in it.
    Lost,
    /// Its marker names another run of its process.
    Restarted,
    /// Its marker is older than the one that was there before.
    Older,
}

impl QuarantineCause {
    /// By the word of a script.
    pub fn of_word(word: &str) -> Self {
        match word {
            "empty" => Self::Empty,
            "lost" => Self::Lost,
            "older" => Self::Older,
            _ => Self::Restarted,
        }
    }
}

impl fmt::Display for QuarantineCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the Redis server is empty: it is new, or has lost its data",
            Self::Lost => "the Redis server is empty: it has lost the leases that were granted in it",
            Self::Restarted => "the Redis server was restarted and may have lost leases",
            Self::Older => "the Redis server has older data than before, and may have lost leases",
        })
    }
}
