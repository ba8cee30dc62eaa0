//! Logging: filter, format and destination. [`log_queue`] writes the lines, [`values`] escapes and cuts what they hold,
//! and [`traces`] exports spans.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::panic::{self, PanicHookInfo};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::Metadata;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Registry, reload};

mod log_queue;
mod refused_authorities;
pub mod traces;
mod values;

pub use self::log_queue::AuditPlace;
use self::log_queue::{QUEUE, QueueWriter};
pub use self::refused_authorities::refused_authorities;
use crate::locks::{GRANTS, log_grants};

/// How long the end of the process waits for the writing of the last lines.
const LAST_LINES: Duration = Duration::from_secs(2);

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

/// What is logged: a level, or a list of directives with targets such as `info,fencepost::api=debug`. A level alone is
/// that of Fencepost; libraries log at `info` at most.
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

impl LogFilter {
    fn directives(&self) -> EnvFilter {
        let is_verbose = |level: &&str| self.0.trim().eq_ignore_ascii_case(level);
        match ["debug", "trace"].iter().find(|level| is_verbose(level)) {
            Some(level) => EnvFilter::new(format!("info,fencepost={level}")),
            None => EnvFilter::new(&self.0),
        }
    }
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

/// Why the process has no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// It has one already.
    #[error(transparent)]
    Exists(#[from] TryInitError),
    /// Standard error cannot be written by a thread of its own.
    #[error("standard error cannot be written")]
    Output(#[from] io::Error),
}

/// A handle to the log of this process. Dropping it does not stop the log.
#[derive(Debug, Clone)]
pub struct Log {
    filter: reload::Handle<EnvFilter, Registry>,
}

impl Log {
    /// Replaces the filter, and whether grants are logged.
    pub fn set(&self, filter: &LogFilter, grants: bool) {
        // It fails only if the subscriber is gone, which lives as long as the process.
        let _ = self.filter.reload(filter.directives());
        log_grants(grants);
    }
}

/// Waits until the last lines are written, at most 2 s. Blocks. Returns whether they are.
pub fn flush() -> bool {
    QUEUE.flush(LAST_LINES)
}

/// Reserves a place for the audit line of an action that is about to begin. Without one, the action must not begin.
pub fn reserve_audit_line() -> Option<AuditPlace> {
    QUEUE.reserve()
}

/// How many lines were dropped, and how many actions were refused because their audit line had no place, since the last
/// call.
pub fn take_dropped() -> (u64, u64) {
    (QUEUE.take_dropped(), QUEUE.take_refused())
}

/// Logs the events of this process, and its panics, to standard error. A thread of its own writes them: no other thread
/// waits for a reader.
///
/// Lines beyond 4 MiB that wait for the reader are dropped and counted, as are those that cannot be written, for example
/// to a closed pipe. Lines of the audit are kept.
///
/// # Errors
/// [`LogError`] when the process already has a log, or no standard error.
pub fn init(filter: &LogFilter, format: LogFormat, grants: bool) -> Result<Log, LogError> {
    log_grants(grants);
    let (filter, handle) = reload::Layer::new(filter.directives());
    let writer = QueueWriter {
        queue: &QUEUE,
        is_json: format == LogFormat::Json,
    };
    let output = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(io::stderr().is_terminal())
        .log_internal_errors(false);
    let output = match format {
        LogFormat::Text => output.fmt_fields(debug_fn(values::field).delimited(" ")).boxed(),
        LogFormat::Json => output.json().flatten_event(true).with_span_list(false).boxed(),
    };
    let audit = filter_fn(|metadata: &Metadata<'_>| [AUDIT, GRANTS].contains(&metadata.target()));
    tracing_subscriber::registry()
        .with(output.with_filter(filter.or(audit)))
        .with(refused_authorities::layer())
        .try_init()?;
    // Not by `io::stderr()`, whose lock the thread would keep while nobody reads.
    QUEUE.write_to(File::from(io::stderr().as_fd().try_clone_to_owned()?))?;
    panic::set_hook(Box::new(log_panic));
    Ok(Log { filter: handle })
}

/// Logs a panic. The default hook writes to standard error itself, and so waits for its reader.
fn log_panic(info: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let location = info.location().map(ToString::to_string).unwrap_or_default();
    let text = info.payload().downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| info.payload().downcast_ref::<&str>().copied());
    let message = text.unwrap_or("unknown");
    tracing::error!(thread, location, message, "a thread panicked");
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        backtrace.to_string().lines().for_each(|line| tracing::error!("{line}"));
    }
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
