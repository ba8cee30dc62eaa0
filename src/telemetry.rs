//! Logging: filter, format and destination. [`traces`] exports spans.

use std::fmt;
use std::io::{self, IsTerminal};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tracing::Metadata;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Registry, reload};

mod refused_authorities;
pub mod traces;

pub use self::refused_authorities::refused_authorities;

/// The target of the audit log of operator actions. It is logged at every level.
pub const AUDIT: &str = "fencepost::audit";

/// The names of the levels.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The format of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One line of text per event.
    #[default]
    Text,
    /// One line of JSON per event.
    Json,
}

/// What is logged: a level, or a list of directives with targets such as
/// `info,fencepost::api=debug`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LogFilter(String);

impl Default for LogFilter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is not a log filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be off, error, warn, info, debug or trace, or a list with targets such as \
     \"info,fencepost::api=debug\", not {text:?}"
)]
pub struct NoLogFilter {
    text: String,
}

impl FromStr for LogFilter {
    type Err = NoLogFilter;

    fn from_str(text: &str) -> Result<Self, NoLogFilter> {
        let valid = text.split(',').all(is_directive) && EnvFilter::try_new(text).is_ok();
        let text = text.to_owned();
        if valid {
            Ok(Self(text))
        } else {
            Err(NoLogFilter { text })
        }
    }
}

/// A directive without `=` or brackets must be a level. `EnvFilter` would accept a misspelt level
/// as a target and then log nothing else.
fn is_directive(part: &str) -> bool {
    part.contains(['=', '[', ']']) || LEVELS.iter().any(|level| part.eq_ignore_ascii_case(level))
}

impl TryFrom<String> for LogFilter {
    type Error = NoLogFilter;

    fn try_from(text: String) -> Result<Self, NoLogFilter> {
        text.parse()
    }
}

impl From<LogFilter> for String {
    fn from(filter: LogFilter) -> Self {
        filter.0
    }
}

/// A handle to the log of this process. Dropping it does not stop the log.
#[derive(Debug, Clone)]
pub struct Log {
    filter: reload::Handle<EnvFilter, Registry>,
}

impl Log {
    /// Replaces the filter.
    pub fn set(&self, filter: &LogFilter) {
        // It fails only if the subscriber is gone, which lives as long as the process.
        let _ = self.filter.reload(EnvFilter::new(&filter.0));
    }
}

/// Logs the events of this process to standard error.
///
/// Lines that cannot be written, for example to a closed pipe, are dropped.
///
/// # Errors
/// [`TryInitError`] when the process already has a log.
pub fn init(filter: &LogFilter, format: LogFormat) -> Result<Log, TryInitError> {
    let (filter, handle) = reload::Layer::new(EnvFilter::new(&filter.0));
    let output = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .log_internal_errors(false);
    let output = match format {
        LogFormat::Text => output.boxed(),
        LogFormat::Json => output.json().flatten_event(true).boxed(),
    };
    let audit = filter_fn(|metadata: &Metadata<'_>| metadata.target() == AUDIT);
    tracing_subscriber::registry()
        .with(output.with_filter(filter.or(audit)))
        .with(refused_authorities::layer())
        .try_init()?;
    Ok(Log { filter: handle })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_lists_of_directives_are_filters() {
        for text in [
            "off",
            "info",
            "DEBUG",
            "warn,fencepost=trace",
            "info,h2=off",
            "info,fencepost[call]=debug",
        ] {
            assert!(text.parse::<LogFilter>().is_ok(), "{text}");
        }
    }

    #[test]
    fn a_misspelt_level_is_rejected_with_the_accepted_forms() {
        for text in ["", "inof", "loud,info", "fencepost=loud", "info,,debug"] {
            let refused = text.parse::<LogFilter>().expect_err(text).to_string();
            assert!(refused.contains("off, error, warn, info, debug or trace"), "{refused}");
        }
    }
}
