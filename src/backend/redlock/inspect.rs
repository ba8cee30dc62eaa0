//! Looking: who holds as a majority says, who waits here, which locks are in use.

use std::time::Duration;

use futures::future::join_all;

use super::answer::{LastEnd, NodeHolder, Values, micros};
use super::attempt::holder;
use super::names::Names;
use super::nodes::Reply;
use super::{Core, scripts};
use crate::backend::redis_server::failure::is_of_record;
use crate::backend::{BackendError, LockPage, InspectLimit, PageRequest, LockSummary};
use crate::claim::{Holder, Queue};
use crate::name::{CallId, LockName};

/// How many names one round looks at.
const READ: usize = 500;
/// How many rounds a page takes at most before it says where to go on.
const ROUNDS: usize = 8;

/// What a majority says of a lock.
#[derive(Debug, Default)]
pub struct MajorityView {
    /// Who holds.
    pub holder: Option<(Holder, CallId)>,
    /// How the last lease ended, as far as it was seen.
    pub last: Option<LastEnd>,
    /// When a node may be free, though nobody may hold.
    pub frees_in: Option<Duration>,
}

impl Core {
    /// Who holds. `watching`: for how long changes are to be published.
    ///
    /// # Errors
    /// Too few nodes answered to say.
    pub async fn inspect(&self, lock: &LockName, watching: Duration) -> Result<MajorityView, BackendError> {
        let voters = &self.shared.voters;
        let majority = voters.majority();
        let mut question = self.question(&scripts::LOOK, lock, vec![micros(watching)]);
        // Somebody may have admitted a node since this replica saw it in quarantine.
        question.all = true;
        let (mut placed, mut last, mut answered) = (Vec::<NodeHolder>::new(), None::<LastEnd>, 0);
        let (mut unreadable, mut why) = (0, None);
        let mut answers = voters.ask(&question);
        while let Some((_, said)) = answers.next().await {
            match said {
                Reply::Word(word, rest) => {
                    let mut values = Values::of(rest);
                    if word == "held" {
                        placed.push(NodeHolder::read(&mut values)?);
                    }
                    let end = LastEnd::read(&mut values)?;
                    last = last.max_by_token(end);
                    answered += 1;
                }
                // Who may have forgotten a lease cannot say that there is none.
                Reply::Quarantined | Reply::Nothing => {}
                Reply::Unreadable(error) => {
                    unreadable += 1;
                    why = Some(error);
                }
            }
            // Decided once those that are still to answer can make no majority.
            if answered >= majority && most_alike(&placed) + answers.outstanding() < majority {
                break;
            }
            if most_alike(&placed) >= majority {
                break;
            }
        }
        let silent = voters.all.len() - answered;
        let alike = most_alike(&placed);
        if answered < majority || (alike < majority && alike + silent >= majority && alike > 0) {
            // Where the nodes answer, the record is at fault.
            let at_fault = why.filter(|_| answered + unreadable >= majority);
            return Err(at_fault.unwrap_or_else(|| voters.trouble(true)));
        }
        let found = holder(&placed, majority)?;
        let call = found.as_ref().and_then(|found| {
            placed
                .iter()
                .find(|one| one.claim == found.claim && one.number == found.token.get())
        });
        let call = call.map(|one| one.call);
        Ok(MajorityView {
            holder: found.zip(call),
            last,
            frees_in: placed.iter().map(|one| one.left).min(),
        })
    }

    /// The queue: who holds, and who waits here.
    ///
    /// # Errors
    /// Too few nodes answered.
    pub async fn queue(&self, lock: &LockName, most: InspectLimit) -> Result<Queue, BackendError> {
        let look = self.inspect(lock, Duration::ZERO).await?;
        Ok(self.with_waiters(lock, most, look))
    }

    /// The same of a look.
    pub fn with_waiters(&self, lock: &LockName, most: InspectLimit, look: MajorityView) -> Queue {
        let mut queue = Queue::default();
        queue.holders.extend(look.holder.map(|(holder, _)| holder));
        queue.holder_count = queue.holders.len();
        queue.holders.truncate(most.holders);
        self.waiting.show(lock, most.waiters, &mut queue);
        queue
    }

    /// A page of the locks in use.
    ///
    /// # Errors
    /// Too few nodes answered.
    pub async fn list(&self, prefix: &str, page: &PageRequest) -> Result<LockPage, BackendError> {
        let mut listing = LockPage::default();
        let mut after = page.after.clone();
        for _ in 0..ROUNDS {
            let Names { names, seen_to, .. } = self.names(prefix, after.as_deref(), READ).await?;
            let queues = join_all(
                names
                    .iter()
                    .map(|name| self.queue(name, InspectLimit { holders: 1, waiters: 0 })),
            )
            .await;
            for (name, queue) in names.into_iter().zip(queues) {
                let queue = match queue {
                    Err(error) if is_of_record(&error) => {
                        self.unreadable.note(name.as_str(), &error);
                        continue;
                    }
                    queue => queue?,
                };
                if queue.holder_count + queue.waiter_count == 0 {
                    continue;
                }
                if listing.locks.len() == page.size {
                    listing.next = after;
                    return Ok(listing);
                }
                after = Some(name.as_str().to_owned());
                listing.locks.push(LockSummary {
                    lock: name,
                    holders: queue.holder_count,
                    waiters: queue.waiter_count,
                    first: queue.holders.into_iter().next(),
                });
            }
            match seen_to {
                Some(seen_to) => after = Some(seen_to),
                None => return Ok(listing),
            }
        }
        listing.next = after;
        Ok(listing)
    }
}

/// How many nodes agree at most.
fn most_alike(placed: &[NodeHolder]) -> usize {
    let alike = placed
        .iter()
        .map(|one| placed.iter().filter(|other| other.is_as(one)).count());
    alike.max().unwrap_or(0)
}

trait Later {
    fn max_by_token(self, other: Self) -> Self;
}

impl Later for Option<LastEnd> {
    /// The end of the later lease.
    fn max_by_token(self, other: Self) -> Self {
        match (self, other) {
            (Some(one), Some(other)) => Some(if other.token > one.token { other } else { one }),
            (one, other) => one.or(other),
        }
    }
}
