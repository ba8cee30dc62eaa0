//! What a script returns, as the words of the trait.

use std::time::{Duration, SystemTime};

use redis::{FromRedisValue, Value, from_redis_value};
use tokio::time::Instant;

use crate::backend::redis_server::failure::broken;
use crate::backend::redis_server::description::ClaimDescription;
use crate::backend::{QueuePosition, BackendError, ReleaseOutcome, Released, Grant, InspectLimit, NewClaim, AcquireOutcome, Refusal, RenewOutcome};
use crate::claim::{Cause, Holder, Queue, Waiter};
use crate::name::{ClaimId, FencingToken, Identity, Kind, LeaseKey, Metadata, Mode, Owner, Secret};

type Answer<T> = Result<T, BackendError>;

/// What `look.lua` returns.
#[derive(Debug, Clone)]
pub struct InspectAnswer {
    /// The queue.
    pub queue: Queue,
    /// The number of the last change that was published.
    pub changes: u64,
    /// For how long the lock has had no claim, if it has none; nothing for one that is not stored.
    pub idle: Option<Duration>,
    /// When the next holder's TTL runs out, if nobody renews it.
    pub frees_in: Option<Duration>,
    /// Counts the comings and goings.
    pub shape: u64,
}

impl InspectAnswer {
    /// How many holders and waiters are to be shown and are not yet.
    pub fn missing(&self, most: InspectLimit) -> InspectLimit {
        let missing = |most: usize, count: usize, shown: usize| most.min(count).saturating_sub(shown);
        let queue = &self.queue;
        InspectLimit {
            holders: missing(most.holders, queue.holder_count, queue.holders.len()),
            waiters: missing(most.waiters, queue.waiter_count, queue.waiters.len()),
        }
    }

    /// Whether it shows no claim.
    pub fn is_empty(&self) -> bool {
        self.queue.holders.is_empty() && self.queue.waiters.is_empty()
    }

    /// Adds what was shown behind it.
    pub fn extend(&mut self, more: Self) {
        self.queue.holders.extend(more.queue.holders);
        self.queue.waiters.extend(more.queue.waiters);
    }
}

/// The values of an array, one after another.
struct Values(std::vec::IntoIter<Value>);

impl Values {
    fn of(value: Value) -> Answer<Self> {
        match value {
            Value::Array(values) => Ok(Self(values.into_iter())),
            other => Err(broken(format!("not an array: {other:?}"))),
        }
    }

    fn any(&mut self) -> Answer<Value> {
        self.0.next().ok_or_else(|| broken("an answer is too short"))
    }

    fn next<T: FromRedisValue>(&mut self) -> Answer<T> {
        from_redis_value(self.any()?).map_err(broken)
    }

    fn bytes(&mut self) -> Answer<[u8; 16]> {
        let bytes: Vec<u8> = self.next()?;
        bytes.try_into().map_err(|_| broken("an id is not 16 bytes long"))
    }

    fn claim(&mut self) -> Answer<ClaimId> {
        Ok(ClaimId::from_bytes(self.bytes()?))
    }

    fn token(&mut self) -> Answer<FencingToken> {
        FencingToken::new(self.next()?).map_err(broken)
    }

    fn micros(&mut self) -> Answer<Duration> {
        Ok(Duration::from_micros(self.next()?))
    }

    fn since(&mut self) -> Answer<SystemTime> {
        Ok(SystemTime::UNIX_EPOCH + self.micros()?)
    }

    fn mode(&mut self) -> Answer<Mode> {
        let (letter, permits, limit): (String, u64, u64) = (self.next()?, self.next()?, self.next()?);
        let small = |number: u64| u32::try_from(number).map_err(broken);
        match letter.as_str() {
            "x" => Ok(Mode::Exclusive),
            "s" => Ok(Mode::Shared),
            "p" => Mode::semaphore(small(permits)?, small(limit)?).map_err(broken),
            _ => Err(broken(format!("no such mode: {letter}"))),
        }
    }

    fn kind(&mut self) -> Answer<Kind> {
        let letter: String = self.next()?;
        match letter.as_str() {
            "x" => Ok(Kind::Exclusive),
            "s" => Ok(Kind::Shared),
            "p" => Ok(Kind::Semaphore),
            _ => Err(broken(format!("no such mode: {letter}"))),
        }
    }

    fn cause(&mut self) -> Answer<Option<Cause>> {
        let letter: String = self.next()?;
        Ok(cause(&letter))
    }

