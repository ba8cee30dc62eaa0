//! The values of a configuration: each type refuses what is outside its bounds while it is read,
//! so that the refusal knows its line, and tells its bounds to the documentation.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserializer, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::access_config::{ClientCertificates, AnonymousAccessName, Encrypted, VerbName};
use crate::backend::Guarantee;
use crate::telemetry::{LogFilter, LogFormat};

/// A value that can say what it accepts.
pub trait Bounded {
    /// What is accepted, as the end of "Accepts …"; nothing where the type alone says it.
    fn bounds() -> Option<String>;
}

/// A whole number from `MIN` to `MAX`, which must fit into a `u32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count<const MIN: u32, const MAX: u32>(u32);

impl<const MIN: u32, const MAX: u32> Count<MIN, MAX> {
    /// The nearest number within the bounds.
    pub fn nearest(number: u32) -> Self {
        Self(number.clamp(MIN, MAX))
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl<const MIN: u32, const MAX: u32> Bounded for Count<MIN, MAX> {
    fn bounds() -> Option<String> {
        Some(format!("a whole number from {MIN} to {MAX}"))
    }
}

impl<const MIN: u32, const MAX: u32> fmt::Display for Count<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<const MIN: u32, const MAX: u32> Serialize for Count<MIN, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.0)
    }
}

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Count<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(CountVisitor::<MIN, MAX>)
    }
}

struct CountVisitor<const MIN: u32, const MAX: u32>;

impl<const MIN: u32, const MAX: u32> Visitor<'_> for CountVisitor<MIN, MAX> {
    type Value = Count<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Self::Value::bounds().unwrap_or_default())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        u32::try_from(number)
            .ok()
            .filter(|number| (MIN..=MAX).contains(number))
            .map(Count)
            .ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
    }
}

/// A time from `MIN_MS` to `MAX_MS` milliseconds, written as text such as `30s` or `1h 5m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period<const MIN_MS: u64, const MAX_MS: u64>(Duration);

impl<const MIN_MS: u64, const MAX_MS: u64> Period<MIN_MS, MAX_MS> {
    const LEAST: Duration = Duration::from_millis(MIN_MS);
    const MOST: Duration = Duration::from_millis(MAX_MS);

    /// The nearest time within the bounds.
    pub fn nearest(time: Duration) -> Self {
        Self(time.clamp(Self::LEAST, Self::MOST))
    }

    /// The time.
    pub fn get(self) -> Duration {
        self.0
    }
}

impl<const MIN_MS: u64, const MAX_MS: u64> Bounded for Period<MIN_MS, MAX_MS> {
    fn bounds() -> Option<String> {
        let [least, most] = [Self::LEAST, Self::MOST].map(humantime::format_duration);
        Some(format!(
            "a time from {least} to {most}, written like \"30s\" or \"1h 5m\""
        ))
    }
}

impl<const MIN_MS: u64, const MAX_MS: u64> fmt::Display for Period<MIN_MS, MAX_MS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl<const MIN_MS: u64, const MAX_MS: u64> FromStr for Period<MIN_MS, MAX_MS> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        humantime::parse_duration(text)
            .ok()
            .filter(|time| (Self::LEAST..=Self::MOST).contains(time))
            .map(Self)
            .ok_or_else(|| format!("must be {}", Self::bounds().unwrap_or_default()))
    }
}

impl<const MIN_MS: u64, const MAX_MS: u64> Serialize for Period<MIN_MS, MAX_MS> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, const MIN_MS: u64, const MAX_MS: u64> Deserialize<'de> for Period<MIN_MS, MAX_MS> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(PeriodVisitor::<MIN_MS, MAX_MS>)
    }
}

struct PeriodVisitor<const MIN_MS: u64, const MAX_MS: u64>;

impl<const MIN_MS: u64, const MAX_MS: u64> Visitor<'_> for PeriodVisitor<MIN_MS, MAX_MS> {
    type Value = Period<MIN_MS, MAX_MS>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Self::Value::bounds().unwrap_or_default())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// A part of a whole, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Ratio(f64);

