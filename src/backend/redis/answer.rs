//! Parses the replies of the scripts into the types of the trait `Backend`.

use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use crate::backend::redis_server::failure::broken;
use crate::backend::redis_server::reply::Values;
use crate::backend::{
    AcquireOutcome, BackendError, Grant, InspectLimit, NewClaim, QueuePosition, Refusal, ReleaseOutcome, Released,
    RenewOutcome, UpdateOutcome,
};
use crate::claim::{Cause, Holder, Queue, Waiter};
use crate::name::{LeaseKey, Owner, Secret};

type Answer<T> = Result<T, BackendError>;

/// The reply of `inspect.lua`.
#[derive(Debug, Clone)]
pub struct InspectAnswer {
    /// The queue.
    pub queue: Queue,
    /// The number of the last published change.
    pub changes: u64,
    /// The time since a claim was last granted or ended; `None` if the lock is not stored.
    pub idle: Option<Duration>,
    /// The time until the next lease expires, if it is not renewed.
    pub frees_in: Option<Duration>,
    /// Counts the insertions into the lists of holders and waiters and the removals from them.
    pub shape: u64,
}

impl InspectAnswer {
    /// How many holders and waiters within `limit` this answer does not contain yet.
    pub fn missing(&self, limit: InspectLimit) -> InspectLimit {
        let missing = |limit: usize, count: usize, listed: usize| limit.min(count).saturating_sub(listed);
        let queue = &self.queue;
        InspectLimit {
            holders: missing(limit.holders, queue.holder_count, queue.holders.len()),
            waiters: missing(limit.waiters, queue.waiter_count, queue.waiters.len()),
        }
    }

    /// Whether it lists no claim.
    pub fn is_empty(&self) -> bool {
        self.queue.holders.is_empty() && self.queue.waiters.is_empty()
    }

    /// Appends the claims of the next part of the queue.
    pub fn extend(&mut self, more: Self) {
        self.queue.holders.extend(more.queue.holders);
        self.queue.waiters.extend(more.queue.waiters);
    }
}

/// The counters of a lock's hash that a replica compares with each heartbeat's reply, to detect lost
/// waiters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaiterState {
    /// When the lock's hash was created (microseconds since the epoch).
    pub born: u64,
    /// How many waiters of the lock were removed or adopted by something other than their call.
    pub lost: u64,
}

/// Whether a script returned only this word. `again` means that the script only purged, because there
/// was more to purge than one call may; `moved` means that the queue has changed.
pub fn is_word(answer: &Value, word: &str) -> bool {
    let Value::Array(values) = answer else { return false };
    matches!(values.as_slice(), [Value::BulkString(found)] if found == word.as_bytes())
}

/// Parses the reply of `acquire.lua` or `promote.lua`. A claim that waits also gets the state to compare
/// heartbeats with.
pub fn acquired(answer: Value, claim: &NewClaim, sent: Instant) -> Answer<(AcquireOutcome, Option<WaiterState>)> {
    let mut values = Values::of(answer)?;
    let word: String = values.take()?;
    let outcome = match word.as_str() {
        "held" => AcquireOutcome::Held(grant(&mut values, claim, sent)?),
        "waiting" => return waiting(&mut values),
        "busy" => AcquireOutcome::Busy(values.any().ok().map(holder).transpose()?.map(Box::new)),
        "full" => AcquireOutcome::Refused(Refusal::Full { limit: values.take()? }),
        "mismatch" => AcquireOutcome::Refused(Refusal::LimitMismatch {
            existing: values.mode()?,
        }),
        "other" => AcquireOutcome::Refused(other(&mut values, claim)?),
        "finished" => AcquireOutcome::Finished(values.cause()?.ok_or_else(|| broken("no such cause"))?),
        "left" => AcquireOutcome::Cancelled,
        "superseded" => AcquireOutcome::Superseded,
        "gone" => AcquireOutcome::Gone,
        _ => return Err(broken(format!("no such acquire outcome: {word}"))),
    };
    Ok((outcome, None))
}

fn waiting(values: &mut Values) -> Answer<(AcquireOutcome, Option<WaiterState>)> {
    let (position, frees_in) = (values.take()?, values.micros_or_none()?);
    let (born, lost) = (values.take()?, values.take()?);
    let position = QueuePosition { position, frees_in };
    Ok((AcquireOutcome::Waiting(position), Some(WaiterState { born, lost })))
}

fn grant(values: &mut Values, claim: &NewClaim, sent: Instant) -> Answer<Grant> {
    let mut grant = held(values, claim.owner.clone())?;
    let fresh: u8 = values.take()?;
    if fresh == 1 {
        grant.waited = sent.saturating_duration_since(claim.arrived);
    }
    Ok(grant)
}

fn held(values: &mut Values, owner: Owner) -> Answer<Grant> {
    Ok(Grant {
        claim: values.claim()?,
        kind: values.kind()?,
        secret: Secret::from_bytes(values.bytes()?),
        token: values.token()?,
        owner,
        ttl: values.micros()?,
        waited: Duration::ZERO,
        holds: values.take()?,
    })
}

