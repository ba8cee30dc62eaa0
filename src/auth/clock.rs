//! The time of day, which says whether a signed token or a certificate is still good. It decides nothing about leases.

use std::time::SystemTime;

/// The seconds since 1970, as signed tokens count them.
pub(super) fn seconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
