//! Lock modes, and the permits that each takes of a limit.

use std::fmt;

use super::{InvalidField, MAX_SEMAPHORE_LIMIT};

/// How many permits of a lock a claim takes, and with which claims it can therefore share the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// All permits.
    Exclusive,
    /// One permit of a practically unlimited number.
    Shared,
    /// `permits` of `limit`.
    Semaphore {
        /// The permits of this claim, 1 to `limit`.
        permits: u32,
        /// The total number of permits, 1 to [`MAX_SEMAPHORE_LIMIT`].
        limit: u32,
    },
}

/// The permits of an exclusive claim: all of them.
const ALL_PERMITS: u64 = 1 << 40;

impl Mode {
    /// Validates a semaphore's permits and limit.
    ///
    /// # Errors
    /// [`InvalidField`] unless `1 <= permits <= limit <= MAX_SEMAPHORE_LIMIT`.
    pub fn semaphore(permits: u32, limit: u32) -> Result<Self, InvalidField> {
        if limit == 0 || limit > MAX_SEMAPHORE_LIMIT {
            return Err(InvalidField::new(
                "mode.semaphore.limit",
                format!("must be 1 to {MAX_SEMAPHORE_LIMIT}, not {limit}"),
            ));
        }
        if permits == 0 || permits > limit {
            return Err(InvalidField::new(
                "mode.semaphore.permits",
                format!("must be 1 to the limit of {limit}, not {permits}"),
            ));
        }
        Ok(Self::Semaphore { permits, limit })
    }

    /// The number of permits that a claim of this mode takes.
    pub fn permits(self) -> u64 {
        match self {
            Self::Exclusive => ALL_PERMITS,
            Self::Shared => 1,
            Self::Semaphore { permits, .. } => permits.into(),
        }
    }

    /// The total number of permits for claims of this mode.
    pub fn limit(self) -> u64 {
        match self {
            Self::Exclusive | Self::Shared => ALL_PERMITS,
            Self::Semaphore { limit, .. } => limit.into(),
        }
    }

    /// Whether claims of both modes may be in one queue: exclusive with any mode, shared with shared, semaphore with
    /// semaphore of any limit.
    pub fn mixes(self, other: Self) -> bool {
        !matches!(
            (self, other),
            (Self::Shared, Self::Semaphore { .. }) | (Self::Semaphore { .. }, Self::Shared)
        )
    }

    /// The name of this mode: `exclusive`, `shared` or `semaphore`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Semaphore { .. } => "semaphore",
        }
    }

    fn letter(self) -> &'static str {
        match self {
            Self::Exclusive => "x",
            Self::Shared => "s",
            Self::Semaphore { .. } => "p",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Semaphore { permits, limit } => write!(f, "semaphore {permits} of {limit}"),
            plain => f.write_str(plain.as_str()),
        }
    }
}

/// The kind of key that a holder has in stores that key exclusive holders separately. It is part of
/// the lease id, so that a renewal finds the key without a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An exclusive claim.
    Exclusive,
    /// A shared claim.
    Shared,
    /// A semaphore claim.
    Semaphore,
}

impl From<Mode> for Kind {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Exclusive,
            Mode::Shared => Self::Shared,
            Mode::Semaphore { .. } => Self::Semaphore,
        }
    }
}

impl Kind {
    pub(super) fn letter(self) -> &'static str {
        match self {
            Self::Exclusive => Mode::Exclusive.letter(),
            Self::Shared => Mode::Shared.letter(),
            Self::Semaphore => "p",
        }
    }

    pub(super) fn from_letter(text: &str) -> Option<Self> {
        [Self::Exclusive, Self::Shared, Self::Semaphore]
            .into_iter()
            .find(|kind| kind.letter() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_compatibility() {
        let five = Mode::semaphore(1, 5).unwrap();
        let six = Mode::semaphore(1, 6).unwrap();
        assert!(Mode::Exclusive.mixes(five) && five.mixes(Mode::Exclusive));
        assert!(five.mixes(Mode::semaphore(5, 5).unwrap()) && five.mixes(six) && six.mixes(five));
        assert!(!five.mixes(Mode::Shared) && !Mode::Shared.mixes(five));
    }
}
