//! One attempt at a lock: votes of a majority, one number for all of them, or nothing left behind.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::answer::{NodeHolder, Values, asked, micros};
use super::clock::Clocks;
use super::nodes::{Question, Round, Reply};
use super::{Core, scripts};
use crate::backend::redis_server::failure::broken;
use crate::backend::redis_server::description::ClaimDescription;
use crate::backend::{BackendError, Grant, NewClaim, WaitPolicy};
use crate::claim::Holder;
use crate::name::{FencingToken, LockName};

/// How long the others have, at the least, when a majority has voted for different numbers.
const AGREEING: Duration = Duration::from_millis(1);

/// What came of an attempt.
pub enum AttemptOutcome {
    /// A majority holds.
    Held(Grant),
    /// Somebody is in the way.
    Busy(Conflict),
    /// The call has left.
    Left,
}

/// Who was in the way of an attempt.
#[derive(Debug, Default)]
pub struct Conflict {
    /// The holder, if a majority of nodes named one; otherwise attempts were in each other's way.
    pub holder: Option<Holder>,
    /// When the first node may be free.
    pub frees_in: Option<Duration>,
}

/// The answers of an attempt.
#[derive(Default)]
struct Votes {
    /// Those that count.
    given: Vec<(usize, u64)>,
    /// Those whose numbers are too far ahead to count.
    too_far: Vec<(usize, u64)>,
    busy: Vec<NodeHolder>,
    quarantined: usize,
    left: bool,
}

impl Votes {
    /// A number that so many nodes agree on.
    fn agreed(&self, majority: usize) -> Option<u64> {
        let count = |number| self.given.iter().filter(|(_, other)| *other == number).count();
        self.given
            .iter()
            .map(|(_, number)| *number)
            .find(|number| count(*number) >= majority)
    }

    /// Whether a node holds for this call.
    fn are_for(&self, claim: &NewClaim) -> bool {
        !self.given.is_empty() || !self.too_far.is_empty() || self.busy.iter().any(|one| one.call == claim.call)
    }

    /// One more vote, which may show of others that they count, or that they do not.
    fn give(&mut self, node: usize, number: u64, clocks: &Clocks) {
        self.given.append(&mut self.too_far);
        self.given.push((node, number));
        let numbers: Vec<u64> = self.given.iter().map(|(_, number)| *number).collect();
        let bound = clocks.bound(&numbers);
        self.too_far = self.given.extract_if(.., |(_, number)| *number > bound).collect();
    }

    fn take(&mut self, node: usize, said: Reply, clocks: &Clocks) -> Result<(), BackendError> {
        match said {
            Reply::Word(word, rest) => {
                let mut values = Values::of(rest);
                match word.as_str() {
                    "ok" => self.give(node, values.take()?, clocks),
                    "busy" => self.busy.push(NodeHolder::read(&mut values)?),
                    "left" => self.left = true,
                    _ => return Err(broken(format!("no such vote: {word}"))),
                }
            }
            Reply::Quarantined => self.quarantined += 1,
            Reply::Unreadable(_) | Reply::Nothing => {}
        }
        Ok(())
    }
}

impl Core {
    /// Tries once to take a lock for a call. Rounds of one call rise. `awaited`: others wait for what it may
    /// get, so its end is to be published.
    ///
    /// # Errors
    /// Too few nodes answered; what they may hold of the attempt is being taken back.
    ///
    /// # Cancellation safety
    /// Dropped, it may leave votes behind: the call must leave.
    pub async fn attempt(
        &self,
        lock: &LockName,
        claim: &NewClaim,
        round: u32,
        awaited: bool,
    ) -> Result<AttemptOutcome, BackendError> {
        let voters = &self.shared.voters;
        voters.may_vote()?;
        let majority = voters.majority();
        let question = self.question(&scripts::LOCK, lock, self.ballot(claim, round, awaited));
        let mut answers = voters.ask(&question);
        let sent = answers.sent;
        let mut votes = gather(&mut answers, majority, &voters.clocks).await?;
        voters.note_too_far(&votes.given, &votes.too_far);
        let answered = votes.given.len() + votes.busy.len();
        let clean = answered + votes.quarantined == voters.all.len() && !votes.are_for(claim);
        let last = votes.given.iter().map(|(_, number)| *number).max();
        // Fewer make no token, nor can it be told whether they count.
        if let Some(last) = last.filter(|_| votes.given.len() >= majority) {
            voters.clocks.handed_out(last);
        }
        let agreed = votes.agreed(majority);
        let token = match (agreed, last) {
            (Some(token), _) => Some(token),
            (None, Some(token)) if votes.given.len() >= majority && !votes.left => {
                self.raise(lock, claim, round, token, &votes).await.then_some(token)
            }
            _ => None,
        };
        drop(answers);
        match token {
            Some(token) if !votes.left && sent.elapsed() < claim.ttl.get() => {
                if agreed.is_some() {
                    self.level(lock, claim, round, token, &votes);
                }
                let token = FencingToken::new(token).map_err(broken)?;
                Ok(AttemptOutcome::Held(grant(claim, token, sent)))
            }
            _ => {
                if !clean {
                    self.cancel(lock, claim, round).await;
                }
                // What an earlier attempt of this call was given unheard is over now, and in nobody's way.
                votes.busy.retain(|one| one.call != claim.call);
                self.failed(&votes, answered)
            }
        }
    }

