//! The records of the file. Each begins with its format version, so that later releases can read
//! it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::history::Ended;
use super::lock::{Claim, Hold, Holding, Stage};
use crate::backend::ClaimLimits;
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, Identity, InvalidField, LockName, Metadata, Mode, Owner, Secret};

/// A record that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It has no version byte.
    #[error("the record is empty")]
    Empty,
    /// A later release wrote it.
    #[error("the record has format {found}, and this release reads up to {known}")]
    Version {
        /// Its version.
        found: u8,
        /// The newest known.
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

#[derive(Serialize, Deserialize)]
enum ModeRecord {
    Exclusive,
    Shared,
    Semaphore { permits: u32, limit: u32 },
}

#[derive(Serialize, Deserialize)]
struct HoldRecord {
    id: [u8; 16],
    call: [u8; 16],
    secret: [u8; 16],
    retryable: bool,
    ttl: Duration,
    adopted: bool,
}

#[derive(Serialize, Deserialize)]
struct HolderRecord {
    id: [u8; 16],
    owner: String,
    identity: String,
    mode: ModeRecord,
    reentrant: bool,
    metadata: Vec<(String, String)>,
    queue_limit: u32,
    finished_limit: u32,
    hold_limit: u32,
    since_micros: u64,
    token: u64,
    span: Duration,
    waited: bool,
    holds: Vec<HoldRecord>,
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

/// A finished hold of format 1, whose key was its secret.
#[derive(Deserialize)]
struct FinishedRecord1 {
    lock: String,
    token: u64,
    cause: CauseRecord,
    id: Option<[u8; 16]>,
    position: u64,
}

/// Encodes a holder.
pub fn write_holder(claim: &Claim, holding: &Holding) -> Vec<u8> {
    write(&HolderRecord {
        id: *claim.id.as_bytes(),
        owner: claim.owner.as_str().into(),
        identity: claim.identity.as_str().into(),
        mode: match claim.mode {
            Mode::Exclusive => ModeRecord::Exclusive,
            Mode::Shared => ModeRecord::Shared,
            Mode::Semaphore { permits, limit } => ModeRecord::Semaphore { permits, limit },
        },
        reentrant: claim.reentrant,
        metadata: claim.metadata.entries().to_vec(),
        queue_limit: claim.limits.queue,
        finished_limit: claim.limits.finished,
        hold_limit: claim.limits.holds,
        since_micros: super::clock::micros(claim.since),
        token: holding.token.get(),
        span: holding.span,
        waited: holding.waited,
        holds: holding.holds.iter().map(write_hold).collect(),
    })
}

fn write_hold(hold: &Hold) -> HoldRecord {
    HoldRecord {
        id: *hold.id.as_bytes(),
        call: *hold.call.as_bytes(),
        secret: *hold.secret.as_bytes(),
        retryable: hold.retryable,
        ttl: hold.ttl,
        adopted: hold.adopted,
    }
}

/// Decodes a holder; its lease expires one full span after `now`.
pub fn read_holder(bytes: &[u8], now: Duration) -> Result<Claim, RecordError> {
    let record: HolderRecord = read(bytes)?;
    Ok(Claim {
        id: ClaimId::from_bytes(record.id),
        owner: Owner::new(&record.owner)?,
        identity: Identity::authenticated(&record.identity),
        mode: match record.mode {
            ModeRecord::Exclusive => Mode::Exclusive,
            ModeRecord::Shared => Mode::Shared,
            ModeRecord::Semaphore { permits, limit } => Mode::semaphore(permits, limit)?,
        },
        reentrant: record.reentrant,
        metadata: Metadata::new(record.metadata)?,
        limits: ClaimLimits {
            queue: record.queue_limit,
            finished: record.finished_limit,
            holds: record.hold_limit,
        },
        since: since(record.since_micros),
        stage: Stage::Holding(Holding {
            token: FencingToken::new(record.token)?,
            ends: now + record.span,
            span: record.span,
            waited: record.waited,
            holds: record.holds.into_iter().map(read_hold).collect(),
        }),
    })
}

fn since(micros: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros)
}

fn read_hold(record: HoldRecord) -> Hold {
    Hold {
        id: ClaimId::from_bytes(record.id),
        call: CallId::from_bytes(record.call),
        secret: Secret::from_bytes(record.secret),
        retryable: record.retryable,
        ttl: record.ttl,
        adopted: record.adopted,
    }
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
    write(&FinishedRecord {
        lock: ended.lock.as_str().into(),
        token: ended.token.get(),
        cause,
        id: ended.id.map(|id| *id.as_bytes()),
        secret: *secret.as_bytes(),
    })
}

/// Decodes a finished hold and its secret.
pub fn read_finished(bytes: &[u8]) -> Result<(Secret, Ended), RecordError> {
    let record: FinishedRecord = read(bytes)?;
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

/// Encodes a finished hold of format 1 as one of today, and returns its position with it.
pub fn convert_finished(secret: [u8; 16], bytes: &[u8]) -> Result<(u64, Vec<u8>), RecordError> {
    let FinishedRecord1 {
        lock,
        token,
        cause,
        id,
        position,
    } = read(bytes)?;
    let record = FinishedRecord {
        lock,
        token,
        cause,
        id,
        secret,
    };
    Ok((position, write(&record)))
}

fn write(record: &impl Serialize) -> Vec<u8> {
    // Plain structs are encoded into memory: this cannot fail.
    postcard::to_extend(record, vec![VERSION]).unwrap_or_default()
}

fn read<'a, R: Deserialize<'a>>(bytes: &'a [u8]) -> Result<R, RecordError> {
    match bytes.split_first() {
        None => Err(RecordError::Empty),
        Some((&VERSION, body)) => Ok(postcard::from_bytes(body)?),
        Some((&found, _)) => Err(RecordError::Version { found, known: VERSION }),
    }
}
