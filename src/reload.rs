//! A changed configuration, taken up while the server runs.
//!
//! On SIGHUP, or when a file changes that the server reads, the configuration is read anew. First
//! everything that may refuse it does, and only then is it applied: namespaces come and go, limits and
//! the log's level change, and no call is dropped. What is refused is refused whole, and visibly: the
//! configuration before stays in force, the log says why, and a metric does until it is mended. The files
//! that it names are read anew all the same, each by itself: a fault elsewhere must not keep an old certificate
//! in use, nor a token that was revoked. What proves the server to its stores is among them: each store has its
//! own, and uses it for the connections that are made from then on.
//!
//! Files are looked at once a second and through symbolic links: a Kubernetes config map changes by
//! swapping one, which a watch on the file itself does not see.

mod access;
mod retiring;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::stream::{Stream, StreamExt};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

pub use self::access::{Encryption, AccessPart};
use self::retiring::Retiring;
use crate::config::{Config, ConfigError, Overrides};
use crate::metrics::ServerMetrics;
use crate::name::Namespace;
use crate::namespaces::{OpenError, Stores};

/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How soon files that could not be used are read again though they look the same: nobody sees from outside that
/// a file can be read again.
const READ_AGAIN: Duration = Duration::from_secs(3);

/// Why a changed configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It changes what is read at the start only.
    #[error("{} can only change with a restart", keys.join(", "))]
    NeedsRestart {
        /// The keys.
        keys: Vec<String>,
    },
    /// A namespace of it cannot be served.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A part of the server cannot take it up.
    #[error("{part}: {source}")]
    ReloadPart {
        /// Which part.
        part: &'static str,
        /// Why.
        source: Problem,
    },
}

impl Refused {
    /// Whether it is refused for what it says, which only another text mends.
    fn is_of_its_text(&self) -> bool {
        matches!(
            self,
            Self::Config(ConfigError::Refused { .. }) | Self::NeedsRestart { .. }
        )
    }
}

/// What is wrong with what a part has read.
pub type Problem = Box<dyn std::error::Error + Send + Sync>;

/// Applies what was prepared; it cannot fail any more.
pub type Apply = Box<dyn FnOnce() + Send>;

/// A part of the server that takes a changed configuration up: certificates, rules, the log.
pub trait ReloadPart: Send + Sync {
    /// What it is, for the log.
    fn name(&self) -> &'static str;

    /// Reads what is new without using it yet.
    ///
    /// # Errors
    /// Why it cannot be used; then nothing of the changed configuration is.
    fn prepare(&self, config: &Config) -> Result<Apply, Problem>;

    /// Reads its files anew, by the configuration in force, and uses what is good of each: what is wrong with
    /// one keeps nothing in force that it, or another, takes away. Answers what is wrong.
    fn renew(&self, _: &Config) -> Vec<Problem> {
        Vec::new()
    }
}

/// A part that only takes values over.
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

/// Takes changed configurations up.
pub struct Reload {
    overrides: Overrides,
    current: Config,
    /// The last one that was refused though it is valid: one of its files may become good. Or it was put off.
    refused: Option<Config>,
    /// What must be over before the one that was put off is read again.
    awaited: Option<Namespace>,
    retiring: Retiring,
    /// When what was not read is read again.
    read_again: Option<Instant>,
    /// What was wrong when the configuration was last read, so that the same is not logged again and again.
    faults: Vec<String>,
    /// How its files were before they were last read.
    seen: FileSnapshots,
    stores: Stores,
    parts: Vec<Box<dyn ReloadPart>>,
    metrics: Option<ServerMetrics>,
}

impl Reload {
    /// For a server that was started with `overrides`, which gave `config`, and whose files were noted in
    /// `seen` before they were read.
    pub fn new(
        (overrides, seen): (Overrides, FileSnapshots),
        config: Config,
        stores: Stores,
        metrics: Option<ServerMetrics>,
    ) -> Self {
        Self {
            overrides,
            current: config,
            refused: None,
            awaited: None,
            retiring: Retiring::default(),
            read_again: None,
            faults: Vec::new(),
            seen,
            stores,
            parts: Vec::new(),
            metrics,
        }
    }

    /// Lets another part of the server take changes up.
    #[must_use]
    pub fn with(mut self, part: impl ReloadPart + 'static) -> Self {
        self.parts.push(Box::new(part));
        self
    }

