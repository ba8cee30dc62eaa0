//! Locks whose records cannot be read: damaged, or of another release. Lists leave them out, and say so once.

use std::collections::HashSet;
use std::fmt::Display;

use parking_lot::Mutex;

/// How many are remembered as said.
const REMEMBERED: usize = 1_000;

/// Those that were logged.
#[derive(Debug, Default)]
pub struct Unreadable {
    noted: Mutex<HashSet<String>>,
}

impl Unreadable {
    /// Logs a lock that a list leaves out, once; past a thousand of them no more are logged.
    pub fn note(&self, lock: &str, error: &dyn Display) {
        let mut noted = self.noted.lock();
        if noted.len() < REMEMBERED && noted.insert(lock.to_owned()) {
            // A name that is none may hold anything.
            tracing::warn!(?lock, %error, "a lock is not listed: its record cannot be read");
        }
    }
}
