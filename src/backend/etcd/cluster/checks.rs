//! Reads the cluster's status: at the start of each session, and every few seconds.
//!
//! If etcd has no space, no step that writes is sent, and releases are sent without a record of the end: the request
//! that exceeds the quota is applied and refused, so its outcome would be unknown.

use etcd_client::{Error, GetOptions};

use super::Failure;
use super::client::ClusterClient;

/// The status of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The version of the member that answered.
    pub version: String,
    /// The size of the member's database file, in bytes.
    pub db_bytes: i64,
    /// Its space is used up: it accepts no writes until an operator frees some and disarms the alarm.
    pub full: bool,
    /// It has a long history that was never compacted.
    pub uncompacted: bool,
    /// The other errors that it reports.
    pub errors: Vec<String>,
}

/// From this revision on, an uncompacted history counts as long. A pair of an Acquire and a Release leaves half a
/// kilobyte of history.
const LONG_HISTORY: i64 = 10_000;

impl Condition {
    /// Reads the status of the member in use. `readable` is a key that this server may read.
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

    /// Logs the status.
    pub fn tell(&self) {
        tracing::info!(version = self.version, db_bytes = self.db_bytes, "etcd answers");
        for fault in known_faults(&self.version) {
            tracing::warn!(
                version = self.version,
                fault,
                "this version of etcd has a known fault: upgrade it"
            );
        }
        if self.uncompacted {
            tracing::warn!(
                "etcd has never compacted its history, which grows with every grant: set --auto-compaction-retention"
            );
        }
        for error in &self.errors {
            tracing::warn!(error, "etcd reports an error");
        }
    }
}

/// Whether the history still begins at its first revision.
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

/// The known faults of a version.
fn known_faults(version: &str) -> Vec<&'static str> {
    let mut parts = version.split(['.', '-', '+']).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch))) = (parts.next(), parts.next(), parts.next()) else {
        return vec!["its version cannot be read"];
    };
    let is = |release: (u32, u32), below: u32| (major, minor) == release && patch < below;
    let before = |release: (u32, u32)| (major, minor) < release;
    let faults = [
        (
            before((3, 4)),
            "it is older than any version that this backend was tested with",
        ),
        (
            is((3, 4), 31) || is((3, 5), 13),
            "a partitioned leader still answers keep-alives, so a lease may expire unnoticed",
        ),
        (is((3, 5), 3), "its members may become inconsistent after a crash"),
        (
            before((3, 5)) || is((3, 5), 33) || is((3, 6), 14),
            "writes of nested transactions bypass its space quota",
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
    fn each_version_has_its_known_faults() {
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
