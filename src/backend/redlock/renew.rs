//! Renewal: a majority lengthens what it has; then the others are repaired, and count from the next
//! renewal on.

use std::time::Duration;

use super::answer::{Values, asked, cause, granted, micros, shown};
use super::nodes::{Question, Reply};
use super::{Core, scripts};
use crate::backend::redis_server::failure::broken;
use crate::backend::{BackendError, Grant, RenewOutcome};
use crate::claim::Cause;
use crate::name::{LeaseKey, Owner, Ttl};

/// What a node that has lengthened a lease says of it.
struct NodeRenewal {
    left: Duration,
    ttl: Vec<u8>,
    call: Vec<u8>,
    since: Vec<u8>,
    shown: Vec<u8>,
}

/// What the nodes said.
#[derive(Default)]
struct Tally {
    lengthened: Vec<(usize, NodeRenewal)>,
    before: Vec<Cause>,
    behind: Vec<usize>,
    without: Vec<usize>,
}

impl Tally {
    fn take(&mut self, node: usize, said: Reply) -> Result<(), BackendError> {
        let (word, rest) = match said {
            Reply::Word(word, rest) => (word, rest),
            // Who may have forgotten a lease cannot say that it is over.
            Reply::Quarantined | Reply::Unreadable(_) | Reply::Nothing => return Ok(()),
        };
        let mut values = Values::of(rest);
        match word.as_str() {
            "ok" => {
                let one = NodeRenewal {
                    left: Duration::from_micros(values.take()?),
                    ttl: values.take()?,
                    call: values.take()?,
                    since: values.take()?,
                    shown: values.take()?,
                };
                self.lengthened.push((node, one));
            }
            "before" => self.before.extend(cause(&values.take::<String>()?)),
            "behind" => self.behind.push(node),
            "no" => self.without.push(node),
            _ => return Err(broken(format!("no such renewal: {word}"))),
        }
        Ok(())
    }

    /// How many have said for good that they do not hold it.
    fn against(&self) -> usize {
        self.before.len() + self.behind.len() + self.without.len()
    }
}

impl Core {
    /// Lets a lease live on at a majority.
    ///
    /// # Errors
    /// Too few nodes answered: whether the lease lives on is not known.
    pub async fn lengthen(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        let voters = &self.shared.voters;
        let majority = voters.majority();
        let args = vec![
            lease.secret.as_bytes().to_vec(),
            lease.claim.as_bytes().to_vec(),
            lease.token.to_string().into_bytes(),
            micros(ttl.map_or(Duration::ZERO, |ttl| asked(ttl.get()))),
        ];
        let mut question = self.question(&scripts::RENEW, &lease.lock.name, args);
        // A repair is bound to the admissions under which the majority has said that the lease lives.
        question.bound = Some(voters.admissions());
        let (mut answers, mut tally) = (voters.ask(&question), Tally::default());
        let mut hurried = false;
        while let Some((at, said)) = answers.next().await {
            tally.take(at, said)?;
            // Who has not answered yet may have to be repaired.
            if !hurried && (tally.lengthened.len() >= majority || tally.against() >= majority) {
                hurried = true;
                answers.shorten_deadline(answers.sent.elapsed());
            }
        }
        if tally.lengthened.len() >= majority {
            voters.clocks.handed_out(lease.token.get());
            return self.lengthened(lease, &question, tally);
        }
        if tally.against() >= majority {
            self.forsake(lease, &tally);
            return Ok(RenewOutcome::Gone(tally.before.first().copied()));
        }
        Err(voters.trouble(true))
    }

    fn lengthened(&self, lease: &LeaseKey, asked_for: &Question, tally: Tally) -> Result<RenewOutcome, BackendError> {
        let voters = &self.shared.voters;
        let mut left: Vec<Duration> = tally.lengthened.iter().map(|(_, one)| one.left).collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        let (_, one) = &tally.lengthened[0];
        let lacking: Vec<usize> = tally.behind.iter().chain(&tally.without).copied().collect();
        if !lacking.is_empty() {
            let args = vec![
                lease.secret.as_bytes().to_vec(),
                lease.claim.as_bytes().to_vec(),
                lease.token.to_string().into_bytes(),
                one.ttl.clone(),
                one.call.clone(),
                one.since.clone(),
                one.shown.clone(),
            ];
            let mut question = self.question(&scripts::REPAIR, &lease.lock.name, args);
            question.bound.clone_from(&asked_for.bound);
            drop(voters.ask_some(&question, |at| lacking.contains(&at)));
        }
        let (owner, ..): (Owner, _, _) = shown(&one.shown)?;
        Ok(RenewOutcome::Renewed(Grant {
            claim: lease.claim,
            kind: lease.kind,
            secret: lease.secret,
            token: lease.token,
            owner,
            // A lease lives for as long as a majority holds it.
            ttl: granted(left[voters.majority() - 1]),
            waited: Duration::ZERO,
            holds: 1,
        }))
    }

    /// A lease that no majority can have any more is let go where it was just lengthened: nobody else
    /// could have the lock there, and a vote that comes late must not bring it back.
    fn forsake(&self, lease: &LeaseKey, tally: &Tally) {
        let held: Vec<usize> = tally.lengthened.iter().map(|(at, _)| *at).collect();
        if held.is_empty() {
            return;
        }
        let (secret, claim) = (lease.secret.as_bytes(), lease.claim.as_bytes());
        let args = super::release::args("H", secret, claim, &[], lease.token.get(), self.shared.longest_ttl);
        let question = self.question(&scripts::RELEASE, &lease.lock.name, args);
        drop(self.shared.voters.ask_some(&question, |at| held.contains(&at)));
    }
}
