//! Renewal: a majority extends the lease. Then the other nodes are repaired; they count from the
//! next renewal.

use std::time::Duration;

use super::answer::{micros, with_drift, without_drift};
use super::nodes::{Reply, Request};
use super::{Core, scripts};
use crate::backend::redis_server::failure::broken;
use crate::backend::redis_server::reply::{cause, read_description};
use crate::backend::{BackendError, Grant, RenewOutcome};
use crate::claim::Cause;
use crate::name::{LeaseKey, Owner, Ttl};

/// The reply of a node that has extended a lease.
struct NodeRenewal {
    left: Duration,
    ttl: Vec<u8>,
    call: Vec<u8>,
    since: Vec<u8>,
    description: Vec<u8>,
}

/// The replies of the nodes.
#[derive(Default)]
struct Tally {
    extended: Vec<(usize, NodeRenewal)>,
    before: Vec<Cause>,
    behind: Vec<usize>,
    without: Vec<usize>,
}

impl Tally {
    fn take(&mut self, node: usize, reply: Reply) -> Result<(), BackendError> {
        // A node that may have lost the lease cannot report that the lease has ended.
        let Reply::Status(status, mut values) = reply else {
            return Ok(());
        };
        match status.as_str() {
            "ok" => {
                let one = NodeRenewal {
                    left: Duration::from_micros(values.take()?),
                    ttl: values.take()?,
                    call: values.take()?,
                    since: values.take()?,
                    description: values.take()?,
                };
                self.extended.push((node, one));
            }
            "before" => self.before.extend(cause(&values.take::<String>()?)),
            "behind" => self.behind.push(node),
            "no" => self.without.push(node),
            _ => return Err(broken(format!("no such renewal: {status}"))),
        }
        Ok(())
    }

    /// How many nodes have reported for certain that they do not hold it.
    fn against(&self) -> usize {
        self.before.len() + self.behind.len() + self.without.len()
    }
}

impl Core {
    /// Extends a lease at a majority.
    ///
    /// # Errors
    /// Too few nodes replied: whether the lease was extended is unknown.
    pub async fn extend(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        let nodes = &self.shared.nodes;
        let majority = nodes.majority();
        let args = vec![
            lease.secret.as_bytes().to_vec(),
            lease.claim.as_bytes().to_vec(),
            lease.token.to_string().into_bytes(),
            micros(ttl.map_or(Duration::ZERO, |ttl| with_drift(ttl.get()))),
        ];
        let mut request = self.request(&scripts::RENEW, &lease.lock.name, args);
        // A repair is bound to the admissions under which the majority reported that the lease is
        // alive.
        request.bound = Some(nodes.admissions());
        let (mut answers, mut tally) = (nodes.query(&request), Tally::default());
        let mut shortened = false;
        while let Some((at, reply)) = answers.next().await {
            tally.take(at, reply)?;
            // A node that has not replied yet may need a repair.
            if !shortened && (tally.extended.len() >= majority || tally.against() >= majority) {
                shortened = true;
                answers.shorten_deadline(answers.sent.elapsed());
            }
        }
        if tally.extended.len() >= majority {
            nodes.clocks.record_number(lease.token.get());
            return self.extended(lease, &request, tally);
        }
        if tally.against() >= majority {
            self.release_remainder(lease, &tally);
            return Ok(RenewOutcome::Gone(tally.before.first().copied()));
        }
        Err(nodes.no_majority(true))
    }

    fn extended(&self, lease: &LeaseKey, renewal: &Request, tally: Tally) -> Result<RenewOutcome, BackendError> {
        let nodes = &self.shared.nodes;
        let mut left: Vec<Duration> = tally.extended.iter().map(|(_, one)| one.left).collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        let (_, one) = &tally.extended[0];
        let lacking: Vec<usize> = tally.behind.iter().chain(&tally.without).copied().collect();
        if !lacking.is_empty() {
            let args = vec![
                lease.secret.as_bytes().to_vec(),
                lease.claim.as_bytes().to_vec(),
                lease.token.to_string().into_bytes(),
                one.ttl.clone(),
                one.call.clone(),
                one.since.clone(),
                one.description.clone(),
            ];
            let mut request = self.request(&scripts::REPAIR, &lease.lock.name, args);
            request.bound.clone_from(&renewal.bound);
            drop(nodes.query_some(&request, |at| lacking.contains(&at)));
        }
        let (owner, ..): (Owner, _, _) = read_description(&one.description)?;
        Ok(RenewOutcome::Renewed(Grant {
            claim: lease.claim,
            kind: lease.kind,
            secret: lease.secret,
            token: lease.token,
            owner,
            // A lease lives for as long as a majority holds it.
            ttl: without_drift(left[nodes.majority() - 1]),
            waited: Duration::ZERO,
            holds: 1,
        }))
    }

    /// Releases a lease that can have no majority any more at the nodes that have just extended it.
    /// Otherwise it would block those nodes, and a late vote could restore it.
    fn release_remainder(&self, lease: &LeaseKey, tally: &Tally) {
        let held: Vec<usize> = tally.extended.iter().map(|(at, _)| *at).collect();
        if held.is_empty() {
            return;
        }
        let (secret, claim) = (lease.secret.as_bytes(), lease.claim.as_bytes());
        let args = super::release::args("H", secret, claim, &[], lease.token.get(), self.shared.longest_ttl);
        let request = self.request(&scripts::RELEASE, &lease.lock.name, args);
        drop(self.shared.nodes.query_some(&request, |at| held.contains(&at)));
    }
}

#[cfg(test)]
mod tests {
    use common::claims::numbered;

    use super::*;
    use crate::backend::redis_server::description::ClaimDescription;
    use crate::backend::redlock::tests::unreachable;
    use crate::name::{FencingToken, LockKey, LockName, Mode, Namespace};

    #[tokio::test]
    async fn a_renewed_lease_lives_as_long_as_a_majority_holds_it_without_the_drift_allowance() {
        let backend = unreachable();
        let claim = numbered(1);
        let lock = LockKey {
            namespace: Namespace::new("n").unwrap(),
            name: LockName::new("a").unwrap(),
        };
        let lease = LeaseKey {
            lock,
            claim: claim.id,
            kind: Mode::Exclusive.into(),
            token: FencingToken::new(7).unwrap(),
            secret: claim.secret,
        };
        let renewal = |seconds| NodeRenewal {
            left: with_drift(Duration::from_secs(seconds)),
            ttl: Vec::new(),
            call: Vec::new(),
            since: Vec::new(),
            description: ClaimDescription::of(&claim),
        };
        let tally = Tally {
            extended: vec![(0, renewal(30)), (1, renewal(10)), (2, renewal(20))],
            ..Tally::default()
        };
        let request = backend.core.request(&scripts::RENEW, &lease.lock.name, Vec::new());
        match backend.core.extended(&lease, &request, tally).unwrap() {
            RenewOutcome::Renewed(grant) => assert_eq!(grant.ttl, Duration::from_secs(20)),
            other @ RenewOutcome::Gone(_) => panic!("{other:?}"),
        }
    }
}
