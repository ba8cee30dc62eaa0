//! Ends: a release, an undo, a force, at every node that can be reached.

use std::sync::Arc;
use std::time::Duration;

use super::answer::{Values, asked, cause, micros};
use super::nodes::{Question, Reply};
use super::{Core, scripts};
use crate::backend::{BackendError, Released, ReleaseTarget, MARKS_KEPT};
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

/// What the nodes found.
#[derive(Debug, Default)]
struct EndTally {
    ended: Vec<Cause>,
    before: Vec<Cause>,
    other: Vec<usize>,
    answered: usize,
    /// The secret behind a token.
    secret: Option<Vec<u8>>,
}

impl EndTally {
    fn take(&mut self, node: usize, word: &str, values: &mut Values) -> Result<(), BackendError> {
        self.answered += 1;
        match word {
            "ended" => self.ended.extend(cause(&values.take::<String>()?)),
            "before" => self.before.extend(cause(&values.take::<String>()?)),
            "other" => self.other.push(node),
            _ => return Ok(()),
        }
        // Only the end of a token names one.
        self.secret = values.take().ok().or(self.secret.take());
        Ok(())
    }

    /// What all of them together found: a lease lived while a majority had it.
    fn found(&self, majority: usize) -> Released {
        let commonest = |causes: &[Cause]| {
            let count = |cause: &Cause| causes.iter().filter(|other| *other == cause).count();
            causes.iter().copied().max_by_key(count)
        };
        match (commonest(&self.ended), commonest(&self.before)) {
            (Some(cause), _) if self.ended.len() >= majority => Released::Ended(cause),
            (_, Some(cause)) => Released::EndedBefore(cause),
            (Some(cause), None) => Released::Ended(cause),
            (None, None) => Released::Nothing,
        }
    }
}

impl Core {
    /// Ends what `who` names at a majority, and at the others as far as they can be reached.
    ///
    /// # Errors
    /// Too few nodes answered.
    ///
    /// # Cancellation safety
    /// Dropped, it is on its way all the same.
    pub async fn end(&self, lock: &LockName, who: ReleaseTarget<'_>) -> Result<Released, BackendError> {
        let voters = &self.shared.voters;
        let longest = asked(self.shared.longest_ttl);
        let args = match who {
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
        };
        let mut question = self.question(&scripts::RELEASE, lock, args);
        question.all = true;
        let (mut answers, mut finds) = (voters.ask(&question), EndTally::default());
        while let Some((at, said)) = answers.next().await {
            if let Reply::Word(word, rest) = said {
                finds.take(at, &word, &mut Values::of(rest))?;
            }
            // Those that found nothing say less than those that did.
            let enough = finds.ended.len() >= voters.majority() || finds.before.len() >= voters.majority();
            if enough {
                break;
            }
            if finds.answered >= voters.majority() {
                answers.shorten_deadline(answers.sent.elapsed());
            }
        }
        if finds.answered < voters.majority() {
            return Err(voters.trouble(true));
        }
        let found = finds.found(voters.majority());
        match (who, found, &finds.secret) {
            (ReleaseTarget::Hold(lease), Released::Ended(_), _) => {
                // The lease was real: where its number lags behind, its attempts end, also at nodes that have
                // not answered yet.
                let question = self.end_of_attempts(lock, lease.secret.as_bytes());
                drop(voters.ask_some(&question, |at| finds.other.contains(&at)));
                let voters = Arc::clone(voters);
                answers.release(move |at, said| {
                    if matches!(said, Reply::Word(word, _) if word == "other") {
                        drop(voters.ask_some(&question, |other| other == at));
                    }
                });
            }
            (ReleaseTarget::Forced(_), _, Some(secret)) if finds.ended.len() < voters.majority() => {
                self.entomb(lock, secret).await?;
            }
            // Its attempts end as well where its number lags behind; nobody waits for that.
            (ReleaseTarget::Forced(_), _, Some(secret)) => drop(voters.ask(&self.end_of_attempts(lock, secret))),
            _ => {}
        }
        Ok(found)
    }

    /// Ends all attempts of a secret, whatever their numbers.
    fn end_of_attempts(&self, lock: &LockName, secret: &[u8]) -> Question {
        let longest = asked(self.shared.longest_ttl);
        let args = args("A", secret, &[], PAST_ALL_ROUNDS, 0, longest);
        let mut question = self.question(&scripts::RELEASE, lock, args);
        question.all = true;
        question
    }

    /// Makes sure that a lease that was forced is over at a majority, also where its vote is still on its
    /// way: it would bring the lease back.
    async fn entomb(&self, lock: &LockName, secret: &[u8]) -> Result<(), BackendError> {
        let voters = &self.shared.voters;
        let (mut answers, mut answered) = (voters.ask(&self.end_of_attempts(lock, secret)), 0);
        while answered < voters.majority() {
            match answers.next().await {
                Some((_, Reply::Word(..))) => answered += 1,
                Some(_) => {}
                None => return Err(voters.trouble(true)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_a_majority_had_is_ended_now_and_else_before() {
        let finds = |ended: usize, before: &[Cause]| EndTally {
            ended: vec![Cause::Released; ended],
            before: before.to_vec(),
            ..EndTally::default()
        };
        assert_eq!(finds(2, &[Cause::Expired]).found(2), Released::Ended(Cause::Released));
        assert_eq!(
            finds(1, &[Cause::Expired; 2]).found(2),
            Released::EndedBefore(Cause::Expired)
        );
        assert_eq!(finds(1, &[]).found(2), Released::Ended(Cause::Released));
        assert_eq!(finds(0, &[]).found(2), Released::Nothing);
    }
}
