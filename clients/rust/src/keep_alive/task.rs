//! The task that keeps the leases of one stream.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, OptionFuture};
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, watch};

use super::leases::{DueRenewal, Leases};
use super::stream::BeatStream;
use crate::backoff::Backoff;
use crate::calls::{Calls, time};
use crate::clock;
use crate::connections::CallChannel;
use crate::error::{Error, Failed, Retryable};
use crate::lease_term::{LeaseState, LeaseTerm};
use crate::proto::KeepAliveRequest;
use crate::proto::keep_alive_response::Event;
use crate::reason;

/// The pauses before a stream that broke is opened again.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(10));
/// The pause after a server that refuses the stream, for example because it does not offer it.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// How many changes are applied at once, before what is due is looked for.
const CHANGES_AT_ONCE: usize = 256;

/// A change of the leases to keep.
#[derive(Debug)]
pub enum Change {
    /// Keep the lease of a guard.
    Add {
        /// Its id.
        lease_id: Arc<str>,
        /// The number of the guard.
        guard: u64,
        /// Its term so far.
        term: LeaseTerm,
        /// What the guard shows.
        state: Arc<watch::Sender<LeaseState>>,
    },
    /// Keep it no more.
    Remove {
        /// Its id.
        lease_id: Arc<str>,
        /// The number of the guard.
        guard: u64,
    },
}

/// See the module.
pub struct KeepAliveTask {
    calls: Arc<Calls>,
    changes: mpsc::UnboundedReceiver<Change>,
    leases: Leases,
    link: Link,
    /// The renewals by calls.
    renewals: FuturesUnordered<BoxFuture<'static, Renewal>>,
    backoff: Backoff,
    /// When a stream may be opened again.
    next_open: Duration,
}

/// The connection of the task to a server.
enum Link {
    Closed,
    Opening(CallChannel, BoxFuture<'static, Result<Box<BeatStream>, Failed>>),
    Open(Box<BeatStream>),
}

/// A renewal by a call that was sent.
struct Renewal {
    lease_id: Arc<str>,
    sent: Duration,
    result: Result<Duration, Failed>,
}

/// What happened.
enum Next {
    /// So many changes came. None come any more if it is zero.
    Changes(usize),
    Opened(Result<Box<BeatStream>, Failed>),
    Event(Result<Event, Failed>),
    Renewal(Renewal),
    Time,
}

impl KeepAliveTask {
    /// A task for leases that `changes` names.
    pub fn new(calls: Arc<Calls>, changes: mpsc::UnboundedReceiver<Change>) -> Self {
        Self {
            calls,
            changes,
            leases: Leases::default(),
            link: Link::Closed,
            renewals: FuturesUnordered::new(),
            backoff: BACKOFF,
            next_open: Duration::ZERO,
        }
    }

    /// Keeps the leases until no guard can add another one.
    pub async fn run(mut self) {
        let mut changes = Vec::new();
        loop {
            self.start_due();
            let wake = self.wake();
            // The changes come last: as many as a busy client makes must not delay the answers.
            let next = tokio::select! {
                biased;
                next = self.link.next(&self.calls) => next,
                Some(renewal) = self.renewals.next() => Next::Renewal(renewal),
                count = self.changes.recv_many(&mut changes, CHANGES_AT_ONCE) => Next::Changes(count),
                Some(()) = OptionFuture::from(wake.map(clock::sleep_until)) => Next::Time,
            };
            match next {
                Next::Changes(0) => return,
                Next::Changes(_) => changes.drain(..).for_each(|change| self.change(change)),
                Next::Opened(Ok(stream)) => self.link = Link::Open(stream),
                Next::Opened(Err(failed)) | Next::Event(Err(failed)) => self.link_failed(failed.retry),
                Next::Event(Ok(event)) => self.event(event),
                Next::Renewal(renewal) => self.renewal(renewal),
                Next::Time => {}
            }
        }
    }

