//! What a node's script returns, and the times that nodes are asked for.

use std::time::{Duration, SystemTime};

use redis::{FromRedisValue, Value, from_redis_value};

use crate::backend::BackendError;
use crate::backend::redis_server::failure::broken;
use crate::backend::redis_server::description::ClaimDescription;
use crate::claim::{Cause, Holder};
use crate::name::{CallId, ClaimId, FencingToken, Identity, Metadata, Mode, Owner};

type Answer<T> = Result<T, BackendError>;

/// The values of an answer, one after another.
pub struct Values(std::vec::IntoIter<Value>);

impl Values {
    /// The values behind the first word.
    pub fn of(values: Vec<Value>) -> Self {
        Self(values.into_iter())
    }

    /// The next one.
    ///
    /// # Errors
    /// Broken where there is none, or none such.
    pub fn take<T: FromRedisValue>(&mut self) -> Answer<T> {
        let value = self.0.next().ok_or_else(|| broken("an answer is too short"))?;
        from_redis_value(value).map_err(broken)
    }

    fn bytes(&mut self) -> Answer<[u8; 16]> {
        let bytes: Vec<u8> = self.take()?;
        bytes.try_into().map_err(|_| broken("an id is not 16 bytes long"))
    }
}

/// Who holds at one node, as that node says.
#[derive(Debug, Clone)]
pub struct NodeHolder {
    /// The claim.
    pub claim: ClaimId,
    /// The call that brought it.
    pub call: CallId,
    /// Its number there.
    pub number: u64,
    /// How long it is still held there.
    pub left: Duration,
    /// When it was placed, in microseconds.
    since: u64,
    shown: Vec<u8>,
}

impl NodeHolder {
    /// Reads claim, call, number, remaining time, since and what it shows.
    ///
    /// # Errors
    /// Broken for anything else.
    pub fn read(values: &mut Values) -> Answer<Self> {
        Ok(Self {
            claim: ClaimId::from_bytes(values.bytes()?),
            call: CallId::from_bytes(values.bytes()?),
            number: values.take()?,
            left: Duration::from_micros(values.take()?),
            since: values.take()?,
            shown: values.take()?,
        })
    }

    /// Whether both are the same holder with the same token.
    pub fn is_as(&self, other: &Self) -> bool {
        (self.call, self.number) == (other.call, other.number)
    }

    /// The holder, if it lives for `left` everywhere that counts.
    ///
    /// # Errors
    /// Broken where what it shows cannot be read.
    pub fn holder(&self, left: Duration) -> Answer<Holder> {
        let (owner, identity, metadata) = shown(&self.shown)?;
        Ok(Holder {
            claim: self.claim,
            owner,
            identity,
            mode: Mode::Exclusive,
            token: FencingToken::new(self.number).map_err(broken)?,
            remaining: granted(left),
            holds: 1,
            metadata,
            since: SystemTime::UNIX_EPOCH + Duration::from_micros(self.since),
        })
    }
}

/// What a claim showed when it was placed.
///
/// # Errors
/// Broken where it cannot be read.
pub fn shown(bytes: &[u8]) -> Answer<(Owner, Identity, Metadata)> {
    let shown = ClaimDescription::read(bytes).ok_or_else(|| broken("what a claim shows cannot be read"))?;
    let owner = Owner::new(&shown.owner).map_err(broken)?;
    let metadata = Metadata::new(shown.metadata).map_err(broken)?;
    Ok((owner, Identity::proven(&shown.identity), metadata))
}

/// How the last lease of a lock ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastEnd {
    /// Its token.
    pub token: u64,
    /// Why.
    pub cause: Cause,
    /// Who held.
    pub owner: Owner,
}

impl LastEnd {
    /// Reads token, cause and what it showed; nothing where no lease has ended.
    ///
    /// # Errors
    /// Broken for anything else.
    pub fn read(values: &mut Values) -> Answer<Option<Self>> {
        let (token, letter, showed): (String, String, Vec<u8>) = (values.take()?, values.take()?, values.take()?);
        let (Ok(token), Some(cause)) = (token.parse(), cause(&letter)) else {
            return Ok(None);
        };
        let (owner, ..) = shown(&showed)?;
        Ok(Some(Self { token, cause, owner }))
    }
}

/// The cause that a letter stands for.
pub fn cause(letter: &str) -> Option<Cause> {
    match letter {
        "R" => Some(Cause::Released),
        "E" => Some(Cause::Expired),
        "F" => Some(Cause::Forced),
        "T" => Some(Cause::TakenBack),
        "L" => Some(Cause::Left),
        _ => None,
    }
}

/// What clocks may differ by while they count one TTL: a hundredth, and this.
const DRIFT: Duration = Duration::from_millis(2);

/// What nodes are asked for so that a lease of `ttl` ends at none of them before its client thinks.
pub fn asked(ttl: Duration) -> Duration {
    let micros = ttl.as_nanos().div_ceil(1_000);
    let all = Duration::from_micros(u64::try_from(micros + micros.div_ceil(100)).unwrap_or(u64::MAX));
    all + DRIFT
}

/// What may be granted where nodes hold for so long: undoes [`asked`].
pub fn granted(left: Duration) -> Duration {
    let micros = left.saturating_sub(DRIFT).as_micros() * 100 / 101;
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

/// An argument in microseconds.
pub fn micros(time: Duration) -> Vec<u8> {
    time.as_micros().to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_granted_is_what_was_asked_for() {
        for ttl in [1, 7, 99, 101, 600_000, 30_000_000, 86_400_000_001].map(Duration::from_micros) {
            assert_eq!(granted(asked(ttl)), ttl);
            assert!(asked(ttl) >= ttl + ttl / 100 + DRIFT);
        }
        assert_eq!(granted(Duration::ZERO), Duration::ZERO);
    }
}
