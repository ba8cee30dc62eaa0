//! A wall clock of its own for a server: `clock.c`, preloaded, and the file that says how far it is shifted.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the shim in this directory.
pub fn build(directory: &Path) {
    let built = Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-o"])
        .arg(directory.join("clock.so"))
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/clock.c"))
        .output()
        .expect("cc runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// Shifts the clock by so many seconds and milliseconds, at once.
pub fn write_shift(directory: &Path, shift: [i64; 2]) {
    // In place: the server has mapped the file.
    let file = std::fs::File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(directory.join("shift"));
    let bytes = shift.map(i64::to_ne_bytes).concat();
    file.unwrap().write_all(&bytes).unwrap();
}

/// The environment of a server whose shim is in this directory.
pub fn environment(directory: &Path) -> [(&'static str, PathBuf); 2] {
    [
        ("LD_PRELOAD", directory.join("clock.so")),
        ("CLOCK_SHIFT", directory.join("shift")),
    ]
}
