//! Builds the keys, channels and arguments of the scripts.

use std::time::Duration;

use super::answer::InspectAnswer;
use crate::backend::redis_server::description::ClaimDescription;
use crate::backend::{InspectLimit, NewClaim, ReleaseTarget, WaitPolicy};
use crate::name::{CallId, ClaimId, LeaseKey, LockName, Mode, Namespace, Ttl};

/// The keys and channels of one namespace, and the id of the calling replica.
#[derive(Debug)]
pub struct KeySpace {
    prefix: String,
    replica: String,
}

impl KeySpace {
    /// The key space of a namespace under the store's prefix, with a new replica id.
    pub fn new(prefix: &str, namespace: &Namespace) -> Self {
        let mut random = [0; 16];
        // Without random bytes, two replicas have the same id and receive each other's notifications.
        let _ = getrandom::fill(&mut random);
        Self {
            prefix: format!("{prefix}:{namespace}:"),
            replica: format!("{:032x}", u128::from_be_bytes(random)),
        }
    }

    /// The key of a lock.
    pub fn key(&self, lock: &LockName) -> Vec<u8> {
        format!("{}l:{}", self.prefix, lock.encoded()).into_bytes()
    }

    /// The key of the index, a sorted set with the names of the locks in use.
    pub fn index(&self) -> Vec<u8> {
        format!("{}names", self.prefix).into_bytes()
    }

    /// The channel for notifications of this replica's waiters.
    pub fn notifications(&self) -> String {
        format!("{}w:{}", self.prefix, self.replica)
    }

    /// The channel on which forced releases are published.
    pub fn forced(&self) -> String {
        format!("{}forced", self.prefix)
    }

    /// The channel on which a lock's changes are published.
    pub fn changes(&self, lock: &LockName) -> String {
        format!("{}c:{}", self.prefix, lock.as_str())
    }

    /// The arguments of `tidy.lua`, which are the first ones of each script.
    pub fn common(&self, lock: &LockName) -> Vec<Vec<u8>> {
        vec![text(&self.prefix), text(lock.as_str()), text(&self.replica)]
    }

    /// The arguments of `acquire.lua`.
    pub fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Vec<Vec<u8>> {
        let (letter, permits, limit) = mode(claim.mode);
        let mut args = self.common(lock);
        args.extend([
            claim.id.as_bytes().to_vec(),
            claim.call.as_bytes().to_vec(),
            claim.secret.as_bytes().to_vec(),
            flag(claim.retryable),
            text(letter),
            number(permits),
            number(limit),
            flag(claim.reentrant),
            micros(claim.ttl.get()),
            ClaimDescription::of(claim),
            owner_field(claim),
            flag(claim.wait_policy == WaitPolicy::Wait),
            number(claim.limits.queue),
            number(claim.limits.finished),
            number(claim.limits.holds),
        ]);
        args
    }

    /// The arguments of `promote.lua`.
    pub fn promote(&self, lock: &LockName, claim: &NewClaim) -> Vec<Vec<u8>> {
        let mut args = self.common(lock);
        args.extend(call_of(&claim.id, claim.call));
        args
    }

    /// The arguments of `release.lua`.
    pub fn release(&self, lock: &LockName, who: ReleaseTarget<'_>, next: Option<&NewClaim>) -> Vec<Vec<u8>> {
        let mut args = self.common(lock);
        args.extend(match who {
            ReleaseTarget::Hold(lease) => {
                let claim = lease.claim.as_bytes().to_vec();
                let secret = lease.secret.as_bytes().to_vec();
                [text("H"), claim, number(lease.token.get()), secret]
            }
            ReleaseTarget::Call(id, call) => {
                let [id, call] = call_of(id, call);
                [text("C"), id, call, Vec::new()]
            }
            ReleaseTarget::Forced(token) => [text("F"), Vec::new(), number(token.get()), Vec::new()],
        });
        args.extend(next.map_or_else(Default::default, |next| call_of(&next.id, next.call)));
        args
    }

    /// The arguments of `release.lua` that remove a waiter of this replica for which no call waits.
    pub fn disown(&self, lock: &LockName, id: &ClaimId) -> Vec<Vec<u8>> {
        let mut args = self.common(lock);
        args.extend([text("W"), id.as_bytes().to_vec(), Vec::new(), Vec::new()]);
        args.extend([Vec::new(), Vec::new()]);
        args
    }

    /// The arguments of `renew.lua`.
    pub fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Vec<Vec<u8>> {
        let mut args = self.common(&lease.lock.name);
        args.extend([
            lease.claim.as_bytes().to_vec(),
            number(lease.token.get()),
            lease.secret.as_bytes().to_vec(),
            micros(ttl.map_or(Duration::ZERO, Ttl::get)),
        ]);
        args
    }

    /// The arguments of `update.lua`: `read` is the description that was read, or empty to read it.
    pub fn update(&self, lease: &LeaseKey, read: &[u8], new: Vec<u8>) -> Vec<Vec<u8>> {
        let mut args = self.common(&lease.lock.name);
        args.extend([
            lease.claim.as_bytes().to_vec(),
            number(lease.token.get()),
            lease.secret.as_bytes().to_vec(),
            read.to_vec(),
            new,
        ]);
        args
    }

    /// The arguments of `inspect.lua`. With `known`, the script continues after the last claims in it.
    pub fn inspect(
        &self,
        lock: &LockName,
        limit: InspectLimit,
        watching: Duration,
        known: Option<&InspectAnswer>,
    ) -> Vec<Vec<u8>> {
        let mut args = self.common(lock);
        args.extend([
            number(limit.holders as u64),
            number(limit.waiters as u64),
            micros(watching),
            id(known.and_then(|known| Some(known.queue.holders.last()?.claim))),
            id(known.and_then(|known| Some(known.queue.waiters.last()?.claim))),
            known.map(|known| number(known.shape)).unwrap_or_default(),
        ]);
        args
    }

    /// The arguments of `heartbeat.lua`. `taken` is the count of removed or adopted waiters that the replica
    /// has processed, and `first` has the ids of its first waiters.
    pub fn heartbeat(&self, lock: &LockName, taken: u64, first: &[ClaimId]) -> Vec<Vec<u8>> {
        let mut args = self.common(lock);
        args.push(number(taken));
        args.extend(first.iter().map(|id| id.as_bytes().to_vec()));
        args
    }
}

fn mode(mode: Mode) -> (&'static str, u64, u64) {
    let letter = match mode {
        Mode::Exclusive => "x",
        Mode::Shared => "s",
        Mode::Semaphore { .. } => "p",
    };
    (letter, mode.permits(), mode.limit())
}

/// The suffix of the fields for reentrant holders of this owner and identity. A NUL separates the two,
/// because no owner contains one.
fn owner_field(claim: &NewClaim) -> Vec<u8> {
    text(&format!("{}\0{}", claim.owner, claim.identity.as_str()))
}

fn call_of(id: &ClaimId, call: CallId) -> [Vec<u8>; 2] {
    [id.as_bytes().to_vec(), call.as_bytes().to_vec()]
}

fn id(claim: Option<ClaimId>) -> Vec<u8> {
    claim.map(|claim| claim.as_bytes().to_vec()).unwrap_or_default()
}

fn text(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn flag(set: bool) -> Vec<u8> {
    text(if set { "1" } else { "0" })
}

fn number(number: impl Into<u64>) -> Vec<u8> {
    number.into().to_string().into_bytes()
}

/// Microseconds, rounded up, so that a lease is never shorter than requested.
fn micros(time: Duration) -> Vec<u8> {
    time.as_nanos().div_ceil(1_000).to_string().into_bytes()
}
