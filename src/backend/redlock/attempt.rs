//! One attempt to acquire a lock: votes of a majority with one number for all of them, or nothing
//! left behind.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::answer::{NodeHolder, micros, with_drift};
use super::clock::Clocks;
use super::nodes::{Reply, Request, Round};
use super::{Core, scripts};
use crate::backend::redis_server::description::ClaimDescription;
use crate::backend::redis_server::failure::broken;
use crate::backend::redis_server::script::Script;
use crate::backend::{BackendError, Grant, NewClaim, WaitPolicy};
use crate::claim::Holder;
use crate::name::{FencingToken, LockName};

/// The minimum time for the other nodes to reply after a majority has voted with different numbers.
const MIN_AGREEMENT_TIME: Duration = Duration::from_millis(1);

/// The outcome of an attempt.
pub enum AttemptOutcome {
    /// A majority holds for the call.
    Held(Grant),
    /// Another call holds, or contends.
    Busy(Conflict),
    /// The call was cancelled.
    Cancelled,
}

/// Why an attempt failed.
#[derive(Debug, Default)]
pub struct Conflict {
    /// The holder, if a majority of nodes named one; otherwise several attempts split the votes.
    pub holder: Option<Holder>,
    /// When the first node may be free.
    pub frees_in: Option<Duration>,
}

/// The replies of an attempt.
#[derive(Default)]
struct Votes {
    /// The votes that count.
    counted: Vec<(usize, u64)>,
    /// The votes whose numbers are too far ahead to count.
    too_far: Vec<(usize, u64)>,
    busy: Vec<NodeHolder>,
    quarantined: usize,
    cancelled: bool,
}

impl Votes {
    /// A number that a majority of the votes has.
    fn agreed(&self, majority: usize) -> Option<u64> {
        let count = |number| self.counted.iter().filter(|(_, other)| *other == number).count();
        self.counted
            .iter()
            .map(|(_, number)| *number)
            .find(|number| count(*number) >= majority)
    }

    /// The largest number, if a majority has voted: fewer votes make no token, and whether they count is unknown.
    fn largest(&self, majority: usize) -> Option<u64> {
        let largest = self.counted.iter().map(|(_, number)| *number).max();
        largest.filter(|_| self.counted.len() >= majority)
    }

    /// The number to which votes that differ are raised. Those of a cancelled call are not.
    fn to_raise(&self, majority: usize) -> Option<u64> {
        self.largest(majority).filter(|_| !self.cancelled)
    }

    /// Whether a node holds for this call.
    fn include_call(&self, claim: &NewClaim) -> bool {
        !self.counted.is_empty() || !self.too_far.is_empty() || self.busy.iter().any(|one| one.call == claim.call)
    }

    /// Adds a vote. It can change whether other votes count.
    fn add(&mut self, node: usize, number: u64, clocks: &Clocks) {
        self.counted.append(&mut self.too_far);
        self.counted.push((node, number));
        let numbers: Vec<u64> = self.counted.iter().map(|(_, number)| *number).collect();
        let bound = clocks.bound(&numbers);
        self.too_far = self.counted.extract_if(.., |(_, number)| *number > bound).collect();
    }

    fn take(&mut self, node: usize, reply: Reply, clocks: &Clocks) -> Result<(), BackendError> {
        match reply {
            Reply::Status(status, mut values) => match status.as_str() {
                "ok" => self.add(node, values.take()?, clocks),
                "busy" => self.busy.push(NodeHolder::read(&mut values)?),
                "left" => self.cancelled = true,
                _ => return Err(broken(format!("no such vote: {status}"))),
            },
            Reply::Quarantined => self.quarantined += 1,
            Reply::Unreadable(_) | Reply::Nothing => {}
        }
        Ok(())
    }
}

