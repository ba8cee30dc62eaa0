//! The limits of a namespace, and the one place that checks a caller's values against them.

use std::time::Duration;

use crate::name::{InvalidField, LockName, MAX_NAME_BYTES, Ttl};

/// What a namespace accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The smallest TTL.
    pub ttl_min: Duration,
    /// The TTL of an Acquire that names none.
    pub ttl_default: Duration,
    /// The largest TTL.
    pub ttl_max: Duration,
    /// The longest wait.
    pub wait_max: Duration,
    /// How many claims a lock's queue takes, holders and waiters together.
    pub queue: u32,
    /// The longest lock name, in bytes.
    pub name_bytes: u32,
    /// How many finished calls are remembered.
    pub finished: u32,
    /// How many holds one claim may have by re-entry.
    pub holds: u32,
    /// How many bytes of owners and metadata the claims have that wait on one server.
    pub waiting_bytes: u32,
    /// How much of these bytes one identity may use, in percent.
    pub identity_share: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ttl_min: Duration::from_millis(500),
            ttl_default: Duration::from_secs(30),
            ttl_max: Duration::from_secs(24 * 3600),
            wait_max: Duration::from_secs(24 * 3600),
            queue: 20_000,
            name_bytes: MAX_NAME_BYTES as u32,
            finished: 100_000,
            holds: 1_000,
            waiting_bytes: 16 << 20,
            identity_share: 50,
        }
    }
}

impl Limits {
    /// The TTL of an Acquire: what was asked, or the default.
    ///
    /// # Errors
    /// [`InvalidField`] outside the namespace's bounds.
    pub fn ttl(&self, asked: Option<Duration>) -> Result<Ttl, InvalidField> {
        let ttl = asked.unwrap_or(self.ttl_default);
        if ttl < self.ttl_min || ttl > self.ttl_max {
            return Err(InvalidField::new(
                "ttl",
                format!(
                    "must be {} to {}, not {}",
                    written(self.ttl_min),
                    written(self.ttl_max),
                    written(ttl)
                ),
            ));
        }
        Ttl::new(ttl)
    }

    /// How long an Acquire may wait.
    ///
    /// # Errors
    /// [`InvalidField`] above the namespace's bound.
    pub fn wait(&self, asked: Duration) -> Result<Duration, InvalidField> {
        if asked > self.wait_max {
            return Err(InvalidField::new(
                "wait",
                format!("must be at most {}, not {}", written(self.wait_max), written(asked)),
            ));
        }
        Ok(asked)
    }

    /// How long a release may keep its lock taken.
    ///
    /// # Errors
    /// [`InvalidField`] above the namespace's longest TTL.
    pub fn keep_for(&self, asked: Duration) -> Result<Duration, InvalidField> {
        if asked > self.ttl_max {
            return Err(InvalidField::new(
                "keep_for",
                format!("must be at most {}, not {}", written(self.ttl_max), written(asked)),
            ));
        }
        Ok(asked)
    }

    /// Whether a lock name is short enough here.
    ///
    /// # Errors
    /// [`InvalidField`] above the namespace's bound.
    pub fn name(&self, name: &LockName) -> Result<(), InvalidField> {
        let bytes = name.as_str().len();
        if bytes > self.name_bytes as usize {
            return Err(InvalidField::new(
                "name",
                format!("must be 1 to {} bytes here, not {bytes}", self.name_bytes),
            ));
        }
        Ok(())
    }
}

const MILLISECOND: u128 = 1_000_000;
const SECOND: u128 = 1_000_000_000;

/// The units of time, each in nanoseconds.
const UNITS: [(&str, u128); 8] = [
    ("week", 604_800_000_000_000),
    ("day", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", SECOND),
    ("ms", MILLISECOND),
    ("us", 1_000),
    ("ns", 1),
];

/// A time as people write it: a whole number of its largest unit, such as `1week`, `90m` or `86398s`.
fn written(time: Duration) -> String {
    let mut time = time.as_nanos();
    // A time that was computed has no unit in which it is short; above a second, nobody asks for less than a millisecond.
    if time > SECOND && !time.is_multiple_of(MILLISECOND) {
        time = time.next_multiple_of(MILLISECOND);
    }
    let unit = UNITS
        .iter()
        .find(|(_, unit)| time >= *unit && time.is_multiple_of(*unit));
    let (name, unit) = unit.unwrap_or(&("s", 1));
    let count = time / unit;
    let plural = if count > 1 && matches!(*name, "week" | "day") {
        "s"
    } else {
        ""
    };
    format!("{count}{name}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_in_its_largest_unit() {
        for text in [
            "1week",
            "2weeks",
            "1day",
            "6days",
            "23h",
            "90m",
            "86398s",
            "500ms",
            "1us",
            "999999999ns",
            "0s",
        ] {
            let time = humantime::parse_duration(text).expect(text);
            assert_eq!(written(time), text);
        }
    }

    #[test]
    fn a_time_that_was_computed_is_rounded_up_to_ms() {
        for (nanos, text) in [
            (604_799_999_999_838, "1week"),
            (1_000_000_001, "1001ms"),
            (999_999_999, "999999999ns"),
        ] {
            assert_eq!(written(Duration::from_nanos(nanos)), text);
        }
    }
}
