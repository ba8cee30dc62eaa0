//! The data of nodes. Each record begins with its format version, so that replicas of two releases can share a store
//! during an upgrade.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::backend::NewClaim;
use crate::backend::clock::{token, wall};
use crate::backend::tree::store::Failure;
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, InvalidField, Owner, Secret};
use crate::queue::Callers;
use crate::queue::claim_terms::{ClaimTerms, TermsRecord, id};

const VERSION: u8 = 1;

impl From<InvalidField> for Failure {
    fn from(error: InvalidField) -> Self {
        Self::Damaged(format!("a record holds a bad value: {error}"))
    }
}

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
    /// The calls that have asked for it.
    pub callers: Callers,
    /// The requested TTL, or the last granted one.
    pub ttl: Duration,
}

impl Hold {
    pub fn of(new: &NewClaim) -> Self {
        Self {
            id: new.id,
            call: new.call,
            secret: new.secret,
            retryable: new.retryable,
            callers: Callers::first(new.stream),
            ttl: new.ttl.get(),
        }
    }
}

/// A claim, waiting or holding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The id of the claim, which is that of its first hold.
    pub id: ClaimId,
    pub terms: ClaimTerms,
    /// How long the lease of a holder lives, counted from when anybody reads a version with that lease.
    pub life: Duration,
    /// Which lease this version has: a number that its grant or last renewal has drawn; zero while it waits.
    pub lease: u64,
    /// The token base of its grant; zero while it waits.
    pub base: u64,
    /// How many finished calls its namespace remembers.
    pub finished_limit: u32,
    /// None once the last was released and the claim is kept.
    pub holds: Vec<Hold>,
    /// How long it stays although its holds have ended, counted as `life`, which is no shorter; absent unless a release
    /// said so.
    pub kept: Option<Duration>,
}

impl Claim {
    /// The record of a new claim.
    pub fn of(new: &NewClaim) -> Self {
        Self {
            id: new.id,
            terms: ClaimTerms::of(new, wall()),
            life: new.ttl.get(),
            lease: 0,
            base: 0,
            finished_limit: new.limits.finished,
            holds: vec![Hold::of(new)],
            kept: None,
        }
    }

    /// The record of a waiting claim that a call has taken over.
    pub fn of_waiter(new: &NewClaim, known: &Self) -> Self {
        let mut claim = Self::of(new);
        claim.terms.since = known.terms.since;
        claim.after(known)
    }

    /// This new claim of a call that has taken over the known waiting one.
    pub fn after(self, known: &Self) -> Self {
        let callers = known.holds.first().map(|hold| hold.callers);
        self.called_by(callers.unwrap_or_default())
    }

    /// This new claim of a call whose waiter these calls have asked for.
    pub fn called_by(mut self, callers: Callers) -> Self {
        for hold in &mut self.holds {
            hold.callers = hold.callers.after(callers);
        }
        self
    }

    /// The same claim with a lease of its life, which begins with the one step that writes it.
    ///
    /// # Errors
    /// [`Failure::NotSent`] without random numbers.
    pub fn with_new_lease(self) -> Result<Self, Failure> {
        let drawn = getrandom::u64().map_err(|error| Failure::NotSent(format!("no random numbers: {error}")));
        Ok(Self { lease: drawn?, ..self })
    }

    pub fn hold(&self, id: &ClaimId) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.id == *id)
    }

    pub fn hold_of_call(&self, call: CallId) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.call == call)
    }

    pub fn hold_with(&self, secret: Secret) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.secret == secret)
    }

    /// The token of its grant, which this transaction made.
    pub fn token(&self, granted: i64) -> Result<FencingToken, Failure> {
        Ok(token(self.base, granted.unsigned_abs())?)
    }

    /// About how many bytes its record has, at most.
    pub fn size(&self) -> usize {
        const FIXED: usize = 128;
        const HOLD: usize = 96;
        let metadata = self.terms.metadata.entries().iter();
        let metadata: usize = metadata.map(|(key, value)| key.len() + value.len() + 8).sum();
        let owner = self.terms.owner.as_str().len() + self.terms.identity.as_str().len();
        FIXED + owner + metadata + HOLD * self.holds.len()
    }

    /// Its record. How long it is kept follows, and only then.
    pub fn encode(&self) -> Vec<u8> {
        let (terms, since_micros) = TermsRecord::of(&self.terms);
        let bytes = write(&ClaimRecord {
            id: self.id,
            terms,
            since_micros,
            life: self.life,
            lease: self.lease,
            base: self.base,
            finished_limit: self.finished_limit,
            holds: self.holds.clone(),
        });
        match self.kept {
            Some(kept) => postcard::to_extend(&kept, bytes).unwrap_or_default(),
            None => bytes,
        }
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let (record, rest): (ClaimRecord, _) = postcard::take_from_bytes(body(bytes)?).map_err(damaged)?;
        let kept = (!rest.is_empty()).then(|| postcard::from_bytes(rest)).transpose();
        Ok(Self {
            id: record.id,
            terms: record.terms.read(record.since_micros)?,
            life: record.life,
            lease: record.lease,
            base: record.base,
            finished_limit: record.finished_limit,
            holds: record.holds,
            kept: kept.map_err(damaged)?,
        })
    }
}

/// How a hold ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "EndRecord", into = "EndRecord")]
pub struct End {
    pub cause: Cause,
    pub token: FencingToken,
    pub owner: Owner,
    pub secret: Secret,
    /// The lock's name: buckets hold the ends of several locks.
    pub lock: String,
}

