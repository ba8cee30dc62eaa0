//! The bytes of a record: plain structs, each with its conversion.

use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{LockRecord, RootError, micros, token_number, token_of};
use crate::backend::record::ends::{Ended, Ends};
use crate::backend::record::store::ServerId;
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, Secret};
use crate::queue::claim_terms::{TermsRecord, id};
use crate::queue::{Claim, ClaimLimits, Expiry, Hold, Holding, Kept, LockState, ReplicaId, Stage, Waiting};

#[derive(Serialize, Deserialize)]
pub struct RootRecord {
    token: u64,
    new_tokens: u32,
    /// How many claims follow this.
    claims: usize,
    tail: u64,
    notified: u64,
    ends: Vec<EndRecord>,
    parts: (u64, u64),
    ages: Vec<(u64, u64)>,
    limit: u32,
    marks: Vec<([u8; 16], u64)>,
    watchers: Vec<(NonZeroU64, u64)>,
    changes: u64,
}

#[derive(Serialize, Deserialize)]
pub struct ClaimRecord {
    position: u64,
    #[serde(with = "id")]
    id: ClaimId,
    terms: TermsRecord,
    since_micros: u64,
    queue_limit: u32,
    finished_limit: u32,
    hold_limit: u32,
    stage: StageRecord,
}

#[derive(Serialize, Deserialize)]
enum StageRecord {
    /// With the server at which it waits.
    Waiting(Hold, u64),
    Holding {
        token: u64,
        ends: u64,
        /// It ends no earlier than so long after the commit.
        after_stamp: Option<u64>,
        waited: bool,
        holds: Vec<Hold>,
    },
    /// The same, of a claim that stays when its holds have ended.
    Kept {
        token: u64,
        ends: (u64, Option<u64>),
        kept: (u64, Option<u64>),
        waited: bool,
        holds: Vec<Hold>,
    },
}

/// A known end in microseconds, and the time after the commit.
fn written(ends: Expiry) -> (u64, Option<u64>) {
    (micros(ends.known()), ends.after_stamp().map(micros))
}

fn read_expiry((known, after_stamp): (u64, Option<u64>)) -> Expiry {
    let known = Expiry::at(Duration::from_micros(known));
    let open = after_stamp.map(|ttl| Expiry::from_stamp(Duration::from_micros(ttl)));
    open.map_or(known, |open| known.later(open))
}

fn holding(
    token: u64,
    ends: Expiry,
    (waited, holds): (bool, Vec<Hold>),
    kept: Option<Expiry>,
) -> Result<Stage, RootError> {
    Ok(Stage::Holding(Holding {
        token: token_of(token)?,
        ends,
        span: Duration::ZERO,
        waited,
        holds,
        kept: kept.map(|ends| Kept {
            ends,
            span: Duration::ZERO,
        }),
    }))
}

#[derive(Serialize, Deserialize)]
pub struct EndRecord {
    #[serde(with = "id")]
    secret: Secret,
    id: Option<[u8; 16]>,
    token: u64,
    cause: CauseRecord,
    at: u64,
}

#[derive(Serialize, Deserialize)]
enum CauseRecord {
    Released,
    Expired,
    Forced,
    Undone,
    Cancelled,
}

impl RootRecord {
    pub fn of(record: &LockRecord) -> Self {
        Self {
            token: record.token,
            new_tokens: record.new_tokens,
            claims: record.queue.len(),
            tail: record.queue.tail(),
            notified: record.queue.notified(),
            ends: record.ends.inline.iter().map(EndRecord::of).collect(),
            parts: (record.ends.parts.start, record.ends.parts.end),
            ages: record.ends.ages.iter().copied().collect(),
            limit: record.ends.limit,
            marks: record
                .marks
                .iter()
                .map(|(call, until)| (*call.as_bytes(), micros(*until)))
                .collect(),
            watchers: record
                .watchers
                .iter()
                .map(|(server, until)| (server.0, micros(*until)))
                .collect(),
            changes: record.changes,
        }
    }

