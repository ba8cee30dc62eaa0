//! The records of the file. Each begins with its format version, so that later releases can read
//! it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::history::Ended;
use crate::backend::ClaimLimits;
use crate::claim::Cause;
use crate::name::{ClaimId, FencingToken, InvalidField, LockName, Secret};
use crate::queue::claim_terms::{TermsRecord, id};
use crate::queue::{Claim, Expiry, Hold, Holding, Kept, Stage};

/// A record that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It has no version byte.
    #[error("the record is empty")]
    Empty,
    /// Another release wrote it.
    #[error("the record has format {found}, and this release reads {known}")]
    Version {
        /// Its version.
        found: u8,
        /// The known one.
        known: u8,
    },
    /// It is damaged.
    #[error("the record is damaged")]
    Damaged(#[from] postcard::Error),
    /// It contains a value that is out of bounds.
    #[error("the record holds a bad value")]
    BadValue(#[from] InvalidField),
}

const VERSION: u8 = 1;
/// The version of a holder, which has its ends.
const HOLDER_VERSION: u8 = 2;

#[derive(Serialize, Deserialize)]
struct HolderRecord {
    #[serde(with = "id")]
    id: ClaimId,
    terms: TermsRecord,
    queue_limit: u32,
    finished_limit: u32,
    hold_limit: u32,
    since_micros: u64,
    token: u64,
    span: Duration,
    waited: bool,
    holds: Vec<Hold>,
    /// When it ends, by the clock since boot.
    ends: Duration,
    /// How long it is kept, and until when.
    kept: Option<(Duration, Duration)>,
}

/// How a hold ended, as stored.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub enum CauseRecord {
    Released,
    Expired,
    Forced,
}

#[derive(Serialize, Deserialize)]
struct FinishedRecord {
    lock: String,
    token: u64,
    cause: CauseRecord,
    id: Option<[u8; 16]>,
    secret: [u8; 16],
}

/// Encodes a holder.
pub fn write_holder(claim: &Claim, holding: &Holding) -> Vec<u8> {
    let (terms, since_micros) = TermsRecord::of(&claim.terms);
    let record = HolderRecord {
        id: claim.id,
        terms,
        queue_limit: claim.limits.queue,
        finished_limit: claim.limits.finished,
        hold_limit: claim.limits.holds,
        since_micros,
        token: holding.token.get(),
        span: holding.span,
        waited: holding.waited,
        holds: holding.holds.clone(),
        ends: holding.ends.known(),
        kept: holding.kept.map(|kept| (kept.span, kept.ends.known())),
    };
    write(HOLDER_VERSION, &record)
}

/// Decodes a holder, with its ends by the clock of the boot that wrote it.
pub fn read_holder(bytes: &[u8]) -> Result<Claim, RecordError> {
    let record: HolderRecord = read(HOLDER_VERSION, bytes)?;
    let kept = record.kept.map(|(span, ends)| Kept {
        ends: Expiry::at(ends),
        span,
    });
    Ok(Claim {
        id: record.id,
        terms: record.terms.read(record.since_micros)?,
        limits: ClaimLimits {
            queue: record.queue_limit,
            finished: record.finished_limit,
            holds: record.hold_limit,
        },
        stage: Stage::Holding(Holding {
            token: FencingToken::new(record.token)?,
            ends: Expiry::at(record.ends),
            span: record.span,
            waited: record.waited,
            holds: record.holds,
            kept,
        }),
    })
}

/// The stored form of a cause; absent for a cause that is not remembered.
pub fn cause_record(cause: Cause) -> Option<CauseRecord> {
    match cause {
        Cause::Released => Some(CauseRecord::Released),
        Cause::Expired => Some(CauseRecord::Expired),
        Cause::Forced => Some(CauseRecord::Forced),
        Cause::Undone | Cause::Cancelled => None,
    }
}

/// Encodes a finished hold.
pub fn write_finished(secret: &Secret, ended: &Ended, cause: CauseRecord) -> Vec<u8> {
    let record = FinishedRecord {
        lock: ended.lock.as_str().into(),
        token: ended.token.get(),
        cause,
        id: ended.id.map(|id| *id.as_bytes()),
        secret: *secret.as_bytes(),
    };
    write(VERSION, &record)
}

/// Decodes a finished hold and its secret.
pub fn read_finished(bytes: &[u8]) -> Result<(Secret, Ended), RecordError> {
    let record: FinishedRecord = read(VERSION, bytes)?;
    let ended = Ended {
        lock: LockName::new(&record.lock)?,
        token: FencingToken::new(record.token)?,
        cause: match record.cause {
            CauseRecord::Released => Cause::Released,
            CauseRecord::Expired => Cause::Expired,
            CauseRecord::Forced => Cause::Forced,
        },
        id: record.id.map(ClaimId::from_bytes),
    };
    Ok((Secret::from_bytes(record.secret), ended))
}

fn write(version: u8, record: &impl Serialize) -> Vec<u8> {
    // Plain structs are encoded into memory: this cannot fail.
    postcard::to_extend(record, vec![version]).unwrap_or_default()
}

fn read<'a, R: Deserialize<'a>>(known: u8, bytes: &'a [u8]) -> Result<R, RecordError> {
    match bytes.split_first() {
        None => Err(RecordError::Empty),
        Some((&version, body)) if version == known => Ok(postcard::from_bytes(body)?),
        Some((&found, _)) => Err(RecordError::Version { found, known }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::queue::{Callers, NewClaim, ReplicaId, StreamNumber};

    #[test]
    fn a_holder_has_these_bytes_and_another_version_is_refused() {
        let since = UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_001);
        let mut claim = Claim::waiting(&NewClaim::numbered(7), ReplicaId::default(), since);
        let hold = claim.waiting_for().expect("it waits").clone();
        let holding = Holding {
            token: FencingToken::new(9).unwrap(),
            ends: Expiry::at(Duration::from_secs(5)),
            span: hold.ttl,
            waited: true,
            holds: vec![hold],
            kept: None,
        };
        claim.stage = Stage::Holding(holding.clone());
        let (id, ids) = ("07".repeat(16), "07".repeat(48));
        let golden = format!("02{id}067465737465720000000064640a8180f9c0c1c48203093c000101{ids}003c0000050000");
        let bytes = write_holder(&claim, &holding);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden);
        let read = read_holder(&bytes).unwrap();
        assert_eq!(write_holder(&read, read.holding().unwrap()), bytes);
        let other: Vec<u8> = [&[1], &bytes[1..]].concat();
        let refused = read_holder(&other).unwrap_err();
        assert!(
            matches!(refused, RecordError::Version { found: 1, known: 2 }),
            "{refused}"
        );
        let span = Duration::from_secs(5);
        let ends = Expiry::at(span);
        let kept = Holding {
            holds: Vec::new(),
            kept: Some(Kept { ends, span }),
            ..holding.clone()
        };
        let read = read_holder(&write_holder(&claim, &kept)).unwrap();
        assert_eq!(read.holding().unwrap().kept, kept.kept);
        for adopted in [false, true] {
            let mut callers = Callers::first(Some(StreamNumber::new(u64::MAX, 3)));
            callers.adopted = adopted;
            let mut held = holding.clone();
            held.holds[0].callers = callers;
            let read = read_holder(&write_holder(&claim, &held)).unwrap();
            assert_eq!(read.holding().unwrap().holds[0].callers, callers);
        }
    }
}
