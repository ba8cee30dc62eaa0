//! Reads the replies of scripts.

use std::time::Duration;
use std::vec;

use redis::{FromRedisValue, Value, from_redis_value};

use super::description::ClaimDescription;
use super::failure::broken;
use crate::backend::BackendError;
use crate::claim::Cause;
use crate::name::{ClaimId, Identity, LockName, Metadata, Owner};

type Answer<T> = Result<T, BackendError>;

/// The values of a reply, in order. Each method reads the next one, and returns [`BackendError::Broken`] if there is
/// none, or one of another type.
#[derive(Debug)]
pub struct Values(vec::IntoIter<Value>);

impl From<Vec<Value>> for Values {
    fn from(values: Vec<Value>) -> Self {
        Self(values.into_iter())
    }
}

impl Values {
    /// The values of an array.
    pub fn of(value: Value) -> Answer<Self> {
        match value {
            Value::Array(values) => Ok(values.into()),
            other => Err(broken(format!("not an array: {other:?}"))),
        }
    }

    /// The remaining values.
    pub fn rest(self) -> impl Iterator<Item = Value> {
        self.0
    }

    /// A value of this type; `None` at the end.
    pub fn optional<T: FromRedisValue>(&mut self) -> Answer<Option<T>> {
        self.0.next().map(from_redis_value).transpose().map_err(broken)
    }

    /// A value of any type.
    pub fn any(&mut self) -> Answer<Value> {
        self.0.next().ok_or_else(|| broken("an answer is too short"))
    }

    /// A value of this type.
    pub fn take<T: FromRedisValue>(&mut self) -> Answer<T> {
        from_redis_value(self.any()?).map_err(broken)
    }

    /// The 16 bytes of an id.
    pub fn bytes(&mut self) -> Answer<[u8; 16]> {
        let bytes: Vec<u8> = self.take()?;
        bytes.try_into().map_err(|_| broken("an id is not 16 bytes long"))
    }

    /// The id of a claim.
    pub fn claim(&mut self) -> Answer<ClaimId> {
        Ok(ClaimId::from_bytes(self.bytes()?))
    }

    /// A time in microseconds.
    pub fn micros(&mut self) -> Answer<Duration> {
        Ok(Duration::from_micros(self.take()?))
    }
}

/// The arguments of ZRANGEBYLEX for the names with this prefix, after a name.
pub fn name_range(prefix: &str, after: Option<&[u8]>) -> (Vec<u8>, Vec<u8>) {
    let from = match after.filter(|after| *after >= prefix.as_bytes()) {
        Some(after) => [b"(", after].concat(),
        None => [b"[", prefix.as_bytes()].concat(),
    };
    // UTF-8 never contains the byte 0xff.
    (from, [b"(", prefix.as_bytes(), &[0xff]].concat())
}

/// The name of a lock in these bytes, unless they are none.
///
/// # Errors
/// The text to log, and why it is no name.
pub fn lock_name(bytes: &[u8]) -> Result<LockName, (String, String)> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    match LockName::new(&text) {
        Ok(name) if name.as_str().as_bytes() == bytes => Ok(name),
        Ok(_) => Err((text, "the name is no UTF-8".into())),
        Err(error) => Err((text, error.to_string())),
    }
}

/// Reads the description of a claim.
///
/// # Errors
/// Broken if it cannot be read.
pub fn read_description(bytes: &[u8]) -> Answer<(Owner, Identity, Metadata)> {
    let description = ClaimDescription::read(bytes).ok_or_else(|| broken("a claim's description cannot be read"))?;
    let owner = Owner::new(&description.owner).map_err(broken)?;
    let metadata = Metadata::new(description.metadata).map_err(broken)?;
    Ok((owner, Identity::authenticated(&description.identity), metadata))
}

/// Maps the letter that a script uses for a cause.
pub fn cause(letter: &str) -> Option<Cause> {
    match letter {
        "R" => Some(Cause::Released),
        "E" => Some(Cause::Expired),
        "F" => Some(Cause::Forced),
        "T" => Some(Cause::Undone),
        "L" => Some(Cause::Cancelled),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // G205
    #[test]
    fn bytes_that_are_no_utf_8_are_no_name_and_pages_go_on_behind_them() {
        assert_eq!(lock_name(b"a").unwrap().as_str(), "a");
        let (text, _) = lock_name(b"a\xff").unwrap_err();
        assert_eq!(text, "a\u{fffd}");
        assert_eq!(
            name_range("a", Some(b"a\xff")),
            (b"(a\xff".to_vec(), b"(a\xff".to_vec())
        );
        assert_eq!(name_range("b", Some(b"a")), (b"[b".to_vec(), b"(b\xff".to_vec()));
        assert_eq!(name_range("", None), (b"[".to_vec(), b"(\xff".to_vec()));
    }
}