    /// The arguments of `lock.lua`.
    fn ballot(&self, claim: &NewClaim, round: u32, awaited: bool) -> Vec<Vec<u8>> {
        let number = |n: u64| n.to_string().into_bytes();
        vec![
            claim.secret.as_bytes().to_vec(),
            number(round.into()),
            claim.id.as_bytes().to_vec(),
            claim.call.as_bytes().to_vec(),
            micros(asked(claim.ttl.get())),
            number(self.shared.voters.clocks.hint()),
            ClaimDescription::of(claim),
            number(u64::from(claim.wait_policy == WaitPolicy::Wait)),
            number(claim.limits.finished.into()),
            number(awaited.into()),
        ]
    }

    /// Lifts the numbers of all votes to the largest; whether a majority has it.
    async fn raise(&self, lock: &LockName, claim: &NewClaim, round: u32, token: u64, votes: &Votes) -> bool {
        let question = self.raising(lock, claim, round, token);
        let mut have: Vec<usize> = votes
            .given
            .iter()
            .filter(|(_, other)| *other == token)
            .map(|(at, _)| *at)
            .collect();
        let lacks = have.clone();
        let voters = &self.shared.voters;
        let mut answers = voters.ask_some(&question, |at| !lacks.contains(&at));
        while have.len() < voters.majority() {
            match answers.next().await {
                Some((at, Reply::Word(word, _))) if word == "ok" => have.push(at),
                Some(_) => {}
                None => return false,
            }
        }
        true
    }

    /// The question of a raise.
    fn raising(&self, lock: &LockName, claim: &NewClaim, round: u32, token: u64) -> Question {
        let args = vec![
            claim.secret.as_bytes().to_vec(),
            round.to_string().into_bytes(),
            token.to_string().into_bytes(),
        ];
        self.question(&scripts::RAISE, lock, args)
    }

    /// Lifts what lags behind the token, so that those nodes count from the next renewal on.
    fn level(&self, lock: &LockName, claim: &NewClaim, round: u32, token: u64, votes: &Votes) {
        let behind: Vec<usize> = votes
            .given
            .iter()
            .filter(|(_, number)| *number < token)
            .map(|(at, _)| *at)
            .collect();
        if behind.is_empty() {
            return;
        }
        let question = self.raising(lock, claim, round, token);
        // Nobody waits for it: the rest of a dropped round arrives by itself.
        drop(self.shared.voters.ask_some(&question, |at| behind.contains(&at)));
    }

    /// Takes an attempt back, at all nodes: also at those that did not answer.
    async fn cancel(&self, lock: &LockName, claim: &NewClaim, round: u32) {
        let args = super::release::args(
            "A",
            claim.secret.as_bytes(),
            &[],
            round.to_string().as_bytes(),
            0,
            asked(claim.ttl.get()),
        );
        let mut question = self.question(&scripts::RELEASE, lock, args);
        question.all = true;
        let voters = &self.shared.voters;
        let (mut answers, mut answered) = (voters.ask(&question), 0);
        while answered < voters.majority() {
            match answers.next().await {
                Some((_, Reply::Word(..))) => answered += 1,
                Some(_) => {}
                None => return,
            }
        }
    }

    fn failed(&self, votes: &Votes, answered: usize) -> Result<AttemptOutcome, BackendError> {
        if votes.left {
            return Ok(AttemptOutcome::Left);
        }
        let voters = &self.shared.voters;
        if answered < voters.majority() {
            return Err(voters.trouble_with(&votes.too_far));
        }
        Ok(AttemptOutcome::Busy(Conflict {
            holder: holder(&votes.busy, voters.majority())?,
            frees_in: votes.busy.iter().map(|one| one.left).min(),
        }))
    }

    /// A step of this lock for all nodes that vote.
    pub fn question(
        &self,
        script: &'static crate::backend::redis_server::script::Script,
        lock: &LockName,
        args: Vec<Vec<u8>>,
    ) -> Question {
        Question {
            script,
            base: Arc::clone(&self.base),
            lock: lock.as_str().into(),
            args: Arc::new(args),
            all: false,
            bound: None,
        }
    }
}

/// The holder that so many nodes name.
///
/// # Errors
/// Broken where what it shows cannot be read.
pub fn holder(placed: &[NodeHolder], majority: usize) -> Result<Option<Holder>, BackendError> {
    let same = |one: &NodeHolder| placed.iter().filter(|other| other.is_as(one)).count();
    let Some(one) = placed.iter().find(|one| same(one) >= majority) else {
        return Ok(None);
    };
    let mut left: Vec<_> = placed
        .iter()
        .filter(|other| other.is_as(one))
        .map(|other| other.left)
        .collect();
    // It holds for as long as a majority says so.
    left.sort_unstable_by(|a, b| b.cmp(a));
    one.holder(left[majority - 1]).map(Some)
}

async fn gather(answers: &mut Round, majority: usize, clocks: &Clocks) -> Result<Votes, BackendError> {
    let mut votes = Votes::default();
    let mut hurried = false;
    while let Some((at, said)) = answers.next().await {
        votes.take(at, said, clocks)?;
        if votes.left || votes.agreed(majority).is_some() {
            break;
        }
        // It is decided, or the rest may only show a better way.
        let enough = votes.given.len() >= majority || votes.busy.len() >= majority;
        if enough && !hurried {
            hurried = true;
            answers.shorten_deadline(answers.sent.elapsed().max(AGREEING));
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