impl Core {
    /// Tries once to acquire a lock for a call. The rounds of a call rise. `awaited`: other calls
    /// wait behind this one, so the end of its lease is to be published.
    ///
    /// # Errors
    /// Too few nodes replied; the attempt is being undone at those that may have voted.
    ///
    /// # Cancellation safety
    /// If the future is dropped, votes may remain: the caller must release the call.
    pub async fn attempt(
        &self,
        lock: &LockName,
        claim: &NewClaim,
        round: u32,
        awaited: bool,
    ) -> Result<AttemptOutcome, BackendError> {
        let nodes = &self.shared.nodes;
        nodes.check_majority_admitted()?;
        let majority = nodes.majority();
        let request = self.request(&scripts::LOCK, lock, self.lock_args(claim, round, awaited));
        let mut answers = nodes.query(&request);
        let sent = answers.sent;
        let mut votes = gather(&mut answers, majority, &nodes.clocks).await?;
        nodes.log_too_far(&votes.counted, &votes.too_far);
        let answered = votes.counted.len() + votes.busy.len();
        let leaves_nothing = answered + votes.quarantined == nodes.all.len() && !votes.include_call(claim);
        if let Some(largest) = votes.largest(majority) {
            nodes.clocks.record_number(largest);
        }
        // Votes are counted only until they agree or the call was cancelled, so never both.
        let agreed = votes.agreed(majority);
        let token = match (agreed, votes.to_raise(majority)) {
            (Some(token), _) => Some(token),
            (None, Some(token)) => self.raise(lock, claim, round, token, &votes).await.then_some(token),
            (None, None) => None,
        };
        drop(answers);
        match token {
            Some(token) if sent.elapsed() < claim.ttl.get() => {
                if agreed.is_some() {
                    self.raise_rest(lock, claim, round, token, &votes);
                }
                let token = FencingToken::new(token).map_err(broken)?;
                Ok(AttemptOutcome::Held(grant(claim, token, sent)))
            }
            _ => {
                if !leaves_nothing {
                    self.cancel(lock, claim, round).await;
                }
                // An earlier attempt of this call whose votes were not received is over, and is no
                // conflict.
                votes.busy.retain(|one| one.call != claim.call);
                self.failed(&votes, answered)
            }
        }
    }

    /// The arguments of `lock.lua`.
    fn lock_args(&self, claim: &NewClaim, round: u32, awaited: bool) -> Vec<Vec<u8>> {
        let number = |n: u64| n.to_string().into_bytes();
        vec![
            claim.secret.as_bytes().to_vec(),
            number(round.into()),
            claim.id.as_bytes().to_vec(),
            claim.call.as_bytes().to_vec(),
            micros(with_drift(claim.ttl.get())),
            number(self.shared.nodes.clocks.hint()),
            ClaimDescription::of(claim),
            number(u64::from(claim.wait_policy == WaitPolicy::Wait)),
            number(claim.limits.finished.into()),
            number(awaited.into()),
        ]
    }

    /// Raises the numbers of all votes to the largest. Returns whether a majority has it.
    async fn raise(&self, lock: &LockName, claim: &NewClaim, round: u32, token: u64, votes: &Votes) -> bool {
        let request = self.raise_request(lock, claim, round, token);
        let mut raised: Vec<usize> = votes
            .counted
            .iter()
            .filter(|(_, other)| *other == token)
            .map(|(at, _)| *at)
            .collect();
        let already = raised.clone();
        let nodes = &self.shared.nodes;
        let mut answers = nodes.query_some(&request, |at| !already.contains(&at));
        while raised.len() < nodes.majority() {
            match answers.next().await {
                Some((at, Reply::Status(status, _))) if status == "ok" => raised.push(at),
                Some(_) => {}
                None => return false,
            }
        }
        true
    }

    /// The request of a raise.
    fn raise_request(&self, lock: &LockName, claim: &NewClaim, round: u32, token: u64) -> Request {
        let args = vec![
            claim.secret.as_bytes().to_vec(),
            round.to_string().into_bytes(),
            token.to_string().into_bytes(),
        ];
        self.request(&scripts::RAISE, lock, args)
    }

    /// Raises the votes below the token, so that those nodes count from the next renewal.
    fn raise_rest(&self, lock: &LockName, claim: &NewClaim, round: u32, token: u64, votes: &Votes) {
        let behind: Vec<usize> = votes
            .counted
            .iter()
            .filter(|(_, number)| *number < token)
            .map(|(at, _)| *at)
            .collect();
        if behind.is_empty() {
            return;
        }
        let request = self.raise_request(lock, claim, round, token);
        // Not awaited: a dropped round continues in the background.
        drop(self.shared.nodes.query_some(&request, |at| behind.contains(&at)));
    }

    /// Undoes an attempt at all nodes, including those that did not reply.
    async fn cancel(&self, lock: &LockName, claim: &NewClaim, round: u32) {
        let args = super::release::args(
            "A",
            claim.secret.as_bytes(),
            &[],
            round.to_string().as_bytes(),
            0,
            with_drift(claim.ttl.get()),
        );
        let mut request = self.request(&scripts::RELEASE, lock, args);
        request.all = true;
        let nodes = &self.shared.nodes;
        nodes.query(&request).await_statuses(nodes.majority()).await;
    }

