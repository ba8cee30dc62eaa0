//! What a cluster is asked about itself: at the start of each session, and now and then.

use etcd_client::{Error, GetOptions};

use super::cluster_client::{Failure, ClusterClient};

/// How a cluster is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The version of the member that was asked.
    pub version: String,
    /// The size of its file, in bytes.
    pub db_bytes: i64,
    /// The space that it may use is used up: it takes no writes until somebody frees some and
    /// disarms the alarm.
    pub full: bool,
    /// It keeps the whole of a long history: nobody compacts it.
    pub uncompacted: bool,
    /// What else it says is wrong.
    pub errors: Vec<String>,
}

/// From which revision on a history is long that still begins at its first one. A pair of an Acquire
/// and a Release leaves half a kilobyte.
const LONG_HISTORY: i64 = 10_000;

impl Condition {
    /// Asks the member that is in use; this server may read that key.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn of(link: &ClusterClient, readable: &str) -> Result<Self, Failure> {
        let status = link.call(|mut client| async move { client.status().await }).await?;
        let (full, errors) = status
            .errors()
            .iter()
            .cloned()
            .partition::<Vec<_>, _>(|error| error.contains("NOSPACE"));
        let revision = status.header().map_or(0, etcd_client::ResponseHeader::revision);
        Ok(Self {
            uncompacted: revision > LONG_HISTORY && has_first_revision(link, readable).await?,
            version: status.version().to_owned(),
            db_bytes: status.db_size(),
            full: !full.is_empty(),
            errors,
        })
    }

    /// Says in the log how it is.
    pub fn tell(&self) {
        tracing::info!(version = self.version, db_bytes = self.db_bytes, "etcd answers");
        for fault in known_faults(&self.version) {
            tracing::warn!(version = self.version, fault, "etcd has a known fault: upgrade it");
        }
        if self.uncompacted {
            tracing::warn!(
                "etcd has never compacted its history, which grows with every lock: let it (--auto-compaction-retention)"
            );
        }
        for error in &self.errors {
            tracing::warn!(error, "etcd says that something is wrong");
        }
    }
}

/// Whether the history begins at its first revision still.
async fn has_first_revision(link: &ClusterClient, readable: &str) -> Result<bool, Failure> {
    let first = GetOptions::new().with_revision(1).with_count_only();
    let asked = link.call(|mut client| async move {
        match client.get(readable, Some(first)).await {
            Err(Error::GRpcStatus(status)) if status.message().contains("compacted") => Ok(false),
            read => read.map(|_| true),
        }
    });
    asked.await
}

/// What is known to be wrong with a version.
fn known_faults(version: &str) -> Vec<&'static str> {
    let mut parts = version.split(['.', '-', '+']).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch))) = (parts.next(), parts.next(), parts.next()) else {
        return vec!["its version cannot be read"];
    };
    let is = |line: (u32, u32), below: u32| (major, minor) == line && patch < below;
    let before = |line: (u32, u32)| (major, minor) < line;
    let faults = [
        (before((3, 4)), "it is older than any that this backend was tried on"),
        (
            is((3, 4), 31) || is((3, 5), 13),
            "a leader that was cut off still answers signs of life, so a lease may end unseen",
        ),
        (is((3, 5), 3), "its members may come to differ after a crash"),
        (
            before((3, 5)) || is((3, 5), 33) || is((3, 6), 14),
            "writes of nested transactions pass its limit of space",
        ),
    ];
    faults
        .into_iter()
        .filter_map(|(has, fault)| has.then_some(fault))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_known_by_their_faults() {
        for (version, faults) in [
            ("3.3.27", 2),
            ("3.4.23", 2),
            ("3.4.31", 1),
            ("3.5.2", 3),
            ("3.5.12", 2),
            ("3.5.32", 1),
            ("3.5.33", 0),
            ("3.6.0-rc.1", 1),
            ("3.6.13", 1),
            ("3.6.14", 0),
            ("3.7.0", 0),
            ("4.0.1", 0),
            ("main", 1),
        ] {
            let known = known_faults(version);
            assert_eq!(known.len(), faults, "{version}: {known:?}");
        }
    }
}
