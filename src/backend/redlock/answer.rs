//! The replies of the nodes' scripts, and the drift allowance of TTLs.

use std::time::{Duration, SystemTime};

use crate::backend::BackendError;
use crate::backend::redis_server::failure::broken;
use crate::backend::redis_server::reply::{Values, cause, read_description};
use crate::claim::{Cause, Holder};
use crate::name::{CallId, ClaimId, FencingToken, Mode, Owner};

type Answer<T> = Result<T, BackendError>;

/// The holder at one node, as that node reports it.
#[derive(Debug, Clone)]
pub struct NodeHolder {
    /// The claim.
    pub claim: ClaimId,
    /// The call that presented it.
    pub call: CallId,
    /// Its number at the node.
    pub number: u64,
    /// The remaining time at the node.
    pub left: Duration,
    /// When it was granted there, in microseconds.
    since: u64,
    description: Vec<u8>,
}

impl NodeHolder {
    /// Reads claim, call, number, remaining time, since and description.
    ///
    /// # Errors
    /// Broken if the reply has another form.
    pub fn read(values: &mut Values) -> Answer<Self> {
        Ok(Self {
            claim: values.claim()?,
            call: CallId::from_bytes(values.bytes()?),
            number: values.take()?,
            left: values.micros()?,
            since: values.take()?,
            description: values.take()?,
        })
    }

    /// Whether both are the same holder with the same token.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.call, self.number) == (other.call, other.number)
    }

    /// The holder, if it lives for `left` at a majority.
    ///
    /// # Errors
    /// Broken if its description cannot be read.
    pub fn holder(&self, left: Duration) -> Answer<Holder> {
        let (owner, identity, metadata) = read_description(&self.description)?;
        Ok(Holder {
            claim: self.claim,
            owner,
            identity,
            mode: Mode::Exclusive,
            token: FencingToken::new(self.number).map_err(broken)?,
            remaining: without_drift(left),
            holds: 1,
            metadata,
            since: SystemTime::UNIX_EPOCH + Duration::from_micros(self.since),
        })
    }
}

/// How the last lease of a lock ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastEnd {
    /// Its token.
    pub token: u64,
    /// The cause.
    pub cause: Cause,
    /// The owner.
    pub owner: Owner,
}

impl LastEnd {
    /// Reads token, cause and description; absent if no lease has ended.
    ///
    /// # Errors
    /// Broken if the reply has another form.
    pub fn read(values: &mut Values) -> Answer<Option<Self>> {
        let (token, letter, description): (String, String, Vec<u8>) = (values.take()?, values.take()?, values.take()?);
        let (Ok(token), Some(cause)) = (token.parse(), cause(&letter)) else {
            return Ok(None);
        };
        let (owner, ..) = read_description(&description)?;
        Ok(Some(Self { token, cause, owner }))
    }
}

/// The allowance for clock drift while a TTL runs: a hundredth of the TTL, and this constant.
const DRIFT: Duration = Duration::from_millis(2);

/// The TTL for the nodes, with the drift allowance: no node ends the lease before its client does.
pub fn with_drift(ttl: Duration) -> Duration {
    let micros = ttl.as_nanos().div_ceil(1_000);
    let all = Duration::from_micros(u64::try_from(micros + micros.div_ceil(100)).unwrap_or(u64::MAX));
    all + DRIFT
}

/// The TTL that may be granted if nodes hold for `left`: the inverse of [`with_drift`].
pub fn without_drift(left: Duration) -> Duration {
    let micros = left.saturating_sub(DRIFT).as_micros() * 100 / 101;
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

/// A script argument in microseconds.
pub fn micros(time: Duration) -> Vec<u8> {
    time.as_micros().to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drift_allowance_is_added_and_removed_exactly() {
        for ttl in [1, 7, 99, 101, 600_000, 30_000_000, 86_400_000_001].map(Duration::from_micros) {
            assert_eq!(without_drift(with_drift(ttl)), ttl);
            assert!(with_drift(ttl) >= ttl + ttl / 100 + DRIFT);
        }
        assert_eq!(without_drift(Duration::ZERO), Duration::ZERO);
    }
}
