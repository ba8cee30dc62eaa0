//! The file that tells the addresses of a server which accepts calls.

use std::path::{Path, PathBuf};
use std::{fs, io};

use fencepost::files;

/// The file, which is removed when this is dropped.
#[derive(Debug)]
pub struct ReadyFile(PathBuf);

/// Removes the file of a server that was killed, or a link in its place.
///
/// # Errors
/// The operating system's, with the path.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(named(path)(error)),
        _ => Ok(()),
    }
}

fn named(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::other(format!("the ready file {}: {error}", path.display()))
}

impl ReadyFile {
    /// Writes the addresses, one a line, as [`files::replace`] does: others may write to the directory, and a link of
    /// theirs would have the server overwrite another file.
    ///
    /// # Errors
    /// The operating system's, with the path.
    pub fn write(path: &Path, addresses: &[String]) -> io::Result<Self> {
        let text: String = addresses.iter().flat_map(|address| [address, "\n"]).collect();
        files::replace(path, text.as_bytes()).map_err(named(path))?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        // If this fails, a reader finds a server that is gone, as after a crash.
        let _ = fs::remove_file(&self.0);
    }
}
