//! Applies configuration changes at run time.
//!
//! On SIGHUP, or when a file that the server reads has changed, the configuration is read again. All checks come first;
//! only then is the change applied: namespaces are added and removed, limits and the log level change, and no call is
//! interrupted. A change is rejected as a whole: the previous configuration stays in force, the log names the reason,
//! and a metric stays set until a change succeeds.
//!
//! The files that the configuration names are read again even then, each separately. An error elsewhere must not keep
//! an old certificate or a revoked token in use. This includes the credentials for stores, which apply to later
//! connections.
//!
//! Files are polled once a second, through symbolic links: Kubernetes updates a config map by replacing a link, which a
//! watch on the file itself does not observe.

mod access;
mod retiring;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{Stream, StreamExt};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

pub use self::access::{AccessPart, Encryption};
use self::retiring::Retiring;
use crate::config::{Config, ConfigError, Overrides};
use crate::metrics::ServerMetrics;
use crate::name::Namespace;
use crate::stores::{self, OpenError, Stores};
use crate::supervisor::supervised;

/// The interval between checks of the files.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The delay before files that could not be used are read again although they have not changed: no file attribute shows
/// that a read error is gone.
const REREAD_DELAY: Duration = Duration::from_secs(3);

/// Why a changed configuration was rejected.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It changes a key that is read at the start only.
    #[error("{} can only change with a restart", keys.join(", "))]
    NeedsRestart {
        /// The keys.
        keys: Vec<String>,
    },
    /// One of its namespaces cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A part of the server cannot apply it.
    #[error("{part}: {source}")]
    ReloadPart {
        /// The name of the part.
        part: &'static str,
        /// The cause.
        source: Problem,
    },
}

impl Refused {
    /// Whether only a change of the text can fix it.
    fn is_in_text(&self) -> bool {
        matches!(
            self,
            Self::Config(ConfigError::Refused { .. }) | Self::NeedsRestart { .. }
        )
    }
}

/// An error of a part.
pub type Problem = Box<dyn std::error::Error + Send + Sync>;

/// Applies a prepared change. It cannot fail.
pub type Apply = Box<dyn FnOnce() + Send>;

/// A part of the server that applies configuration changes, such as certificates, rules, the log.
pub trait ReloadPart: Send + Sync {
    /// The name of the part, for the log.
    fn name(&self) -> &'static str;

    /// Reads and checks the new values without applying them.
    ///
    /// # Errors
    /// Why they cannot be used. The changed configuration is then rejected as a whole.
    fn prepare(&self, config: &Config) -> Result<Apply, Problem>;

    /// Reads the files of the configuration in force again and applies the usable content of each. An error in one file
    /// must not keep removed entries of another in use. Returns the errors.
    fn renew(&self, _: &Config) -> Vec<Problem> {
        Vec::new()
    }
}

/// A part that applies values which cannot be invalid.
#[derive(Debug)]
pub struct ValuesPart<F>(pub &'static str, pub F);

impl<F: Fn(&Config) -> Apply + Send + Sync> ReloadPart for ValuesPart<F> {
    fn name(&self) -> &'static str {
        self.0
    }

    fn prepare(&self, config: &Config) -> Result<Apply, Problem> {
        Ok((self.1)(config))
    }
}

/// Applies configuration changes.
pub struct Reload {
    overrides: Overrides,
    current: Config,
    /// The last configuration that was valid but rejected or deferred. Its files are polled too, because a change of
    /// them may make it usable.
    refused: Option<Config>,
    /// The removed namespace that a deferred configuration waits for.
    waits_for: Option<Namespace>,
    retiring: Retiring,
    /// When to read the configuration again although no file has changed.
    reread_at: Option<Instant>,
    /// The errors of the last reload, so that a repeated error is not logged again.
    errors: Vec<String>,
    /// The state of the files before they were last read.
    recorded: FileSnapshots,
    stores: Stores,
    parts: Vec<Box<dyn ReloadPart>>,
    metrics: Option<ServerMetrics>,
}

impl Reload {
    /// For a server that was started with `overrides`, which resulted in `config`. `recorded` is the state of the files
    /// before they were read.
    pub fn new(
        (overrides, recorded): (Overrides, FileSnapshots),
        config: Config,
        stores: Stores,
        metrics: Option<ServerMetrics>,
    ) -> Self {
        Self {
            overrides,
            current: config,
            refused: None,
            waits_for: None,
            retiring: Retiring::default(),
            reread_at: None,
            errors: Vec::new(),
            recorded,
            stores,
            parts: Vec::new(),
            metrics,
        }
    }

    /// Adds a part of the server that applies changes.
    #[must_use]
    pub fn with(mut self, part: impl ReloadPart + 'static) -> Self {
        self.parts.push(Box::new(part));
        self
    }

    /// Reloads when a file has changed and at each item of `requests`, until `stop`.
    pub async fn run(mut self, requests: impl Stream<Item = ()> + Send + Unpin, stop: CancellationToken) {
        let following = (&mut self, requests, &stop);
        supervised(
            "reload",
            following,
            |_, _| (),
            |(reload, requests, stop)| reload.follow(requests, stop).boxed(),
        )
        .await;
        self.retiring.end().await;
    }

