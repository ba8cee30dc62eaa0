//! An object of S3 with the highest token of its lock.

use std::future::Future;

use super::{FencingToken, StaleToken, parse};

/// The line behind it is 1, or 0 while the object has a token alone.
const PREFIX: &str = "fencing-token: ";

/// A write fails only if another one came between, and those of one lock are few.
const ATTEMPTS: u32 = 100;

/// How an object of S3, or of a store with conditional writes, is read and replaced.
pub trait ObjectStore {
    /// The errors of the store.
    type Error;

    /// The body and its ETag, or none if there is no object; an error if there is no bucket.
    fn get(&self) -> impl Future<Output = Result<Option<(Vec<u8>, String)>, Self::Error>> + Send;

    /// Replaces the object on the condition that it has this ETag (`If-Match`), or without one, that there is none
    /// (`If-None-Match: *`). False if another write came between: the store answers 409, 412, or that the object is missing.
    fn put(&self, body: Vec<u8>, etag: Option<&str>) -> impl Future<Output = Result<bool, Self::Error>> + Send;
}

/// Why an object was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError<E> {
    /// A newer holder has raised the object's token.
    #[error(transparent)]
    Stale(#[from] StaleToken),
    /// The object was put there without a token.
    #[error("the object does not begin with a token: put one there first")]
    NoToken,
    /// The ETag is empty.
    #[error("the store gave the object without an ETag, on which writes depend")]
    NoETag,
    /// Each write was refused.
    #[error("the store refused the write at {ATTEMPTS} attempts, as if others had replaced the object")]
    Refused,
    /// The store failed.
    #[error("the store failed: {0}")]
    Store(E),
}

/// An object whose body begins with the token of its last holder.
///
/// The token is in the body, because a conditional write compares the ETag, which is that of the body alone: with the token in
/// the metadata, a paused holder that read the same bytes as they are now would pass.
#[derive(Debug)]
pub struct FencedObject<S>(pub S);

impl<S: ObjectStore> FencedObject<S> {
    /// Raises the token, then returns what the object has, or none if there is none.
    ///
    /// # Errors
    /// [`ObjectError`].
    ///
    /// # Cancellation safety
    /// When dropped, the token may have been raised.
    pub async fn read(&self, token: &FencingToken) -> Result<Option<Vec<u8>>, ObjectError<S::Error>> {
        self.change(token, None).await
    }

    /// Replaces what the object has.
    ///
    /// # Errors
    /// [`ObjectError`]. After [`ObjectError::Stale`] nothing was changed.
    ///
    /// # Cancellation safety
    /// When dropped, the object may have been written.
    pub async fn write(&self, token: &FencingToken, data: &[u8]) -> Result<(), ObjectError<S::Error>> {
        self.change(token, Some(data)).await.map(drop)
    }

    async fn change(
        &self,
        token: &FencingToken,
        data: Option<&[u8]>,
    ) -> Result<Option<Vec<u8>>, ObjectError<S::Error>> {
        for _ in 0..ATTEMPTS {
            let object = self.0.get().await.map_err(ObjectError::Store)?;
            if object.as_ref().is_some_and(|(_, etag)| etag.is_empty()) {
                return Err(ObjectError::NoETag);
            }
            let (highest, found) = match &object {
                Some((body, _)) => decode(body).ok_or(ObjectError::NoToken)?,
                None => (0, None),
            };
            token.compare(highest)?;
            if data.is_none() && highest == token.number {
                return Ok(found);
            }
            let body = encode(token, data.or(found.as_deref()));
            let etag = object.as_ref().map(|(_, etag)| etag.as_str());
            if self.0.put(body, etag).await.map_err(ObjectError::Store)? {
                return Ok(found);
            }
        }
        Err(ObjectError::Refused)
    }
}

fn encode(token: &FencingToken, data: Option<&[u8]>) -> Vec<u8> {
    let head = format!("{PREFIX}{}\n{}\n", token.number, u8::from(data.is_some()));
    [head.as_bytes(), data.unwrap_or_default()].concat()
}

/// The token of a body and the data behind it.
fn decode(body: &[u8]) -> Option<(u64, Option<Vec<u8>>)> {
    let mut parts = body.strip_prefix(PREFIX.as_bytes())?.splitn(3, |byte| *byte == b'\n');
    let number = parse(str::from_utf8(parts.next()?).ok()?).ok()?;
    let is_filled = parts.next()? != b"0";
    let data = parts.next()?;
    Some((number, is_filled.then(|| data.to_vec())))
}