    /// Reloads whenever a file has changed or somebody has `asked` for it, until `stop`.
    pub async fn run(mut self, mut asked: impl Stream<Item = ()> + Unpin, stop: CancellationToken) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(()) = asked.next() => {
                    tracing::info!("asked to read the configuration again");
                    self.faults.clear();
                }
                _ = looks.tick() => {
                    let retiring = &mut self.retiring;
                    let is_over = self.awaited.take_if(|namespace| !retiring.has(namespace));
                    let is_due = self.read_again.is_some_and(|due| Instant::now() >= due);
                    if self.look() != self.seen {
                        tracing::info!("a file has changed: reading the configuration again");
                        self.faults.clear();
                    } else if is_over.is_none() && !is_due {
                        continue;
                    }
                }
            }
            // Before it is read: what changes meanwhile is read again.
            self.seen = self.look();
            self.again().await;
            let files = self.files();
            self.seen.0.retain(|file, _| files.contains(file));
        }
        self.retiring.end().await;
    }

    /// Reads the configuration again, and takes it up or says why not. Where anything could not be used that may
    /// be usable later without a sign of it, it is read again in a moment.
    pub async fn again(&mut self) {
        let before = std::mem::take(&mut self.faults);
        let reloaded = self.reload().await;
        let mut is_unread = matches!(&reloaded, Err(error) if !error.is_of_its_text());
        match reloaded {
            Ok(Some(namespace)) => {
                tracing::info!(
                    "the changed configuration is put off until the last calls of namespace {namespace} have ended"
                );
                self.awaited = Some(namespace);
                is_unread |= self.renew(&before);
            }
            Ok(None) => {
                tracing::info!("the changed configuration is in force");
                if let Some(metrics) = &self.metrics {
                    metrics.reloaded();
                }
            }
            Err(error) => {
                if self.is_new(error.to_string(), &before) {
                    tracing::error!(%error, "the changed configuration is refused, the one before stays in force");
                }
                if let Some(metrics) = &self.metrics {
                    metrics.reload_failed.set(1);
                }
                is_unread |= self.renew(&before);
            }
        }
        self.read_again = is_unread.then(|| Instant::now() + READ_AGAIN);
    }

    /// Notes a fault. Answers whether it was not there before.
    fn is_new(&mut self, fault: String, before: &[String]) -> bool {
        let is_new = !before.contains(&fault);
        self.faults.push(fault);
        is_new
    }

    /// Lets each part, and each store, read its files by the configuration in force, and take up what is good of
    /// them. Answers whether anything was not.
    fn renew(&mut self, before: &[String]) -> bool {
        let known = self.faults.len();
        for error in self.stores.renew_proofs() {
            if self.is_new(error.to_string(), before) {
                tracing::warn!(%error, "what proved this server before stays in use");
            }
        }
        let faults = self.parts.iter().map(|part| (part.name(), part.renew(&self.current)));
        let faults: Vec<_> = faults.collect();
        for (part, errors) in faults {
            for error in errors {
                if self.is_new(error.to_string(), before) {
                    tracing::warn!(%error, part, "a file cannot be used as it is");
                }
            }
        }
        self.faults.len() > known
    }

    /// Takes it up, or answers which namespace must be over first.
    async fn reload(&mut self) -> Result<Option<Namespace>, Refused> {
        self.awaited = None;
        let config = Config::load(self.overrides.clone())?;
        // Before they are read, as with those that are known.
        self.seen.note(config.files());
        self.refused = Some(config.clone());
        let keys = self.current.needs_restart(&config);
        if !keys.is_empty() {
            return Err(Refused::NeedsRestart { keys });
        }
        if let Some(namespace) = self.retiring.in_the_way(&self.current, &config) {
            return Ok(Some(namespace));
        }
        let prepared: Result<Vec<Apply>, Refused> = self.parts.iter().map(|part| prepared(&**part, &config)).collect();
        let (applies, change) = (prepared?, self.stores.prepare(&config).await?);
        let gone = change.gone();
        self.stores.apply(change);
        applies.into_iter().for_each(|apply| apply());
        for served in gone {
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

    fn look(&self) -> FileSnapshots {
        FileSnapshots::of(self.files())
    }
}

fn prepared(part: &dyn ReloadPart, config: &Config) -> Result<Apply, Refused> {
    part.prepare(config).map_err(|source| Refused::ReloadPart {
        part: part.name(),
        source,
    })
}

/// How files were when they were first noted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FileSnapshots(BTreeMap<PathBuf, Fingerprint>);

impl FileSnapshots {
    fn of(files: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut seen = Self::default();
        seen.note(files);
        seen
    }

    /// Looks at files that are about to be read, so that no later change of them is missed. Those that are
    /// noted already stay as they were then.
    pub fn note(&mut self, files: impl IntoIterator<Item = PathBuf>) {
        for file in files {
            self.0.entry(file).or_insert_with_key(|file| Fingerprint::of(file));
        }
    }
}

/// What shows that a file is another, behind all links; nothing for one that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint(Option<[i64; 5]>);

impl Fingerprint {
    fn of(file: &Path) -> Self {
        let found = std::fs::metadata(file).ok();
        Self(found.map(|found| {
            let (device, inode, size) = (found.dev(), found.ino(), found.size());
            [
                device.cast_signed(),
                inode.cast_signed(),
                size.cast_signed(),
                found.mtime(),
                found.mtime_nsec(),
            ]
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_changes_between_a_note_and_a_look_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        let look = || {
            let mut seen = FileSnapshots::default();
            seen.note([file.clone()]);
            seen
        };
        let mut seen = look();
        fs::write(&file, "first").expect("a file");
        seen.note([file.clone()]);
        assert_ne!(seen, look(), "the first note counts");
        assert_eq!(look(), look());
    }

    #[test]
    fn a_file_is_another_when_a_link_to_it_is_swapped_or_it_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("old")).expect("a folder");
        fs::create_dir(at("new")).expect("a folder");
        fs::write(at("old/file"), "same").expect("a file");
        fs::write(at("new/file"), "same").expect("a file");
        symlink("old", at("data")).expect("a link");
        symlink("data/file", at("file")).expect("a link");
        let old = Fingerprint::of(&at("file"));
        assert_eq!(old, Fingerprint::of(&at("file")));
        symlink("new", at("next")).expect("a link");
        fs::rename(at("next"), at("data")).expect("the swap");
        let new = Fingerprint::of(&at("file"));
        assert_ne!(old, new, "the same text in another file");
        fs::write(at("new/file"), "longer").expect("a file");
        assert_ne!(new, Fingerprint::of(&at("file")));
        fs::remove_file(at("new/file")).expect("a file");
        assert_eq!(Fingerprint(None), Fingerprint::of(&at("file")));
    }
}