    /// The record, whose claims are read from the bytes that follow.
    pub fn read(self, mut claims: &[u8]) -> Result<LockRecord, RootError> {
        // It would become the floor of other locks. A lock that made none may have 0.
        FencingToken::new(self.token.max(1))?;
        let mut record = LockRecord {
            token: self.token,
            new_tokens: self.new_tokens,
            ends: Ends {
                inline: self.ends.into_iter().map(EndRecord::read).collect::<Result<_, _>>()?,
                parts: self.parts.0..self.parts.1,
                ages: self.ages.into(),
                limit: self.limit,
                moved: Vec::new(),
            },
            changes: self.changes,
            ..LockRecord::default()
        };
        let time = Duration::from_micros;
        let marks = self.marks.into_iter();
        record.marks = marks
            .map(|(call, until)| (CallId::from_bytes(call), time(until)))
            .collect();
        let watchers = self.watchers.into_iter();
        record.watchers = watchers
            .map(|(server, until)| (ServerId(server), time(until)))
            .collect();
        let mut read = Vec::new();
        for _ in 0..self.claims {
            let (claim, rest) = postcard::take_from_bytes::<ClaimRecord>(claims)?;
            let (position, claim) = claim.read()?;
            if !claim.is_open() {
                let bytes = &claims[..claims.len() - rest.len()];
                record.written.insert(position, bytes.into());
            }
            read.push((position, claim));
            claims = rest;
        }
        record.queue = LockState::restored(read, self.tail, self.notified);
        Ok(record)
    }
}

impl ClaimRecord {
    pub fn of(position: u64, claim: &Claim) -> Self {
        let (terms, since_micros) = TermsRecord::of(&claim.terms);
        let stage = match &claim.stage {
            Stage::Waiting(waiting) => StageRecord::Waiting(waiting.hold.clone(), waiting.replica.0),
            Stage::Holding(holding) => {
                let (token, waited, holds) = (token_number(holding.token), holding.waited, holding.holds.clone());
                match holding.kept {
                    None => StageRecord::Holding {
                        token,
                        ends: micros(holding.ends.known()),
                        after_stamp: holding.ends.after_stamp().map(micros),
                        waited,
                        holds,
                    },
                    Some(kept) => StageRecord::Kept {
                        token,
                        ends: written(holding.ends),
                        kept: written(kept.ends),
                        waited,
                        holds,
                    },
                }
            }
        };
        Self {
            position,
            id: claim.id,
            terms,
            since_micros,
            queue_limit: claim.limits.queue,
            finished_limit: claim.limits.finished,
            hold_limit: claim.limits.holds,
            stage,
        }
    }

    fn read(self) -> Result<(u64, Claim), RootError> {
        let stage = match self.stage {
            StageRecord::Waiting(hold, server) => Stage::Waiting(Waiting {
                hold,
                replica: ReplicaId(server),
            }),
            StageRecord::Holding {
                token,
                ends,
                after_stamp,
                waited,
                holds,
            } => holding(token, read_expiry((ends, after_stamp)), (waited, holds), None)?,
            StageRecord::Kept {
                token,
                ends,
                kept,
                waited,
                holds,
            } => holding(token, read_expiry(ends), (waited, holds), Some(read_expiry(kept)))?,
        };
        let limits = ClaimLimits {
            queue: self.queue_limit,
            finished: self.finished_limit,
            holds: self.hold_limit,
        };
        let claim = Claim {
            id: self.id,
            terms: self.terms.read(self.since_micros)?,
            limits,
            stage,
        };
        Ok((self.position, claim))
    }
}

impl EndRecord {
    pub fn of(ended: &Ended) -> Self {
        Self {
            secret: ended.secret,
            id: ended.id.map(|id| *id.as_bytes()),
            token: token_number(ended.token),
            cause: match ended.cause {
                Cause::Released => CauseRecord::Released,
                Cause::Expired => CauseRecord::Expired,
                Cause::Forced => CauseRecord::Forced,
                Cause::Undone => CauseRecord::Undone,
                Cause::Cancelled => CauseRecord::Cancelled,
            },
            at: micros(ended.at),
        }
    }

    pub fn read(self) -> Result<Ended, RootError> {
        Ok(Ended {
            secret: self.secret,
            id: self.id.map(ClaimId::from_bytes),
            token: token_of(self.token)?,
            cause: match self.cause {
                CauseRecord::Released => Cause::Released,
                CauseRecord::Expired => Cause::Expired,
                CauseRecord::Forced => Cause::Forced,
                CauseRecord::Undone => Cause::Undone,
                CauseRecord::Cancelled => Cause::Cancelled,
            },
            at: Duration::from_micros(self.at),
        })
    }
}
