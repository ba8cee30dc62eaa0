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
        /// The cause.
        source: io::Error,
    },
    /// The file is not TOML, has an unknown key, or has a value outside its bounds.
    #[error("{place}: {}{problem}", if key.is_empty() { String::new() } else { format!("{key}: ") })]
    Refused {
        /// Where the value was given.
        place: ValueLocation,
        /// The path of the key, such as `namespaces.default.ttl_min`; empty if there is none.
        key: String,
        /// The problem and the bound.
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
    /// The value is the default.
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
