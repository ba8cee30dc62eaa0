//! The values of keys. Each record begins with its format version, so that replicas of two releases can share a store
//! during an upgrade.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::key_suffixes::KeySuffix;
use crate::backend::NewClaim;
use crate::backend::clock::wall;
use crate::backend::etcd::cluster::Failure;
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, InvalidField, Secret};
use crate::queue::claim_terms::{ClaimTerms, TermsRecord, id};

impl From<postcard::Error> for Failure {
    fn from(error: postcard::Error) -> Self {
        Self::Damaged(format!("etcd: a record is damaged: {error}"))
    }
}

impl From<InvalidField> for Failure {
    fn from(error: InvalidField) -> Self {
        Self::Damaged(format!("etcd: a record holds a bad value: {error}"))
    }
}

const VERSION: u8 = 1;

/// A hold of a claim. A waiting claim has the hold that it will be granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    #[serde(with = "id")]
    pub id: ClaimId,
    #[serde(with = "id")]
    pub call: CallId,
    #[serde(with = "id")]
    pub secret: Secret,
    pub retryable: bool,
    /// A second call has adopted it.
    pub adopted: bool,
}

impl Hold {
    pub fn of(new: &NewClaim) -> Self {
        Self {
            id: new.id,
            call: new.call,
            secret: new.secret,
            retryable: new.retryable,
            adopted: false,
        }
    }
}

/// A claim, waiting or holding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub terms: ClaimTerms,
    /// The requested TTL, or the last granted one.
    pub ttl: Duration,
    /// How many finished calls its namespace remembers.
    pub finished_limit: u32,
    /// The token base of its grant; zero while it waits.
    pub base: u64,
    /// The TTL that etcd gave its lease, in seconds; zero while it waits.
    pub granted_ttl_s: i64,
    /// The lease that it is about to move to; zero if none.
    pub moving_to: i64,
    /// Calls other than its own may use its lease, which is therefore never put into the pool.
    pub not_poolable: bool,
    pub holds: Vec<Hold>,
    /// Its time of arrival at its replica, in nanoseconds of that replica. It orders the claims that were enqueued in
    /// one transaction.
    pub place: u64,
    /// The lease with its request records; zero if none.
    pub request_lease: i64,
}

impl Claim {
    /// The record of a claim that begins to wait.
    pub fn of(new: &NewClaim) -> Self {
        Self {
            terms: ClaimTerms::of(new, wall()),
            ttl: new.ttl.get(),
            finished_limit: new.limits.finished,
            base: 0,
            granted_ttl_s: 0,
            moving_to: 0,
            not_poolable: false,
            holds: vec![Hold::of(new)],
            place: 0,
            request_lease: 0,
        }
    }

    /// The lease with its request records.
    pub fn request_lease(&self) -> Option<i64> {
        (self.request_lease != 0).then_some(self.request_lease)
    }

    pub fn hold(&self, id: &ClaimId) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.id == *id)
    }

    pub fn encode(&self) -> Vec<u8> {
        let (terms, since_micros) = TermsRecord::of(&self.terms);
        let record = ClaimRecord {
            terms,
            since_micros,
            ttl: self.ttl,
            finished_limit: self.finished_limit,
            base: self.base,
            granted_ttl_s: self.granted_ttl_s,
            moving_to: self.moving_to,
            not_poolable: self.not_poolable,
            holds: self.holds.clone(),
            place: self.place,
            request_lease: self.request_lease,
        };
        write(&record)
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let record: ClaimRecord = read(bytes)?;
        Ok(Self {
            place: record.place,
            request_lease: record.request_lease,
            terms: record.terms.read(record.since_micros)?,
            ttl: record.ttl,
            finished_limit: record.finished_limit,
            base: record.base,
            granted_ttl_s: record.granted_ttl_s,
            moving_to: record.moving_to,
            not_poolable: record.not_poolable,
            holds: record.holds,
        })
    }
}

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    pub cause: Cause,
    pub token: FencingToken,
}

impl End {
    pub fn encode(&self) -> Vec<u8> {
        let cause = match self.cause {
            Cause::Released => CauseRecord::Released,
            Cause::Expired => CauseRecord::Expired,
            Cause::Forced => CauseRecord::Forced,
            Cause::Undone | Cause::Cancelled => CauseRecord::Undone,
        };
        write(&EndRecord {
            cause,
            token: self.token.get(),
        })
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let record: EndRecord = read(bytes)?;
        Ok(Self {
            cause: match record.cause {
                CauseRecord::Released => Cause::Released,
                CauseRecord::Expired => Cause::Expired,
                CauseRecord::Forced => Cause::Forced,
                CauseRecord::Undone => Cause::Undone,
                CauseRecord::Holds | CauseRecord::Waits => {
                    return Err(Failure::Damaged("etcd: a record is not of an end".into()));
                }
            },
            token: FencingToken::new(record.token)?,
        })
    }
}