fn other(values: &mut Values, claim: &NewClaim) -> Answer<Refusal> {
    let field = if values.mode()? == claim.mode {
        "reentrant"
    } else {
        "mode"
    };
    Ok(Refusal::OtherParameters { field })
}

/// Parses the reply of `release.lua`. The flag is set if the store no longer contains the waiter `next`.
pub fn released(answer: Value, next: Option<&NewClaim>, sent: Instant) -> Answer<(ReleaseOutcome, bool)> {
    let mut values = Values::of(answer)?;
    let (word, cause): (String, Option<Cause>) = (values.take()?, values.cause()?);
    let released = match (word.as_str(), cause) {
        ("ended", Some(cause)) => Released::Ended(cause),
        ("before", Some(cause)) => Released::EndedBefore(cause),
        ("adopted", _) => Released::Adopted,
        ("nothing", _) => Released::Nothing,
        _ => return Err(broken(format!("no such release outcome: {word}"))),
    };
    let next = next.map(|next| acquired(values.any()?, next, sent)).transpose()?;
    let (next, is_unknown) = match next.map(|(outcome, _)| outcome) {
        Some(AcquireOutcome::Held(grant)) => (Some(grant), false),
        None | Some(AcquireOutcome::Waiting(_)) => (None, false),
        Some(_) => (None, true),
    };
    Ok((ReleaseOutcome { released, next }, is_unknown))
}

/// Parses the reply of `renew.lua`.
pub fn renewed(answer: Value, lease: &LeaseKey) -> Answer<RenewOutcome> {
    let mut values = Values::of(answer)?;
    let word: String = values.take()?;
    if word == "gone" {
        return Ok(RenewOutcome::Gone(values.cause()?));
    }
    // The owner is part of the description, which is the last value, after the flag `fresh`.
    let owner = Owner::new("-").map_err(broken)?;
    let mut grant = held(&mut values, owner)?;
    let _fresh: u8 = values.take()?;
    grant.owner = values.description()?.0;
    grant.secret = lease.secret;
    Ok(RenewOutcome::Renewed(grant))
}

/// The reply of `update.lua`.
#[derive(Debug)]
pub enum UpdateAnswer {
    /// The new description was written, or the lease is gone.
    Done(UpdateOutcome),
    /// The holder has this description.
    Read(Vec<u8>),
}

/// Parses the reply of `update.lua`.
pub fn updated(answer: Value) -> Answer<UpdateAnswer> {
    let mut values = Values::of(answer)?;
    let word: String = values.take()?;
    match word.as_str() {
        "updated" => Ok(UpdateAnswer::Done(UpdateOutcome::Updated)),
        "gone" => Ok(UpdateAnswer::Done(UpdateOutcome::Gone(values.cause()?))),
        "read" => Ok(UpdateAnswer::Read(values.take()?)),
        _ => Err(broken(format!("no such update outcome: {word}"))),
    }
}

/// The reply of `tidy.lua`.
#[derive(Debug)]
pub struct Tidied {
    /// Whether the script should be called again immediately because more is left to purge.
    pub more: bool,
    /// How many ended holds and cancel marks are stored.
    pub remembered: u64,
    /// How many holders and waiters the lock has.
    pub claims: u64,
    /// The time since a claim was last granted or ended; `None` if the lock is not stored.
    pub idle: Option<Duration>,
}

impl Tidied {
    /// Parses the reply.
    pub fn read(answer: Value) -> Answer<Self> {
        let mut values = Values::of(answer)?;
        let more: u8 = values.take()?;
        Ok(Self {
            more: more == 1,
            remembered: values.take()?,
            claims: values.take()?,
            idle: values.micros_or_none()?,
        })
    }
}

/// Parses the reply of `inspect.lua`.
pub fn inspect(answer: Value) -> Answer<InspectAnswer> {
    let mut values = Values::of(answer)?;
    let (holder_count, waiter_count) = (values.take()?, values.take()?);
    let holders = Values::of(values.any()?)?.rest().map(holder).collect::<Answer<_>>()?;
    let waiters = Values::of(values.any()?)?.rest().map(waiter).collect::<Answer<_>>()?;
    Ok(InspectAnswer {
        queue: Queue {
            holders,
            waiters,
            holder_count,
            waiter_count,
        },
        changes: values.take()?,
        idle: values.micros_or_none()?,
        frees_in: values.micros_or_none()?,
        shape: values.take()?,
    })
}

fn holder(value: Value) -> Answer<Holder> {
    let mut values = Values::of(value)?;
    let (claim, mode, token, remaining) = (values.claim()?, values.mode()?, values.token()?, values.micros()?);
    let (holds, since) = (values.take()?, values.since()?);
    let (owner, identity, metadata) = values.description()?;
    Ok(Holder {
        claim,
        owner,
        identity,
        mode,
        token,
        remaining,
        holds,
        metadata,
        since,
    })
}

fn waiter(value: Value) -> Answer<Waiter> {
    let mut values = Values::of(value)?;
    let (claim, mode, since) = (values.claim()?, values.mode()?, values.since()?);
    let (owner, identity, metadata) = values.description()?;
    Ok(Waiter {
        claim,
        owner,
        identity,
        mode,
        metadata,
        since,
    })
}