    async fn follow(&mut self, requests: &mut (impl Stream<Item = ()> + Unpin), stop: &CancellationToken) {
        let mut polls = interval(POLL_INTERVAL);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(()) = requests.next() => {
                    tracing::info!("reading the configuration again on request");
                    self.errors.clear();
                }
                _ = polls.tick() => {
                    let retiring = &mut self.retiring;
                    let has_ended = self.waits_for.take_if(|namespace| !retiring.has(namespace));
                    let is_due = self.reread_at.is_some_and(|due| Instant::now() >= due);
                    if self.snapshot() != self.recorded {
                        tracing::info!("a file has changed: reading the configuration again");
                        self.errors.clear();
                    } else if has_ended.is_none() && !is_due {
                        continue;
                    }
                }
            }
            // Recorded before the files are read, so that a change during the read causes another reload.
            self.recorded = self.snapshot();
            // So that a reload which panics is done again.
            self.reread_at = Some(Instant::now() + REREAD_DELAY);
            self.reload_and_log().await;
            let files = self.files();
            self.recorded.0.retain(|file, _| files.contains(file));
        }
    }

    /// Reads the configuration again and applies it, or logs why not. If something could not be used that may become
    /// usable without a visible change, the configuration is read again in 3 s.
    pub async fn reload_and_log(&mut self) {
        let before = std::mem::take(&mut self.errors);
        let reloaded = self.reload().await;
        let mut needs_reread = matches!(&reloaded, Err(error) if !error.is_in_text());
        match reloaded {
            Ok(Some(namespace)) => {
                tracing::info!(
                    "the changed configuration is deferred until the last calls of namespace {namespace} have ended"
                );
                self.waits_for = Some(namespace);
                needs_reread |= self.renew(&before);
            }
            Ok(None) => {
                tracing::info!("the changed configuration is in force");
                if let Some(metrics) = &self.metrics {
                    metrics.reloaded();
                }
            }
            Err(error) => {
                if self.is_new(error.to_string(), &before) {
                    tracing::error!(%error, "the changed configuration is rejected, the previous one stays in force");
                }
                if let Some(metrics) = &self.metrics {
                    metrics.reload_failed.set(1);
                }
                needs_reread |= self.renew(&before);
            }
        }
        self.reread_at = needs_reread.then(|| Instant::now() + REREAD_DELAY);
    }

    /// Records an error. Returns whether the previous reload did not have it.
    fn is_new(&mut self, error: String, before: &[String]) -> bool {
        let is_new = !before.contains(&error);
        self.errors.push(error);
        is_new
    }

    /// Lets each part and each store read its files again and apply their usable content. Returns whether there were
    /// errors.
    fn renew(&mut self, before: &[String]) -> bool {
        let known = self.errors.len();
        for error in self.stores.renew_credentials() {
            if self.is_new(error.to_string(), before) {
                tracing::warn!(%error, "the previous credentials for a store stay in use");
            }
        }
        let errors = self.parts.iter().map(|part| (part.name(), part.renew(&self.current)));
        let errors: Vec<_> = errors.collect();
        for (part, errors) in errors {
            for error in errors {
                if self.is_new(error.to_string(), before) {
                    tracing::warn!(%error, part, "a file cannot be used as it is");
                }
            }
        }
        self.errors.len() > known
    }

    /// Applies the configuration, or returns the removed namespace that it must wait for.
    async fn reload(&mut self) -> Result<Option<Namespace>, Refused> {
        self.waits_for = None;
        let config = Config::load(self.overrides.clone(), stores::ALL)?;
        // Recorded before they are read, as for the other files.
        self.recorded.record(config.files());
        self.refused = Some(config.clone());
        let keys = self.current.needs_restart(&config);
        if !keys.is_empty() {
            return Err(Refused::NeedsRestart { keys });
        }
        if let Some(namespace) = self.retiring.blocked_by(&self.current, &config) {
            return Ok(Some(namespace));
        }
        let prepared: Result<Vec<Apply>, Refused> = self.parts.iter().map(|part| prepare(&**part, &config)).collect();
        let (applies, change) = (prepared?, self.stores.prepare(&config).await?);
        let removed = change.gone();
        self.stores.apply(change);
        applies.into_iter().for_each(|apply| apply());
        for served in removed {
            self.retiring.begin(served, &self.current);
        }
        (self.current, self.refused) = (config, None);
        Ok(None)
    }

    fn files(&self) -> Vec<PathBuf> {
        let own = self.overrides.config.clone();
        let configs = [Some(&self.current), self.refused.as_ref()].into_iter().flatten();
        own.into_iter().chain(configs.flat_map(Config::files)).collect()
    }

    fn snapshot(&self) -> FileSnapshots {
        FileSnapshots::of(self.files())
    }
}

fn prepare(part: &dyn ReloadPart, config: &Config) -> Result<Apply, Refused> {
    part.prepare(config).map_err(|source| Refused::ReloadPart {
        part: part.name(),
        source,
    })
}

/// The state of files when they were first recorded.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FileSnapshots(BTreeMap<PathBuf, Fingerprint>);

impl FileSnapshots {
    fn of(files: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut recorded = Self::default();
        recorded.record(files);
        recorded
    }

    /// Records the state of files that are about to be read, so that no later change is missed. Files that are already
    /// recorded keep their recorded state.
    pub fn record(&mut self, files: impl IntoIterator<Item = PathBuf>) {
        for file in files {
            self.0.entry(file).or_insert_with_key(|file| Fingerprint::of(file));
        }
    }
}

/// Identifies the version of a file, with links resolved; `None` for a file that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint(Option<[i64; 7]>);

impl Fingerprint {
    fn of(file: &Path) -> Self {
        let metadata = std::fs::metadata(file).ok();
        Self(metadata.map(|metadata| {
            let (device, inode, size) = (metadata.dev(), metadata.ino(), metadata.size());
            [
                device.cast_signed(),
                inode.cast_signed(),
                size.cast_signed(),
                metadata.mtime(),
                metadata.mtime_nsec(),
                // A copy may keep the size and the modification time; the time of the change itself cannot be set.
                metadata.ctime(),
                metadata.ctime_nsec(),
            ]
        }))
    }
}

#[cfg(test)]
mod tests;
