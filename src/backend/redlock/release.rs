//! Ends: a release, an undo or a forced release, at every reachable node.

use std::sync::Arc;
use std::time::Duration;

use super::answer::micros;
use super::nodes::{Reply, Request};
use super::{Core, scripts};
use crate::backend::redis_server::reply::{Values, cause};
use crate::backend::{BackendError, MARKS_KEPT, ReleaseTarget, Released};
use crate::claim::Cause;
use crate::name::LockName;

/// The arguments of `release.lua`.
pub fn args(what: &str, secret: &[u8], claim: &[u8], call: &[u8], token: u64, keep: Duration) -> Vec<Vec<u8>> {
    vec![
        what.as_bytes().to_vec(),
        secret.to_vec(),
        claim.to_vec(),
        call.to_vec(),
        token.to_string().into_bytes(),
        micros(keep.max(MARKS_KEPT)),
    ]
}

/// A round that no attempt reaches.
const PAST_ALL_ROUNDS: &[u8] = b"999999999";

/// The findings of the nodes.
#[derive(Debug, Default)]
struct EndTally {
    ended: Vec<Cause>,
    before: Vec<Cause>,
    other: Vec<usize>,
    answered: usize,
    /// The secret of the lease with the token.
    secret: Option<Vec<u8>>,
}

impl EndTally {
    fn take(&mut self, node: usize, status: &str, values: &mut Values) -> Result<(), BackendError> {
        self.answered += 1;
        match status {
            "ended" => self.ended.extend(cause(&values.take::<String>()?)),
            "before" => self.before.extend(cause(&values.take::<String>()?)),
            "other" => self.other.push(node),
            _ => return Ok(()),
        }
        // Only the end of a token's lease returns a secret.
        self.secret = values.take().ok().or(self.secret.take());
        Ok(())
    }

    /// The combined outcome: the lease was alive if a majority had it.
    fn outcome(&self, majority: usize) -> Released {
        let most_common = |causes: &[Cause]| {
            let count = |cause: &Cause| causes.iter().filter(|other| *other == cause).count();
            causes.iter().copied().max_by_key(count)
        };
        match (most_common(&self.ended), most_common(&self.before)) {
            (Some(cause), _) if self.ended.len() >= majority => Released::Ended(cause),
            (_, Some(cause)) => Released::EndedBefore(cause),
            (Some(cause), None) => Released::Ended(cause),
            (None, None) => Released::Nothing,
        }
    }
}

/// The arguments of `release.lua` for a target.
fn args_of(target: ReleaseTarget<'_>, longest: Duration) -> Result<Vec<Vec<u8>>, BackendError> {
    Ok(match target {
        ReleaseTarget::Keeping(..) => {
            let what = "RedLock keeps no lock that was released";
            return Err(BackendError::Unsupported { what });
        }
        ReleaseTarget::Request(..) => {
            let what = "RedLock remembers no request";
            return Err(BackendError::Unsupported { what });
        }
        ReleaseTarget::Hold(lease) => args(
            "H",
            lease.secret.as_bytes(),
            lease.claim.as_bytes(),
            &[],
            lease.token.get(),
            longest,
        ),
        ReleaseTarget::Call(_, call) => args("C", &[], &[], call.as_bytes(), 0, longest),
        ReleaseTarget::Forced(token) => args("F", &[], &[], &[], token.get(), longest),
    })
}