/// What is known of a request or an ended hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Memory {
    /// The call's claim waits or holds, or this hold is one of another claim.
    Live {
        #[serde(with = "id")]
        claim: ClaimId,
        #[serde(with = "id")]
        call: CallId,
        lock: String,
    },
    Ended(End),
    /// A request that ended while it waited, or was undone.
    Forgotten,
}

impl Memory {
    pub fn encode(&self) -> Vec<u8> {
        write(self)
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        read(bytes)
    }
}

#[derive(Serialize, Deserialize)]
struct ClaimRecord {
    #[serde(with = "id")]
    id: ClaimId,
    terms: TermsRecord,
    since_micros: u64,
    life: Duration,
    lease: u64,
    base: u64,
    finished_limit: u32,
    holds: Vec<Hold>,
}

#[derive(Serialize, Deserialize)]
enum CauseRecord {
    Released,
    Expired,
    Forced,
    Undone,
}

#[derive(Serialize, Deserialize)]
struct EndRecord {
    cause: CauseRecord,
    token: u64,
    owner: String,
    #[serde(with = "id")]
    secret: Secret,
    lock: String,
}

impl From<End> for EndRecord {
    fn from(end: End) -> Self {
        Self {
            cause: match end.cause {
                Cause::Released => CauseRecord::Released,
                Cause::Expired => CauseRecord::Expired,
                Cause::Forced => CauseRecord::Forced,
                Cause::Undone | Cause::Cancelled => CauseRecord::Undone,
            },
            token: end.token.get(),
            owner: end.owner.as_str().into(),
            secret: end.secret,
            lock: end.lock,
        }
    }
}

impl TryFrom<EndRecord> for End {
    type Error = InvalidField;

    fn try_from(record: EndRecord) -> Result<Self, InvalidField> {
        Ok(Self {
            cause: match record.cause {
                CauseRecord::Released => Cause::Released,
                CauseRecord::Expired => Cause::Expired,
                CauseRecord::Forced => Cause::Forced,
                CauseRecord::Undone => Cause::Undone,
            },
            token: FencingToken::new(record.token)?,
            owner: Owner::new(&record.owner)?,
            secret: record.secret,
            lock: record.lock,
        })
    }
}

fn write(record: &impl Serialize) -> Vec<u8> {
    let bytes = postcard::to_extend(record, vec![VERSION]);
    // Only a serializer that is asked for what it cannot do fails, and these records ask for nothing such.
    bytes.unwrap_or_default()
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    postcard::from_bytes(body(bytes)?).map_err(damaged)
}

fn body(bytes: &[u8]) -> Result<&[u8], Failure> {
    match bytes.split_first() {
        Some((&VERSION, body)) => Ok(body),
        _ => Err(Failure::Damaged("a record is of another release".into())),
    }
}

fn damaged(error: postcard::Error) -> Failure {
    Failure::Damaged(format!("a record is damaged: {error}"))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::name::Mode;
    use crate::queue::StreamNumber;

    #[test]
    fn records_are_read_as_they_were_written() {
        let mut new = NewClaim::numbered(3);
        new.mode = Mode::semaphore(2, 9).unwrap();
        let mut claim = Claim::of(&new);
        claim.terms.since = UNIX_EPOCH + Duration::from_secs(7);
        claim.base = 5;
        claim.lease = u64::MAX;
        claim.holds[0].callers = Callers::first(Some(StreamNumber::new(u64::MAX, 3)));
        assert_eq!(Claim::decode(&claim.encode()), Ok(claim.clone()));
        assert!(claim.encode().len() <= claim.size());
        let kept = Claim {
            holds: Vec::new(),
            kept: Some(Duration::from_secs(9)),
            ..claim.clone()
        };
        assert_eq!(Claim::decode(&kept.encode()), Ok(kept));
        assert_eq!(claim.token(6).unwrap().get(), 11);
        let end = End {
            cause: Cause::Forced,
            token: FencingToken::new(9).unwrap(),
            owner: new.owner,
            secret: new.secret,
            lock: "a".into(),
        };
        let live = Memory::Live {
            claim: new.id,
            call: new.call,
            lock: "a".into(),
        };
        for memory in [Memory::Ended(end), live, Memory::Forgotten] {
            assert_eq!(Memory::decode(&memory.encode()), Ok(memory));
        }
        assert!(Claim::decode(&[2, 0]).is_err() && Memory::decode(&[]).is_err());
    }

    #[test]
    fn records_have_the_bytes_that_earlier_releases_read() {
        let mut claim = Claim::of(&NewClaim::numbered(7));
        claim.terms.since = UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_001);
        claim.base = 5;
        let (id, ids) = ("07".repeat(16), "07".repeat(48));
        let golden = format!("01{id}06746573746572000000008180f9c0c1c482033c0000056401{ids}00003c00");
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(claim.encode()), golden);
        let end = End {
            cause: Cause::Forced,
            token: FencingToken::new(9).unwrap(),
            owner: claim.terms.owner.clone(),
            secret: claim.holds[0].secret,
            lock: "a".into(),
        };
        let live = Memory::Live {
            claim: claim.id,
            call: claim.holds[0].call,
            lock: "a".into(),
        };
        for (memory, golden) in [
            (live, format!("0100{id}{id}0161")),
            (Memory::Ended(end), format!("0101020906746573746572{id}0161")),
            (Memory::Forgotten, "0102".to_owned()),
        ] {
            assert_eq!(hex(memory.encode()), golden);
        }
    }
}
