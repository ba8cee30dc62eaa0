//! The flags and environment variables that override the file.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;

use super::error::ConfigError;
use super::file::{DrainTimeout, File};
use super::listen::Listen;
use super::source::{STANDARD_INPUT, Source};
use crate::api::ListenAddress;
use crate::telemetry::{LogFilter, LogFormat};

/// The configuration file, and values that override its keys.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Overrides {
    /// The configuration file (TOML); without it, every key has its default
    #[arg(long, env = "FENCEPOST_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Serve one namespace, default, in memory: all locks are lost when the server stops
    #[arg(long, conflicts_with_all = ["config", "data_dir"])]
    pub memory: bool,
    /// Where to listen: IP:PORT or unix:PATH, several separated by commas
    #[arg(long, env = "FENCEPOST_LISTEN", value_name = "ADDRESS", value_delimiter = ',')]
    pub listen: Option<Vec<ListenAddress>>,
    /// Allow an address that other machines can reach, without encryption
    #[arg(long, env = "FENCEPOST_INSECURE", value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub insecure: Option<bool>,
    /// Where to answer /metrics, /healthz and /readyz over HTTP: IP:PORT
    #[arg(long, env = "FENCEPOST_METRICS_LISTEN", value_name = "ADDRESS")]
    pub metrics_listen: Option<ListenAddress>,
    /// Where to serve the console, a page for browsers: IP:PORT
    #[arg(long, env = "FENCEPOST_CONSOLE_LISTEN", value_name = "ADDRESS")]
    pub console_listen: Option<ListenAddress>,
    /// The directory of all data that the server stores
    #[arg(long, env = "FENCEPOST_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// How long a shutdown waits for open calls, such as 20s
    #[arg(long, env = "FENCEPOST_DRAIN_TIMEOUT", value_name = "TIME")]
    pub drain_timeout: Option<DrainTimeout>,
    /// What to log: a level, or a list with targets such as info,fencepost::api=debug
    #[arg(long, env = "FENCEPOST_LOG_LEVEL", value_name = "FILTER")]
    pub log_level: Option<LogFilter>,
    /// How to write the log
    #[arg(long, env = "FENCEPOST_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

impl Overrides {
    /// The text that they override.
    ///
    /// # Errors
    /// The errors of [`Source::read`].
    pub(super) fn source(&self) -> Result<Source, ConfigError> {
        match self.memory {
            true => Ok(Source::in_memory()),
            false => Source::read(self.config.clone()),
        }
    }

    /// Whether the configuration is read from standard input, which can be read only once.
    pub fn is_standard_input(&self) -> bool {
        self.config
            .as_ref()
            .is_some_and(|path| path.as_os_str() == STANDARD_INPUT)
    }

    /// Overrides the values of the file.
    pub(super) fn apply(self, file: &mut File, source: &mut Source) {
        if self.listen.is_some() {
            source.overridden("listen", "--listen or FENCEPOST_LISTEN");
        }
        if self.metrics_listen.is_some() {
            source.overridden("metrics_listen", "--metrics-listen or FENCEPOST_METRICS_LISTEN");
            file.metrics_listen = self.metrics_listen.map(Listen);
        }
        if self.console_listen.is_some() {
            source.overridden("console_listen", "--console-listen or FENCEPOST_CONSOLE_LISTEN");
            file.console_listen = self.console_listen.map(Listen);
        }
        if self.data_dir.is_some() {
            source.overridden("data_dir", "--data-dir or FENCEPOST_DATA_DIR");
            file.data_dir = self.data_dir;
        }
        replace(
            &mut file.listen,
            self.listen.map(|all| all.into_iter().map(Listen).collect()),
        );
        replace(&mut file.insecure, self.insecure);
        replace(&mut file.drain_timeout, self.drain_timeout);
        replace(&mut file.log.level, self.log_level);
        replace(&mut file.log.format, self.log_format);
    }
}

fn replace<T>(value: &mut T, by: Option<T>) {
    if let Some(by) = by {
        *value = by;
    }
}