impl Core {
    /// Ends `target` at a majority, and at the other nodes that can be reached.
    ///
    /// # Errors
    /// Too few nodes replied; Unsupported for a release that keeps the lock.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the requests are sent all the same.
    pub async fn end(&self, lock: &LockName, target: ReleaseTarget<'_>) -> Result<Released, BackendError> {
        let nodes = &self.shared.nodes;
        let args = args_of(target, self.shared.longest_ttl)?;
        let mut request = self.request(&scripts::RELEASE, lock, args);
        request.all = true;
        let (mut answers, mut tally) = (nodes.query(&request), EndTally::default());
        while let Some((at, reply)) = answers.next().await {
            if let Reply::Status(status, mut values) = reply {
                tally.take(at, &status, &mut values)?;
            }
            // Nodes that found nothing are less informative than nodes that found something.
            let enough = tally.ended.len() >= nodes.majority() || tally.before.len() >= nodes.majority();
            if enough {
                break;
            }
            if tally.answered >= nodes.majority() {
                answers.shorten_deadline(answers.sent.elapsed());
            }
        }
        if tally.answered < nodes.majority() {
            return Err(nodes.no_majority(true));
        }
        let found = tally.outcome(nodes.majority());
        match (target, found, &tally.secret) {
            (ReleaseTarget::Hold(lease), Released::Ended(_), _) => {
                // The lease existed. Nodes where its number lags behind end its attempts, including
                // nodes that have not replied yet.
                let request = self.end_of_attempts(lock, lease.secret.as_bytes());
                drop(nodes.query_some(&request, |at| tally.other.contains(&at)));
                let nodes = Arc::clone(nodes);
                answers.detach(move |(at, reply)| {
                    if matches!(reply, Reply::Status(status, _) if status == "other") {
                        drop(nodes.query_some(&request, |other| other == at));
                    }
                });
            }
            (ReleaseTarget::Forced(_), _, Some(secret)) if tally.ended.len() < nodes.majority() => {
                self.confirm_attempts_ended(lock, secret).await?;
            }
            // Nodes where its number lags behind end its attempts too; that is not awaited.
            (ReleaseTarget::Forced(_), _, Some(secret)) => drop(nodes.query(&self.end_of_attempts(lock, secret))),
            _ => {}
        }
        Ok(found)
    }

    /// The request that ends all attempts of a secret, whatever their numbers.
    fn end_of_attempts(&self, lock: &LockName, secret: &[u8]) -> Request {
        let longest = self.shared.longest_ttl;
        let args = args("A", secret, &[], PAST_ALL_ROUNDS, 0, longest);
        let mut request = self.request(&scripts::RELEASE, lock, args);
        request.all = true;
        request
    }

    /// Makes sure that a forced lease has ended at a majority, also if one of its votes is still in
    /// flight: a late vote would restore the lease.
    async fn confirm_attempts_ended(&self, lock: &LockName, secret: &[u8]) -> Result<(), BackendError> {
        let nodes = &self.shared.nodes;
        let mut answers = nodes.query(&self.end_of_attempts(lock, secret));
        match answers.await_statuses(nodes.majority()).await {
            true => Ok(()),
            false => Err(nodes.no_majority(true)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis_server::settings::connection_info;
    use crate::backend::redlock::Store;
    use crate::backend::redlock::answer::with_drift;
    use crate::backend::redlock::settings::Quorum;

    #[tokio::test]
    async fn nodes_keep_marks_for_as_long_as_a_node_may_hold() {
        let mut quorum = Quorum::new(vec![connection_info("redis://127.0.0.1:1").unwrap()]);
        quorum.longest_ttl = std::time::Duration::from_millis(1_001);
        let store = Store::open(quorum.clone());
        assert_eq!(store.inner.longest_ttl, with_drift(quorum.longest_ttl));
    }

    #[test]
    fn a_release_ended_the_lease_if_a_majority_still_had_it() {
        let tally = |ended: usize, before: &[Cause]| EndTally {
            ended: vec![Cause::Released; ended],
            before: before.to_vec(),
            ..EndTally::default()
        };
        assert_eq!(tally(2, &[Cause::Expired]).outcome(2), Released::Ended(Cause::Released));
        assert_eq!(
            tally(1, &[Cause::Expired; 2]).outcome(2),
            Released::EndedBefore(Cause::Expired)
        );
        assert_eq!(tally(1, &[]).outcome(2), Released::Ended(Cause::Released));
        assert_eq!(tally(0, &[]).outcome(2), Released::Nothing);
    }
}
