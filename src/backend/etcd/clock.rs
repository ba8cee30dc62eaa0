//! The wall clock. It sets the floor of new token bases and the timestamps that the API returns; no decision depends on
//! it.

use std::time::{SystemTime, UNIX_EPOCH};

/// The current wall-clock time.
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// Microseconds since 1970.
pub fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
