//! The wall clock. It scales tokens and dates what people see; it decides nothing about leases.

use std::time::{SystemTime, UNIX_EPOCH};

/// The time of day.
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// A time in microseconds since 1970: the scale of the tokens.
pub fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
