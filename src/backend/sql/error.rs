//! Why a statement failed.

/// What is wrong with tables that are not those that the store was entered with.
pub const NEW_TABLES: &str = "its tables were created anew";
/// What is wrong with a database that lacks what this server wrote last.
pub const OLDER: &str = "lacks what was committed last: it has older data than before";

/// Why a connection cannot be used, or a statement failed.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    /// The statement had no effect: the server has rolled it back.
    #[error("{reason}")]
    RolledBack {
        /// Why, if that matters.
        because: Because,
        /// The words of the server.
        reason: String,
    },
    /// The connection cannot be used, or failed. Whether the statement had an effect is unknown.
    #[error("{0}")]
    Failed(String),
}

/// Why a statement was rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// Another one deleted its row, or waited for it too: it may succeed at once.
    OfOthers,
    /// It waited too long for rows that transactions have locked.
    Locked,
    /// The server is read-only.
    ReadOnly,
    /// A table is missing.
    NoTable,
    /// Anything else.
    Other,
}

impl SqlError {
    /// Why the statement was rolled back.
    pub fn because(&self) -> Option<Because> {
        match self {
            Self::RolledBack { because, .. } => Some(*because),
            Self::Failed(_) => None,
        }
    }
}