    fn failed(&self, votes: &Votes, answered: usize) -> Result<AttemptOutcome, BackendError> {
        if votes.cancelled {
            return Ok(AttemptOutcome::Cancelled);
        }
        let nodes = &self.shared.nodes;
        if answered < nodes.majority() {
            return Err(nodes.no_majority_with(&votes.too_far));
        }
        Ok(AttemptOutcome::Busy(Conflict {
            holder: holder(&votes.busy, nodes.majority())?,
            frees_in: votes.busy.iter().map(|one| one.left).min(),
        }))
    }

    /// A step on this lock for all admitted nodes.
    pub fn request(&self, script: &'static Script, lock: &LockName, args: Vec<Vec<u8>>) -> Request {
        Request {
            script,
            base: Arc::clone(&self.base),
            lock: lock.as_str().into(),
            args: Arc::new(args),
            all: false,
            bound: None,
        }
    }
}

/// The holder that a majority of nodes names.
///
/// # Errors
/// Broken if its description cannot be read.
pub fn holder(holders: &[NodeHolder], majority: usize) -> Result<Option<Holder>, BackendError> {
    let same = |one: &NodeHolder| holders.iter().filter(|other| other.is_same(one)).count();
    let Some(one) = holders.iter().find(|one| same(one) >= majority) else {
        return Ok(None);
    };
    let mut left: Vec<_> = holders
        .iter()
        .filter(|other| other.is_same(one))
        .map(|other| other.left)
        .collect();
    // It holds for as long as a majority of nodes holds for it.
    left.sort_unstable_by(|a, b| b.cmp(a));
    one.holder(left[majority - 1]).map(Some)
}

async fn gather(answers: &mut Round, majority: usize, clocks: &Clocks) -> Result<Votes, BackendError> {
    let mut votes = Votes::default();
    let mut shortened = false;
    while let Some((at, reply)) = answers.next().await {
        votes.take(at, reply, clocks)?;
        if votes.cancelled || votes.agreed(majority).is_some() {
            break;
        }
        // The attempt is decided, unless the remaining replies agree on one number.
        let enough = votes.counted.len() >= majority || votes.busy.len() >= majority;
        if enough && !shortened {
            shortened = true;
            answers.shorten_deadline(answers.sent.elapsed().max(MIN_AGREEMENT_TIME));
        }
    }
    Ok(votes)
}

fn grant(claim: &NewClaim, token: FencingToken, sent: Instant) -> Grant {
    Grant {
        claim: claim.id,
        kind: claim.mode.into(),
        secret: claim.secret,
        token,
        owner: claim.owner.clone(),
        ttl: claim.ttl.get(),
        waited: sent.saturating_duration_since(claim.arrived),
        holds: 1,
    }
}

#[cfg(test)]
mod tests {
    use common::claims::numbered;

    use super::*;
    use crate::backend::redlock::tests::unreachable;
    use crate::name::Ttl;

    #[tokio::test]
    async fn nodes_hold_for_the_ttl_and_the_drift_allowance() {
        let backend = unreachable();
        let mut claim = numbered(1);
        claim.ttl = Ttl::new(Duration::from_secs(10)).unwrap();
        // A hundredth of the TTL, and 2 ms.
        let args = backend.core.lock_args(&claim, 0, false);
        assert_eq!(args[4], b"10102000");
    }

    #[tokio::test]
    async fn votes_are_counted_until_they_agree_or_the_call_was_cancelled() {
        let number = |number: i64| Reply::Status("ok".into(), vec![redis::Value::Int(number)].into());
        let cancelled = || Reply::Status("left".into(), Vec::new().into());
        let clocks = Clocks::new(3);
        let mut round = Round::of([number(5), number(6), cancelled()]);
        let votes = gather(&mut round, 2, &clocks).await.unwrap();
        assert_eq!((votes.agreed(2), votes.cancelled), (None, true));
        assert_eq!((votes.largest(2), votes.to_raise(2)), (Some(6), None));
        let mut round = Round::of([number(5), number(6), number(7)]);
        let votes = gather(&mut round, 2, &clocks).await.unwrap();
        assert_eq!(
            (votes.agreed(2), votes.to_raise(2), votes.to_raise(4)),
            (None, Some(7), None)
        );
        let mut round = Round::of([cancelled(), number(5), number(5)]);
        let votes = gather(&mut round, 2, &clocks).await.unwrap();
        assert_eq!((votes.agreed(2), votes.cancelled), (None, true));
        let mut round = Round::of([number(5), number(5), cancelled()]);
        let votes = gather(&mut round, 2, &clocks).await.unwrap();
        assert_eq!((votes.agreed(2), votes.cancelled), (Some(5), false));
    }
}
