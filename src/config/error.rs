//! Why a configuration was refused.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is no TOML, has an unknown key, or a value is outside its bounds.
    #[error("{place}: {}{problem}", if key.is_empty() { String::new() } else { format!("{key}: ") })]
    Refused {
        /// Where the value was given.
        place: ValueLocation,
        /// The path of its key, such as `namespaces.default.ttl_min`; empty where there is none.
        key: String,
        /// What is wrong, and what the bound is.
        problem: String,
    },
}

/// Where a value was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueLocation {
    /// In the configuration file; line and column count from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The column, in characters.
        column: usize,
    },
    /// By a flag or its environment variable.
    Flag(&'static str),
    /// Nowhere: it is the default.
    Default,
}

impl fmt::Display for ValueLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Flag(flag) => f.write_str(flag),
            Self::Default => f.write_str("default"),
        }
    }
}
