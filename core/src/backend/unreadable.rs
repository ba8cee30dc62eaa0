//! Locks whose records cannot be read: damaged, or of another release. Lists leave them out and log
//! each once.

use std::collections::HashSet;
use std::fmt::Display;

use parking_lot::Mutex;

/// How many locks are logged at most.
const REMEMBERED: usize = 1_000;

/// The locks that were logged.
#[derive(Debug, Default)]
pub struct Unreadable {
    logged: Mutex<HashSet<String>>,
}

impl Unreadable {
    /// Logs a lock that a list leaves out, once. At most a thousand locks are logged.
    pub fn note(&self, lock: &str, error: &dyn Display) {
        let mut logged = self.logged.lock();
        if logged.len() < REMEMBERED && logged.insert(lock.to_owned()) {
            // The debug format escapes the name, because an unreadable name can contain anything.
            tracing::warn!(?lock, %error, "a lock is not listed: its record cannot be read");
        }
    }
}
