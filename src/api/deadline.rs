//! The caller's own deadline.

use std::time::Duration;

use tonic::metadata::MetadataMap;

/// How long before the caller's deadline a wait ends, at most: time for the answer to arrive.
const HEAD_START: Duration = Duration::from_millis(100);

/// A wait that ends a little before the caller's deadline.
///
/// When both ends give up in the same instant thousands of times, each reset counts against the
/// connection, and the client is not told that its wait ran out.
pub(super) fn shortened(wait: Duration, metadata: &MetadataMap) -> Duration {
    let timeout = metadata
        .get("grpc-timeout")
        .and_then(|text| timeout(text.to_str().ok()?));
    timeout.map_or(wait, |timeout| wait.min(timeout - HEAD_START.min(timeout / 10)))
}

/// Reads a `grpc-timeout`: at most eight digits and a unit.
fn timeout(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = number.len() <= 8 && number.bytes().all(|b| b.is_ascii_digit());
    let number: u32 = number.parse().ok().filter(|_| is_number)?;
    let unit = match unit {
        "H" => Duration::from_secs(3600),
        "M" => Duration::from_secs(60),
        "S" => Duration::from_secs(1),
        "m" => Duration::from_millis(1),
        "u" => Duration::from_micros(1),
        "n" => Duration::from_nanos(1),
        _ => return None,
    };
    Some(unit * number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_before_the_callers_deadline() {
        let wait = Duration::from_secs(10);
        for (text, expected) in [
            ("2S", Duration::from_millis(1900)),
            ("500m", Duration::from_millis(450)),
            ("99999999H", wait),
            ("1x", wait),
            ("", wait),
            ("S", wait),
            ("+1S", wait),
            ("123456789m", wait),
        ] {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().unwrap());
            assert_eq!(shortened(wait, &metadata), expected, "{text:?}");
        }
    }

    #[test]
    fn a_wait_without_a_deadline_stays() {
        assert_eq!(
            shortened(Duration::from_secs(3), &MetadataMap::new()),
            Duration::from_secs(3)
        );
    }
}
