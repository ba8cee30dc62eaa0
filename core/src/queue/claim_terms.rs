//! What a claim keeps of the call that made it, and the part of a record that says so. The stores whose records this
//! program writes itself share both.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::claim::{ClaimLabels, Holder, Waiter};
use crate::name::{ClaimId, FencingToken, Identity, InvalidField, Metadata, Mode, Owner, Secret};
use crate::queue::{Grant, NewClaim};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimTerms {
    /// The owner, as the caller names itself.
    pub owner: Owner,
    /// The caller's authenticated identity.
    pub identity: Identity,
    /// The mode in which it shares the lock.
    pub mode: Mode,
    /// Whether it may be joined by reentrant calls of the same owner.
    pub reentrant: bool,
    /// The caller's metadata.
    pub metadata: Metadata,
    /// When it was enqueued, or granted once it holds.
    pub since: SystemTime,
}

impl ClaimTerms {
    /// Those of a new claim.
    pub fn of(new: &NewClaim, since: SystemTime) -> Self {
        Self {
            owner: new.owner.clone(),
            identity: new.identity.clone(),
            mode: new.mode,
            reentrant: new.reentrant,
            metadata: new.metadata.clone(),
            since,
        }
    }

    /// Who made the claim, and what it shows.
    pub fn labels(&self) -> ClaimLabels {
        ClaimLabels::of(&self.owner, &self.identity, &self.metadata)
    }

    /// The first field in which a call that adopts or joins the claim differs.
    pub fn differs(&self, new: &NewClaim) -> Option<&'static str> {
        if self.mode != new.mode {
            Some("mode")
        } else {
            (self.reentrant != new.reentrant).then_some("reentrant")
        }
    }

    /// Whether this call may join the claim as one more hold.
    pub fn is_joined_by(&self, new: &NewClaim) -> bool {
        self.reentrant && new.reentrant && self.owner == new.owner && self.identity == new.identity
    }

    /// The lease of the hold with this secret, of a claim with so many holds.
    pub fn grant(
        &self,
        (claim, secret): (ClaimId, Secret),
        token: FencingToken,
        (ttl, waited): (Duration, Duration),
        holds: usize,
    ) -> Grant {
        Grant {
            claim,
            kind: self.mode.into(),
            secret,
            token,
            owner: self.owner.clone(),
            ttl,
            waited,
            holds: count(holds),
        }
    }

    /// The claim as inspections show it while it holds.
    pub fn holder(&self, claim: ClaimId, token: FencingToken, remaining: Duration, holds: usize) -> Holder {
        Holder {
            claim,
            owner: self.owner.clone(),
            identity: self.identity.clone(),
            mode: self.mode,
            token,
            remaining,
            holds: count(holds),
            metadata: self.metadata.clone(),
            since: self.since,
        }
    }

    /// The claim as inspections show it while it waits.
    pub fn waiter(&self, claim: ClaimId) -> Waiter {
        Waiter {
            claim,
            owner: self.owner.clone(),
            identity: self.identity.clone(),
            mode: self.mode,
            metadata: self.metadata.clone(),
            since: self.since,
        }
    }
}

/// A time in microseconds since 1970: the scale of the tokens.
pub fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn count(holds: usize) -> u32 {
    u32::try_from(holds).unwrap_or(u32::MAX)
}

/// [`ClaimTerms`] as a part of a record, without the time, which has its own place in the records of each store.
#[derive(Debug, Serialize, Deserialize)]
pub struct TermsRecord {
    owner: String,
    identity: String,
    mode: ModeRecord,
    reentrant: bool,
    metadata: Vec<(String, String)>,
}

#[derive(Debug, Serialize, Deserialize)]
enum ModeRecord {
    Exclusive,
    Shared,
    Semaphore { permits: u32, limit: u32 },
}

impl TermsRecord {
    /// The record, and the time in microseconds since 1970.
    pub fn of(terms: &ClaimTerms) -> (Self, u64) {
        let record = Self {
            owner: terms.owner.as_str().into(),
            identity: terms.identity.as_str().into(),
            mode: match terms.mode {
                Mode::Exclusive => ModeRecord::Exclusive,
                Mode::Shared => ModeRecord::Shared,
                Mode::Semaphore { permits, limit } => ModeRecord::Semaphore { permits, limit },
            },
            reentrant: terms.reentrant,
            metadata: terms.metadata.entries().to_vec(),
        };
        (record, micros(terms.since))
    }

    /// The terms of a record with this time.
    ///
    /// # Errors
    /// [`InvalidField`] for a value that is out of bounds.
    pub fn read(self, since_micros: u64) -> Result<ClaimTerms, InvalidField> {
        Ok(ClaimTerms {
            owner: Owner::new(&self.owner)?,
            identity: Identity::authenticated(&self.identity),
            mode: match self.mode {
                ModeRecord::Exclusive => Mode::Exclusive,
                ModeRecord::Shared => Mode::Shared,
                ModeRecord::Semaphore { permits, limit } => Mode::semaphore(permits, limit)?,
            },
            reentrant: self.reentrant,
            metadata: Metadata::new(self.metadata)?,
            since: UNIX_EPOCH + Duration::from_micros(since_micros),
        })
    }
}

/// An id or a secret in a record: its 16 bytes. For `#[serde(with = "id")]`.
pub mod id {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::name::{CallId, ClaimId, Secret};

    /// A value of 16 bytes.
    pub trait Id: Sized {
        /// The value of these bytes.
        fn read(bytes: [u8; 16]) -> Self;
        /// Its bytes.
        fn bytes(&self) -> &[u8; 16];
    }

    macro_rules! ids {
        ($($id:ident)*) => {
            $(impl Id for $id {
                fn read(bytes: [u8; 16]) -> Self {
                    Self::from_bytes(bytes)
                }

                fn bytes(&self) -> &[u8; 16] {
                    self.as_bytes()
                }
            })*
        };
    }

    ids!(ClaimId CallId Secret);

    #[expect(missing_docs, clippy::missing_errors_doc, reason = "serde calls it")]
    pub fn serialize<S: Serializer>(id: &impl Id, to: S) -> Result<S::Ok, S::Error> {
        id.bytes().serialize(to)
    }

    #[expect(missing_docs, clippy::missing_errors_doc, reason = "serde calls it")]
    pub fn deserialize<'d, T: Id, D: Deserializer<'d>>(from: D) -> Result<T, D::Error> {
        <[u8; 16]>::deserialize(from).map(T::read)
    }
}
