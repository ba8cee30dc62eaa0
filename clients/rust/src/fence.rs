//! The resource's half of fencing: a resource that refuses a holder whose lock has a newer holder.
//!
//! No lease stops a holder that is paused and writes too late. The resource keeps the highest token of each lock, and each
//! holder raises it *before the first read* of its work, in the step that also commits the work. A holder that was paused
//! after its read, and whose lock another one took meanwhile, finds a higher token and gets [`StaleToken`]. To compare only
//! in the condition of the write is not enough: the paused holder may write before the newer one does, which then
//! overwrites it with what it computed from the older state.
//!
//! This is for exclusive locks. Holders of a shared lock or of a semaphore hold at the same time, so the one with the highest
//! token would refuse the others.
//!
//! The statements of [`sql`] and the script of [`RedisCall`] are for any driver: the crate depends on none.

mod file;
mod object;
mod redis;
mod service;
pub mod sql;

use tonic::codegen::http::HeaderValue;

use crate::{Error, LockGuard};

pub use self::file::{FileError, with_file};
pub use self::object::{FencedObject, ObjectError, ObjectStore};
pub use self::redis::RedisCall;
pub use self::service::{FenceLayer, FenceService, HEADER, RequestToken};

/// Tokens are below 2^53.
const END: u64 = 1 << 53;

/// A newer holder of the lock has used the resource: nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("token {token} of {lock:?} is older than the highest that this resource has seen")]
pub struct StaleToken {
    /// The lock.
    pub lock: String,
    /// The token that was refused.
    pub token: u64,
}

/// What was given is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a token is a number from 1 to 2^53 - 1, not {0}")]
pub struct InvalidToken(pub String);

/// The fencing token of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FencingToken {
    lock: String,
    number: u64,
}

impl FencingToken {
    /// A token that a request brought.
    ///
    /// # Errors
    /// [`InvalidToken`].
    pub fn new(lock: impl Into<String>, number: u64) -> Result<Self, InvalidToken> {
        if number == 0 || number >= END {
            return Err(InvalidToken(number.to_string()));
        }
        let lock = lock.into();
        Ok(Self { lock, number })
    }

    /// The token of a held lock.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when the lease is or may be lost.
    pub fn of(guard: &LockGuard) -> Result<Self, Error> {
        let (lock, number) = (guard.lease().name.clone(), guard.check()?);
        Ok(Self { lock, number })
    }

    /// The name of the lock.
    pub fn lock(&self) -> &str {
        &self.lock
    }

    /// The number, as databases have it.
    pub fn number(&self) -> i64 {
        self.number.cast_signed()
    }

    /// The value of [`HEADER`] for a call of a protected service.
    pub fn header(&self) -> HeaderValue {
        HeaderValue::from(self.number)
    }

    /// Whether the raise was done, by how many rows it changed, or by the first answer of a [`RedisCall`].
    ///
    /// # Errors
    /// [`StaleToken`] if it changed none.
    pub fn raised(&self, changed: u64) -> Result<(), StaleToken> {
        self.require(changed > 0)
    }

    /// Compares the token with the highest that the resource has.
    ///
    /// # Errors
    /// [`StaleToken`] if that is higher.
    pub fn compare(&self, highest: u64) -> Result<(), StaleToken> {
        self.require(highest <= self.number)
    }

    fn require(&self, holds: bool) -> Result<(), StaleToken> {
        let stale = || StaleToken {
            lock: self.lock.clone(),
            token: self.number,
        };
        if holds { Ok(()) } else { Err(stale()) }
    }
}

/// Reads a token.
fn parse(text: &str) -> Result<u64, InvalidToken> {
    let invalid = || InvalidToken(format!("{text:?}"));
    // `parse` also takes a sign.
    if text.len() > 16 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid());
    }
    let number = text.parse().map_err(|_| invalid())?;
    FencingToken::new("", number).map(|token| token.number)
}

#[cfg(test)]
mod tests;
