//! Inspection: the holder according to a majority, this replica's waiters, and the locks in use.

use std::time::Duration;

use futures::future::join_all;

use super::answer::{LastEnd, NodeHolder, micros};
use super::attempt::holder;
use super::names::Names;
use super::nodes::Reply;
use super::{Core, scripts};
use crate::backend::redis_server::failure::is_of_record;
use crate::backend::{BackendError, InspectLimit, LockPage, LockSummary, PageRequest};
use crate::claim::{Holder, Queue};
use crate::name::{CallId, LockName};

/// How many names one round of a list reads.
const NAMES_PER_ROUND: usize = 500;
/// How many rounds a page takes at most before it returns a partial page.
const ROUNDS: usize = 8;

/// The state of a lock according to a majority.
#[derive(Debug, Default)]
pub struct MajorityView {
    /// The holder and its call.
    pub holder: Option<(Holder, CallId)>,
    /// How the last lease ended, if a node that replied knows.
    pub last: Option<LastEnd>,
    /// When a node may be free, even if no majority holds.
    pub frees_in: Option<Duration>,
}

/// The replies of the nodes so far.
#[derive(Default)]
struct Replies {
    holders: Vec<NodeHolder>,
    last: Option<LastEnd>,
    answered: usize,
    /// The nodes that cannot read the lock's record, and the error of the last one.
    unreadable: usize,
    record_error: Option<BackendError>,
}

impl Replies {
    fn take(&mut self, reply: Reply) -> Result<(), BackendError> {
        match reply {
            Reply::Status(status, mut values) => {
                if status == "held" {
                    self.holders.push(NodeHolder::read(&mut values)?);
                }
                let end = LastEnd::read(&mut values)?;
                // The end of the later lease.
                self.last = end.into_iter().chain(self.last.take()).max_by_key(|end| end.token);
                self.answered += 1;
            }
            // A node that may have lost a lease cannot report that there is none.
            Reply::Quarantined | Reply::Nothing => {}
            Reply::Unreadable(error) => {
                self.unreadable += 1;
                self.record_error = Some(error);
            }
        }
        Ok(())
    }
}

impl Core {
    /// Reads the holder. `watching`: for how long changes are to be published.
    ///
    /// # Errors
    /// Too few nodes replied to decide.
    pub async fn inspect(&self, lock: &LockName, watching: Duration) -> Result<MajorityView, BackendError> {
        let nodes = &self.shared.nodes;
        let majority = nodes.majority();
        let mut request = self.request(&scripts::INSPECT, lock, vec![micros(watching)]);
        // Another replica may have admitted a node since this one found it in quarantine.
        request.all = true;
        let (mut replies, mut answers) = (Replies::default(), nodes.query(&request));
        while let Some((_, reply)) = answers.next().await {
            replies.take(reply)?;
            let agreeing = largest_agreement(&replies.holders);
            // Decided once the nodes that have not replied can make no majority.
            let cannot_agree = replies.answered >= majority && agreeing + answers.outstanding() < majority;
            if agreeing >= majority || cannot_agree {
                break;
            }
        }
        let Replies {
            holders,
            last,
            answered,
            unreadable,
            record_error,
        } = replies;
        let missing = nodes.all.len() - answered;
        let agreeing = largest_agreement(&holders);
        if answered < majority || (agreeing < majority && agreeing + missing >= majority && agreeing > 0) {
            // If enough nodes reply, the error is that of the record.
            let record_error = record_error.filter(|_| answered + unreadable >= majority);
            return Err(record_error.unwrap_or_else(|| nodes.no_majority(true)));
        }
        let found = holder(&holders, majority)?;
        let call = found.as_ref().and_then(|found| {
            holders
                .iter()
                .find(|one| one.claim == found.claim && one.number == found.token.get())
        });
        let call = call.map(|one| one.call);
        Ok(MajorityView {
            holder: found.zip(call),
            last,
            frees_in: holders.iter().map(|one| one.left).min(),
        })
    }

    /// The queue: the holder, and this replica's waiters.
    ///
    /// # Errors
    /// Too few nodes replied.
    pub async fn queue(&self, lock: &LockName, limit: InspectLimit) -> Result<Queue, BackendError> {
        let view = self.inspect(lock, Duration::ZERO).await?;
        Ok(self.with_waiters(lock, limit, view))
    }

    /// The queue with the holder of `view`.
    pub fn with_waiters(&self, lock: &LockName, limit: InspectLimit, view: MajorityView) -> Queue {
        let mut queue = Queue::default();
        queue.holders.extend(view.holder.map(|(holder, _)| holder));
        queue.holder_count = queue.holders.len();
        queue.holders.truncate(limit.holders);
        self.waiting.add_to(lock, limit.waiters, &mut queue);
        queue
    }

    /// A page of the locks in use.
    ///
    /// # Errors
    /// Too few nodes replied.
    pub async fn list(&self, prefix: &str, page: &PageRequest) -> Result<LockPage, BackendError> {
        let mut result = LockPage::default();
        let mut after = page.after.clone().map(String::into_bytes);
        for _ in 0..ROUNDS {
            let Names { names, complete_to, .. } = self.names(prefix, after.as_deref(), NAMES_PER_ROUND).await?;
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
                if result.locks.len() == page.size {
                    result.next = after.map(name_at_or_before);
                    return Ok(result);
                }
                after = Some(name.as_str().as_bytes().to_vec());
                result.locks.push(LockSummary {
                    lock: name,
                    holders: queue.holder_count,
                    waiters: queue.waiter_count,
                    first: queue.holders.into_iter().next(),
                });
            }
            match complete_to {
                Some(complete_to) => after = Some(complete_to),
                None => return Ok(result),
            }
        }
        result.next = after.map(name_at_or_before);
        Ok(result)
    }
}

/// The last text up to these bytes, which are no UTF-8 if another client of the nodes has added them to the names.
fn name_at_or_before(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| {
        let valid = error.utf8_error().valid_up_to();
        String::from_utf8_lossy(&error.as_bytes()[..valid]).into_owned()
    })
}

/// The size of the largest group of nodes with the same holder.
fn largest_agreement(holders: &[NodeHolder]) -> usize {
    let agreeing = holders
        .iter()
        .map(|one| holders.iter().filter(|other| other.is_same(one)).count());
    agreeing.max().unwrap_or(0)
}
