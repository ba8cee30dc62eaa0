//! A small file system of its own, which another file fills.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The file system. It is unmounted when the value is dropped.
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// One of this size, such as `6m`. None where this user may not mount one.
    pub fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a directory");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(folder.path())
            .output();
        mount
            .is_ok_and(|mounted| mounted.status.success())
            .then_some(Self(folder))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Leaves no room on it.
    pub fn fill(&self) {
        let mut filler = File::create(self.filler()).expect("the filler");
        while filler.write_all(&[0; 1 << 16]).is_ok() {}
    }

    /// Takes that back.
    pub fn free(&self) {
        std::fs::remove_file(self.filler()).expect("the filler");
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The directory itself is left behind if this fails.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
