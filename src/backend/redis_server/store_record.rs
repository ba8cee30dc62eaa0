//! The stores in which this server has granted leases, as a file in its data directory names them.
//!
//! A store without a marker is new, or has lost its data. A server whose file names the store knows that it has lost its
//! data. A server whose file does not name it knows nothing: another server may have granted leases there, or the data
//! directory itself may be new.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::files;

/// The name of the file in the data directory. Each line names a store, or one server of it.
const FILE: &str = "used-stores";

/// How long the disk may take. A namespace on a Redis must not depend on it.
const DISK: Duration = Duration::from_secs(2);

/// The line of one store in the file.
#[derive(Debug, Clone, Default)]
pub struct StoreRecord {
    /// Absent: nothing is recorded.
    file: Option<PathBuf>,
    line: String,
}

impl StoreRecord {
    /// The record of the store with this name.
    pub fn new(data_dir: Option<&Path>, store: String) -> Self {
        Self {
            file: data_dir.map(|folder| folder.join(FILE)),
            line: store,
        }
    }

    /// The record of one server of the store.
    #[must_use]
    pub fn of_server(&self, server: &str) -> Self {
        Self {
            file: self.file.clone(),
            line: format!("{} {server}", self.line),
        }
    }

    /// Whether this server has granted leases in the store.
    ///
    /// # Errors
    /// The system's, if the file is there and cannot be read.
    pub async fn exists(&self) -> io::Result<bool> {
        let record = self.clone();
        blocking(move || record.find()).await
    }

    /// Records, durably, that this server grants leases in the store.
    ///
    /// # Errors
    /// The system's.
    ///
    /// # Cancellation safety
    /// A dropped call may still write the record.
    pub async fn write(&self) -> io::Result<()> {
        let record = self.clone();
        blocking(move || record.append()).await
    }

    fn text(&self) -> io::Result<String> {
        match self.file.as_deref().map(std::fs::read_to_string) {
            Some(Err(error)) if error.kind() != ErrorKind::NotFound => Err(error),
            Some(Ok(text)) => Ok(text),
            Some(Err(_)) | None => Ok(String::new()),
        }
    }

    fn find(&self) -> io::Result<bool> {
        Ok(self.text()?.lines().any(|line| line == self.line))
    }

    fn append(&self) -> io::Result<()> {
        let text = self.text()?;
        let Some(path) = self
            .file
            .as_deref()
            .filter(|_| !text.lines().any(|line| line == self.line))
        else {
            return Ok(());
        };
        let folder = files::folder_of(path);
        files::make_folder(folder)?;
        // A crash may have left a part of a line.
        let start = if text.is_empty() || text.ends_with('\n') {
            ""
        } else {
            "\n"
        };
        let mut file: File = OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(format!("{start}{}\n", self.line).as_bytes())?;
        file.sync_all()?;
        files::sync_folder(folder)
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let Ok(ended) = timeout(DISK, spawn_blocking(work)).await else {
        return Err(io::Error::new(
            ErrorKind::TimedOut,
            "the data directory does not answer",
        ));
    };
    ended.unwrap_or_else(|error| Err(io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_store_is_recorded_once_and_is_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().join("a/b");
        let record = StoreRecord::new(Some(&data_dir), "redis one".to_owned());
        assert!(!record.exists().await.unwrap());
        record.write().await.unwrap();
        record.write().await.unwrap();
        assert!(record.exists().await.unwrap());
        assert!(!record.of_server("a:1").exists().await.unwrap());
        assert_eq!(std::fs::read_to_string(data_dir.join(FILE)).unwrap(), "redis one\n");
    }

    #[tokio::test]
    async fn a_part_of_a_line_spoils_no_other_line() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), "redis on").unwrap();
        let record = StoreRecord::new(Some(folder.path()), "redis one".to_owned());
        assert!(!record.exists().await.unwrap());
        record.write().await.unwrap();
        assert!(record.exists().await.unwrap());
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(FILE)).unwrap();
        let record = StoreRecord::new(Some(folder.path()), "redis one".to_owned());
        record.exists().await.unwrap_err();
    }

    #[tokio::test]
    async fn without_a_data_directory_nothing_is_recorded() {
        let record = StoreRecord::new(None, "redis one".to_owned());
        record.write().await.unwrap();
        assert!(!record.exists().await.unwrap());
    }
}