    /// Starts what is due now.
    fn start_due(&mut self) {
        let now = clock::since_boot();
        self.leases.expire(now);
        if self.leases.is_empty() {
            self.link = Link::Closed;
            self.leases.closed();
            return;
        }
        // A server that has not answered the beat by now hangs.
        if self.leases.answer_by().is_some_and(|limit| limit <= now) {
            if let Some(channel) = self.link.channel() {
                self.calls
                    .replace_channel(channel, &channel.no_response(self.leases.unanswered_for(now)));
            }
            self.link_failed(Retryable::Elsewhere);
        }
        if self.leases.beat_due().is_some_and(|due| due <= now) {
            match &self.link {
                Link::Open(stream) => stream.send(beat(&mut self.leases, now)),
                Link::Closed if self.next_open <= now => self.open(now),
                Link::Closed | Link::Opening(..) => {}
            }
        }
        for DueRenewal { lease_id, limit } in self.leases.begin_calls(now) {
            let calls = Arc::clone(&self.calls);
            self.renewals.push(Box::pin(async move {
                let sent = clock::since_boot();
                let renewed = calls.renew_once(limit, &lease_id).await;
                Renewal {
                    lease_id,
                    sent,
                    result: renewed.map(|lease| time(lease.ttl)),
                }
            }));
        }
    }

    /// When [`Self::start_due`] has something to do, if nothing else happens.
    fn wake(&self) -> Option<Duration> {
        let beat = match self.link {
            Link::Closed => self.leases.beat_due().map(|due| due.max(self.next_open)),
            Link::Opening(..) | Link::Open(_) => self.leases.beat_due().or(self.leases.answer_by()),
        };
        let due = [beat, self.leases.call_due(), self.leases.next_end()];
        due.into_iter().flatten().min()
    }

    fn open(&mut self, now: Duration) {
        let channel = self.calls.connections.channel();
        let first = beat(&mut self.leases, now);
        let (calls, used) = (Arc::clone(&self.calls), channel.clone());
        let opened = async move { BeatStream::open(&calls, used, first).await.map(Box::new) };
        self.link = Link::Opening(channel, Box::pin(opened));
    }

    fn link_failed(&mut self, retry: Retryable) {
        self.link = Link::Closed;
        let worked = self.leases.stream_ended();
        let pause = match retry {
            Retryable::Never if !worked => REFUSED_PAUSE,
            _ => self.backoff.pause(),
        };
        self.next_open = clock::since_boot() + pause;
    }

    /// Whether calls use another channel than the stream.
    fn calls_have_moved(&self) -> bool {
        self.link
            .channel()
            .is_some_and(|channel| !self.calls.connections.uses(channel))
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Add {
                lease_id,
                guard,
                term,
                state,
            } => self.leases.add(lease_id, guard, term, state, clock::since_boot()),
            Change::Remove { lease_id, guard } => self.leases.remove(&lease_id, guard),
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Ask(_) => self.leases.asked(),
            Event::Kept(kept) => {
                let ttls: Vec<Duration> = kept.ttls.into_iter().map(|ttl| time(Some(ttl))).collect();
                let renews_none = ttls.iter().all(Duration::is_zero);
                self.leases.kept(kept.beat, ttls, clock::since_boot());
                if renews_none && self.calls_have_moved() {
                    // The server's store is away, and another server answers the calls.
                    self.link_failed(Retryable::Elsewhere);
                } else {
                    self.backoff.reset();
                }
            }
            // A lease that is lost for another reason ends with its term.
            Event::Lost(lost) if lost.reason == reason::LEASE_LOST => {
                self.leases.lost(&lost.lease_id, &lost.cause, clock::since_boot());
            }
            Event::Lost(_) => {}
        }
    }

    fn renewal(&mut self, renewal: Renewal) {
        let (lease_id, now) = (&renewal.lease_id, clock::since_boot());
        match renewal.result {
            Ok(ttl) => self.leases.call_renewed(lease_id, renewal.sent, ttl, now),
            Err(failed) => match failed.error {
                Error::LeaseLost { cause } => self.leases.lost(lease_id, &cause, now),
                _ => self.leases.call_failed(lease_id, now),
            },
        }
    }
}

impl Link {
    fn channel(&self) -> Option<&CallChannel> {
        match self {
            Self::Closed => None,
            Self::Opening(channel, _) => Some(channel),
            Self::Open(stream) => Some(stream.channel()),
        }
    }

    async fn next(&mut self, calls: &Calls) -> Next {
        match self {
            Self::Closed => pending().await,
            Self::Opening(_, opened) => Next::Opened(opened.await),
            Self::Open(stream) => Next::Event(stream.next(calls).await),
        }
    }
}

fn beat(leases: &mut Leases, now: Duration) -> KeepAliveRequest {
    let (beat, lease_ids) = leases.begin_beat(now);
    KeepAliveRequest { beat, lease_ids }
}

#[cfg(test)]
mod tests;
