//! Attacks on the real server beside a client that only wants to work: what each attack may take of the
//! server's capacity, as seen by that client. `README.md` has the table.

#![cfg(feature = "embedded")]

use common::{server, session_client};

mod crowds;
mod fixture;
mod forged;
mod memory;
mod order;
mod protocol;
mod reads;
mod resumed;
mod revoked;
mod sessions;
#[allow(dead_code, reason = "one kind of key is enough here")]
#[path = "../secure/signer.rs"]
mod signer;
mod unread;
mod untaken;

/// What the signer writes its files with.
mod authority {
    use std::path::{Path, PathBuf};

    /// A file with this text.
    pub fn file(folder: &Path, name: &str, text: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("a file");
        path
    }
}

/// An attack has the machine to itself among these: what it takes is measured.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ATTACKS: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ATTACKS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