/// The record of a request. It is written in the same transactions as its claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Its claim waits under this key suffix, on the same session as this record.
    Waits(KeySuffix),
    /// It was granted this hold, with this token base. If the hold is gone, it expired, because every other end
    /// overwrites this record.
    Holds {
        /// The hold's secret.
        secret: Secret,
        /// The grant's token base.
        base: u64,
        /// The key suffix of its claim.
        suffix: KeySuffix,
    },
    /// Its hold has ended.
    Ended(End),
}

impl Request {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Ended(end) => end.encode(),
            Self::Waits(suffix) => {
                let (cause, token) = (CauseRecord::Waits, 0);
                let mut bytes = write(&EndRecord { cause, token });
                bytes.extend(suffix.to_bytes());
                bytes
            }
            Self::Holds { secret, base, suffix } => {
                let (cause, token) = (CauseRecord::Holds, *base);
                let mut bytes = write(&EndRecord { cause, token });
                bytes.extend(secret.as_bytes());
                bytes.extend(suffix.to_bytes());
                bytes
            }
        }
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let (record, rest) = read_first::<EndRecord>(bytes)?;
        let (first, second) = rest.split_at_checked(16).unwrap_or_default();
        Ok(match (record.cause, first.first_chunk(), second.first_chunk()) {
            (CauseRecord::Waits, Some(suffix), _) => Self::Waits(KeySuffix::from_bytes(*suffix)),
            (CauseRecord::Holds, Some(secret), Some(suffix)) => Self::Holds {
                secret: Secret::from_bytes(*secret),
                base: record.token,
                suffix: KeySuffix::from_bytes(*suffix),
            },
            _ => Self::Ended(End::decode(bytes)?),
        })
    }

    /// How it ended, if its claim is gone. None if it waited.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            Self::Waits(_) => None,
            Self::Holds { .. } => Some(Cause::Expired),
            Self::Ended(end) => Some(end.cause),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct ClaimRecord {
    terms: TermsRecord,
    since_micros: u64,
    ttl: Duration,
    finished_limit: u32,
    base: u64,
    granted_ttl_s: i64,
    moving_to: i64,
    not_poolable: bool,
    holds: Vec<Hold>,
    place: u64,
    request_lease: i64,
}

#[derive(Serialize, Deserialize)]
enum CauseRecord {
    Released,
    Expired,
    Forced,
    Undone,
    Holds,
    Waits,
}

#[derive(Serialize, Deserialize)]
struct EndRecord {
    cause: CauseRecord,
    token: u64,
}

fn write(record: &impl Serialize) -> Vec<u8> {
    // The serialization of plain structs into memory cannot fail.
    postcard::to_extend(record, vec![VERSION]).unwrap_or_default()
}

fn read<'a, R: Deserialize<'a>>(bytes: &'a [u8]) -> Result<R, Failure> {
    Ok(read_first(bytes)?.0)
}

/// The record, and the bytes after it.
fn read_first<'a, R: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(R, &'a [u8]), Failure> {
    match bytes.split_first() {
        Some((&VERSION, body)) => Ok(postcard::take_from_bytes(body)?),
        found => {
            let found = found.map_or(0, |(version, _)| *version);
            let text = format!("etcd: a record has format {found}, and this release reads up to {VERSION}");
            Err(Failure::Damaged(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_with_a_claim_is_not_decoded_as_an_end_and_each_request_is_read_as_written() {
        let holds = Request::Holds {
            secret: Secret::from_bytes([7; 16]),
            base: 1_700_000_000_000_000,
            suffix: KeySuffix::from_bytes([8; 16]),
        };
        let waits = Request::Waits(KeySuffix::from_bytes([9; 16]));
        let (cause, token) = (Cause::Forced, FencingToken::new(9).unwrap());
        for request in [waits, holds, Request::Ended(End { cause, token })] {
            assert_eq!(Request::decode(&request.encode()).unwrap(), request);
            let is_end = End::decode(&request.encode()).is_ok();
            assert_eq!(is_end, matches!(request, Request::Ended(_)));
        }
    }
}