impl Ratio {
    /// One of a hundred.
    pub const HUNDREDTH: Self = Self(0.01);

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Ratio {
    type Error = String;

    fn try_from(number: f64) -> Result<Self, String> {
        let fits = (0.0..=1.0).contains(&number);
        fits.then_some(Self(number))
            .ok_or_else(|| format!("must be {}, not {number}", Self::bounds().unwrap_or_default()))
    }
}

impl From<Ratio> for f64 {
    fn from(ratio: Ratio) -> Self {
        ratio.0
    }
}

impl Bounded for Ratio {
    fn bounds() -> Option<String> {
        Some("a number from 0 to 1".to_owned())
    }
}

/// What a namespace demands of its backend, written `ap` or `cp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeclaredGuarantee {
    /// Available is enough.
    Ap,
    /// It must be consistent.
    Cp,
}

impl From<DeclaredGuarantee> for Guarantee {
    fn from(declared: DeclaredGuarantee) -> Self {
        match declared {
            DeclaredGuarantee::Ap => Self::Ap,
            DeclaredGuarantee::Cp => Self::Cp,
        }
    }
}

/// The types whose documentation says in words what they accept.
macro_rules! unbounded {
    ($($type:ty),+) => {
        $(impl Bounded for $type {
            fn bounds() -> Option<String> {
                None
            }
        })+
    };
}

unbounded!(
    bool,
    String,
    PathBuf,
    ClientCertificates,
    DeclaredGuarantee,
    AnonymousAccessName,
    Encrypted,
    LogFilter,
    LogFormat,
    VerbName
);

impl<T: Bounded> Bounded for Option<T> {
    fn bounds() -> Option<String> {
        T::bounds()
    }
}

impl<T: Bounded> Bounded for Vec<T> {
    fn bounds() -> Option<String> {
        T::bounds().map(|each| format!("a list, each {each}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Small = Count<2, 9>;
    type Brief = Period<500, 60_000>;

    #[derive(Debug, Deserialize)]
    struct One<T> {
        key: T,
    }

    fn read<T: de::DeserializeOwned>(value: &str) -> Result<T, String> {
        toml::from_str::<One<T>>(&format!("key = {value}"))
            .map(|one| one.key)
            .map_err(|wrong| wrong.message().to_owned())
    }

    #[test]
    fn a_count_takes_its_bounds_and_nothing_past_them() {
        for number in ["2", "9"] {
            assert_eq!(read::<Small>(number).expect(number).to_string(), number);
        }
        for number in ["1", "10", "-1", "0", "99999999999", "2.5", "'2'"] {
            let refused = read::<Small>(number).expect_err(number);
            assert!(refused.ends_with("expected a whole number from 2 to 9"), "{refused}");
        }
    }

    #[test]
    fn a_period_takes_its_bounds_and_nothing_past_them() {
        for time in ["500ms", "1s", "1m"] {
            assert_eq!(read::<Brief>(&format!("'{time}'")).expect(time).to_string(), time);
        }
        assert_eq!(
            read::<Brief>("'30s 500ms'").expect("a sum").get(),
            Duration::from_millis(30_500)
        );
        for time in [
            "'499ms'",
            "'61s'",
            "'1'",
            "''",
            "'-1s'",
            "30",
            "'99999999999999999999y'",
        ] {
            let refused = read::<Brief>(time).expect_err(time);
            assert!(refused.contains("expected a time from 500ms to 1m"), "{refused}");
        }
    }

    #[test]
    fn a_ratio_takes_its_bounds_and_nothing_past_them() {
        for (number, is) in [("0", 0.0), ("0.25", 0.25), ("1", 1.0), ("1.0", 1.0)] {
            assert_eq!(read::<Ratio>(number).expect(number).get(), is);
        }
        for number in ["-0.1", "1.1", "nan", "inf"] {
            let refused = read::<Ratio>(number).expect_err(number);
            assert!(refused.contains("must be a number from 0 to 1"), "{refused}");
        }
    }

    #[test]
    fn a_default_past_the_bounds_becomes_the_nearest() {
        assert_eq!(Small::nearest(100).get(), 9);
        assert_eq!(Brief::nearest(Duration::ZERO).get(), Duration::from_millis(500));
    }
}
