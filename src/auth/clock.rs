//! The time of day, which decides whether a JWT or a certificate has expired. It has no influence on leases.

use std::time::SystemTime;

/// Seconds since 1970, the unit of times in JWTs.
pub(super) fn seconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
