//! Reads the files that a configuration names: only regular files of bounded size, and without blocking. Replaces files
//! of the server whole.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Error, ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{Access, Mode, OFlags};

/// The largest file that is read, in bytes.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// Reads a whole file.
///
/// # Errors
/// When the file cannot be opened or read, is not a regular file, or is larger than [`MAX_FILE_BYTES`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Without NONBLOCK the open of a FIFO without a writer blocks forever.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    check(&file.metadata()?)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    check_size(bytes.len() as u64)?;
    Ok(bytes)
}

/// Reads a record that this server keeps. None if there is none: it has kept nothing in a folder that it may not search.
///
/// # Errors
/// As [`read`]. A record that is there and may not be read was perhaps written by this server as another user.
pub fn read_record(path: &Path) -> io::Result<Option<Vec<u8>>> {
    use ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    match read(path) {
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(None),
        Err(error) if error.kind() == PermissionDenied && path.metadata().is_err() => Ok(None),
        read => read
            .map(Some)
            .map_err(|error| Error::new(error.kind(), format!("{}: {error}", path.display()))),
    }
}

/// Reads a whole file of text.
///
/// # Errors
/// As [`read`], and when the file is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| Error::new(ErrorKind::InvalidData, "it is not UTF-8 text"))
}

fn check(metadata: &std::fs::Metadata) -> io::Result<()> {
    if metadata.is_dir() {
        return Err(Error::new(ErrorKind::IsADirectory, "it is a directory"));
    }
    if !metadata.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    check_size(metadata.len())
}

fn check_size(bytes: u64) -> io::Result<()> {
    if bytes <= MAX_FILE_BYTES {
        return Ok(());
    }
    let problem = format!("it is larger than {MAX_FILE_BYTES} bytes");
    Err(Error::new(ErrorKind::FileTooLarge, problem))
}

/// Makes a folder and its missing parents durably, for this user alone.
///
/// # Errors
/// The system's.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let above = folder_of(folder);
    make_folder(above)?;
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|()| sync_folder(above)),
    }
}

/// Makes the names in a folder durable. Otherwise a power failure could remove a new name, and the file with it, after
/// what is in the file was relied on.
///
/// # Errors
/// The system's.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Writes a file durably, for this user alone, in the place of what has its name. The file appears whole: it is written
/// under a new name beside it, which no link and no other file can have, and then renamed. A link at the name is replaced,
/// not followed.
///
/// # Errors
/// The system's. The file before is then still there.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    let mut unfinished = OsString::from(".");
    unfinished.push(name);
    unfinished.push(format!(".{:016x}", getrandom::u64().map_err(Error::other)?));
    let unfinished = path.with_file_name(unfinished);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(&unfinished, flags, Mode::RUSR | Mode::WUSR)?);
    let written = file.write_all(content).and_then(|()| file.sync_all());
    let replaced = written.and_then(|()| std::fs::rename(&unfinished, path));
    if replaced.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    replaced.and_then(|()| sync_folder(folder_of(path)))
}

/// Waits until no other process, and no other call in this one, has this file locked, and locks it until the returned one
/// is dropped. The file is made if it is missing, for this user alone, and stays.
///
/// # Errors
/// The system's.
pub fn lock(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    file.lock()?;
    Ok(file)
}

/// The folder of a file or folder.
pub fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Checks that a folder is there, or can be made, and can be written to.
///
/// # Errors
/// What is wrong, for the refusal of the setting that names it.
pub fn check_folder(folder: &Path) -> Result<(), String> {
    let there = folder.ancestors().find(|path| std::fs::symlink_metadata(path).is_ok());
    let there = there.unwrap_or(Path::new("/"));
    if !std::fs::metadata(there).is_ok_and(|found| found.is_dir()) {
        return Err(format!(
            "must be a directory or free for one, and {} is not",
            there.display()
        ));
    }
    let access = Access::WRITE_OK | Access::EXEC_OK;
    rustix::fs::access(there, access).map_err(|error| format!("{}: cannot be written to: {error}", there.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_for_this_user_alone_and_no_link_is_followed() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("other"), "other").expect("a file");
        std::os::unix::fs::symlink(at("other"), at("file")).expect("a link");
        for text in ["one", "two"] {
            replace(&at("file"), text.as_bytes()).expect("it is written");
            assert_eq!(fs::read_to_string(at("file")).expect("a file"), text);
            let found = fs::symlink_metadata(at("file")).expect("a file");
            assert_eq!((found.is_file(), found.permissions().mode() & 0o7777), (true, 0o600));
        }
        assert_eq!(fs::read_to_string(at("other")).expect("a file"), "other");
        fs::create_dir(at("folder")).expect("a folder");
        replace(&at("folder"), b"x").expect_err("it is a folder");
        let left = fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(left, 3, "nothing unfinished is left");
    }

    #[test]
    fn only_regular_files_of_bounded_size_are_read_without_blocking() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "text").expect("a file");
        std::os::unix::fs::symlink("file", at("link")).expect("a link");
        assert_eq!(read_text(&at("link")).expect("it is one"), "text");
        fs::write(at("bytes"), b"\xff").expect("a file");
        fs::create_dir(at("folder")).expect("a folder");
        mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
        File::create(at("large"))
            .and_then(|file| file.set_len(MAX_FILE_BYTES + 1))
            .expect("a file");
        let refused = |name: &str| read_text(&at(name)).expect_err(name).kind();
        assert_eq!(refused("bytes"), ErrorKind::InvalidData);
        assert_eq!(refused("folder"), ErrorKind::IsADirectory);
        assert_eq!(refused("fifo"), ErrorKind::InvalidInput);
        assert_eq!(refused("large"), ErrorKind::FileTooLarge);
        assert_eq!(refused("none"), ErrorKind::NotFound);
    }
}
