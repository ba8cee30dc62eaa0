//! A file with the highest token of its lock beside it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::{FencingToken, StaleToken, parse};

/// Why no work was done with a file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A newer holder has raised the file's token.
    #[error(transparent)]
    Stale(#[from] StaleToken),
    /// The token cannot be kept.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Raises the token beside a file, and keeps other holders of this machine out until `work` has returned.
///
/// The token is in `PATH.token`, and `PATH.lock` is locked by `flock` meanwhile: all processes must see one file system that has
/// it. Delete neither of them. Give the file its content at once, by a rename, if the process may end in `work`. This blocks the thread while another
/// holder is in its work: within tokio, call it from `spawn_blocking`.
///
/// # Errors
/// [`FileError`].
pub fn with_file<R>(path: &Path, token: &FencingToken, work: impl FnOnce(&Path) -> R) -> Result<R, FileError> {
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(beside(path, ".lock"))?;
    lock.lock()?;
    let kept = beside(path, ".token");
    let highest = match fs::read_to_string(&kept) {
        Ok(text) => parse(text.trim()).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?,
        Err(error) if error.kind() == ErrorKind::NotFound => 0,
        Err(error) => return Err(error.into()),
    };
    token.compare(highest)?;
    if highest < token.number {
        replace(&kept, &token.number.to_string())?;
    }
    Ok(work(path))
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(end);
    name.into()
}

/// Durable: a crash leaves the old content or the new one.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = beside(path, ".new");
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(new, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