    fn shown(&mut self) -> Answer<(Owner, Identity, Metadata)> {
        let bytes: Vec<u8> = self.next()?;
        let shown = ClaimDescription::read(&bytes).ok_or_else(|| broken("what a claim shows cannot be read"))?;
        let owner = Owner::new(&shown.owner).map_err(broken)?;
        let metadata = Metadata::new(shown.metadata).map_err(broken)?;
        Ok((owner, Identity::proven(&shown.identity), metadata))
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

/// What a waiting claim's replica compares with each beat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaiterState {
    /// When the lock's hash was born.
    pub born: u64,
    /// How many waiters of the lock others than their calls have taken out.
    pub lost: u64,
}

/// Whether a script returned this word alone: `again`, it had more to purge than one call may, and did
/// nothing else; `moved`, the queue is not as it was.
pub fn is_word(answer: &Value, word: &str) -> bool {
    let Value::Array(values) = answer else { return false };
    matches!(values.as_slice(), [Value::BulkString(found)] if found == word.as_bytes())
}

/// What `enter.lua` and `promote.lua` return, and what to compare beats with if the claim waits.
pub fn place(answer: Value, claim: &NewClaim, sent: Instant) -> Answer<(AcquireOutcome, Option<WaiterState>)> {
    let mut values = Values::of(answer)?;
    let word: String = values.next()?;
    let place = match word.as_str() {
        "held" => AcquireOutcome::Held(grant(&mut values, claim, sent)?),
        "waiting" => return waiting(&mut values),
        "busy" => AcquireOutcome::Busy(values.any().ok().map(holder).transpose()?.map(Box::new)),
        "full" => AcquireOutcome::Refused(Refusal::Full { limit: values.next()? }),
        "mismatch" => AcquireOutcome::Refused(Refusal::LimitMismatch { there: values.mode()? }),
        "other" => AcquireOutcome::Refused(other(&mut values, claim)?),
        "finished" => AcquireOutcome::Finished(values.cause()?.ok_or_else(|| broken("no such cause"))?),
        "left" => AcquireOutcome::Cancelled,
        "superseded" => AcquireOutcome::Superseded,
        "gone" => AcquireOutcome::Gone,
        _ => return Err(broken(format!("no such place: {word}"))),
    };
    Ok((place, None))
}

fn waiting(values: &mut Values) -> Answer<(AcquireOutcome, Option<WaiterState>)> {
    let (turn, frees_in) = (values.next()?, values.next::<i64>()?);
    let seen = WaiterState {
        born: values.next()?,
        lost: values.next()?,
    };
    let frees_in = u64::try_from(frees_in).ok().map(Duration::from_micros);
    Ok((AcquireOutcome::Waiting(QueuePosition { position: turn, frees_in }), Some(seen)))
}

fn grant(values: &mut Values, claim: &NewClaim, sent: Instant) -> Answer<Grant> {
    let mut grant = held(values, claim.owner.clone())?;
    let fresh: u8 = values.next()?;
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
        holds: values.next()?,
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

/// What `leave.lua` returns, and whether the store knows `next` no more.
pub fn departure(answer: Value, next: Option<&NewClaim>, sent: Instant) -> Answer<(ReleaseOutcome, bool)> {
    let mut values = Values::of(answer)?;
    let (word, cause): (String, Option<Cause>) = (values.next()?, values.cause()?);
    let found = match (word.as_str(), cause) {
        ("ended", Some(cause)) => Released::Ended(cause),
        ("before", Some(cause)) => Released::EndedBefore(cause),
        ("adopted", _) => Released::Adopted,
        ("nothing", _) => Released::Nothing,
        _ => return Err(broken(format!("no such departure: {word}"))),
    };
    let next = next.map(|next| place(values.any()?, next, sent)).transpose()?;
    let (next, is_unknown) = match next.map(|(place, _)| place) {
        Some(AcquireOutcome::Held(grant)) => (Some(grant), false),
        None | Some(AcquireOutcome::Waiting(_)) => (None, false),
        Some(_) => (None, true),
    };
    Ok((ReleaseOutcome { found, next }, is_unknown))
}

/// What `renew.lua` returns.
pub fn renewal(answer: Value, lease: &LeaseKey) -> Answer<RenewOutcome> {
    let mut values = Values::of(answer)?;
    let word: String = values.next()?;
    if word == "gone" {
        return Ok(RenewOutcome::Gone(values.cause()?));
    }
    // The owner comes last, behind the mark of a fresh grant.
    let owner = Owner::new("-").map_err(broken)?;
    let mut grant = held(&mut values, owner)?;
    let _fresh: u8 = values.next()?;
    grant.owner = values.shown()?.0;
    grant.secret = lease.secret;
    Ok(RenewOutcome::Renewed(grant))
}

/// What `tidy.lua` returns.
#[derive(Debug)]
pub struct Tidied {
    /// Whether there is more to do at once.
    pub more: bool,
    /// How many ended calls are remembered.
    pub remembered: u64,
    /// How many claims there are.
    pub claims: u64,
    /// For how long there has been none, if there is none; nothing for a lock that is not stored.
    pub idle: Option<Duration>,
}

impl Tidied {
    /// Reads it.
    pub fn read(answer: Value) -> Answer<Self> {
        let mut values = Values::of(answer)?;
        let more: u8 = values.next()?;
        Ok(Self {
            more: more == 1,
            remembered: values.next()?,
            claims: values.next()?,
            idle: u64::try_from(values.next::<i64>()?).ok().map(Duration::from_micros),
        })
    }
}

/// What `look.lua` returns.
pub fn inspect(answer: Value) -> Answer<InspectAnswer> {
    let mut values = Values::of(answer)?;
    let (holder_count, waiter_count) = (values.next()?, values.next()?);
    let holders = Values::of(values.any()?)?.0.map(holder).collect::<Answer<_>>()?;
    let waiters = Values::of(values.any()?)?.0.map(waiter).collect::<Answer<_>>()?;
    let (changes, idle, frees_in): (u64, i64, i64) = (values.next()?, values.next()?, values.next()?);
    let maybe = |micros: i64| u64::try_from(micros).ok().map(Duration::from_micros);
    Ok(InspectAnswer {
        queue: Queue {
            holders,
            waiters,
            holder_count,
            waiter_count,
        },
        changes,
        idle: maybe(idle),
        frees_in: maybe(frees_in),
        shape: values.next()?,
    })
}

fn holder(value: Value) -> Answer<Holder> {
    let mut values = Values::of(value)?;
    let (claim, mode, token, remaining) = (values.claim()?, values.mode()?, values.token()?, values.micros()?);
    let (holds, since) = (values.next()?, values.since()?);
    let (owner, identity, metadata) = values.shown()?;
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
    let (owner, identity, metadata) = values.shown()?;
    Ok(Waiter {
        claim,
        owner,
        identity,
        mode,
        metadata,
        since,
    })
}
