//! Watch calls of the API: the lock's queue, then each change with its cause.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use etcd_client::{Event, EventType, GetOptions, KeyValue, WatchStream};

use super::Replica;
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::data::key_suffixes::KeySuffix;
use crate::backend::etcd::data::keys::{KeyRole, LockKeys};
use crate::backend::etcd::data::record::End;
use crate::backend::etcd::data::view::{Entry, Step, View};
use crate::backend::etcd::lock_state::watch;
use crate::backend::{Change, ChangeKind, InspectLimit, WatchEvent};
use crate::claim::{Cause, ClaimLabels};
use crate::name::{FencingToken, LockName};

/// How many holders and how many waiters a full state lists at most.
const LISTED: usize = 1000;

/// A watch call.
pub struct Watching {
    replica: Arc<Replica>,
    name: LockName,
    keys: LockKeys,
    /// None before the start.
    open: Option<(WatchStream, View)>,
    ready: VecDeque<WatchEvent>,
}

impl Watching {
    pub fn new(replica: Arc<Replica>, name: LockName) -> Self {
        Self {
            keys: replica.keys.lock(&name),
            replica,
            name,
            open: None,
            ready: VecDeque::new(),
        }
    }

    /// The next event.
    ///
    /// # Errors
    /// When the store or its connection fails, which ends the watch.
    pub async fn next(&mut self) -> Result<WatchEvent, Failure> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            self.advance().await?;
        }
    }

    async fn advance(&mut self) -> Result<(), Failure> {
        let Some((stream, _)) = &mut self.open else {
            return self.begin().await;
        };
        let message = watch::next_message(stream).await?;
        let revision = |event: &Event| event.kv().map(KeyValue::mod_revision);
        for events in message.events().chunk_by(|one, next| revision(one) == revision(next)) {
            self.apply_revision(events).await?;
        }
        Ok(())
    }

    async fn begin(&mut self) -> Result<(), Failure> {
        self.replica.session.epoch().await?;
        let stream = watch::open(&self.replica.link, &self.keys).await?;
        let view = View::fetch(&self.replica.link, &self.keys).await?;
        let state = self.replica.show(&view, InspectLimit::of_each(LISTED)).await?;
        self.open = Some((stream, view));
        self.ready.push_back(WatchEvent::State(state));
        Ok(())
    }

    /// Reports the changes of one revision, in the order of ends, removed waiters, grants and new waiters.
    async fn apply_revision(&mut self, events: &[Event]) -> Result<(), Failure> {
        let granted: HashSet<KeySuffix> = events.iter().filter_map(|event| self.granted(event)).collect();
        let mut ordered: Vec<&Event> = events.iter().collect();
        ordered.sort_by_key(|event| self.rank(event));
        for event in ordered {
            let Some((_, view)) = &mut self.open else {
                return Ok(());
            };
            let suffix = holder_suffix(&self.keys, event);
            let shown = suffix.and_then(|suffix| Some(view.holders.get(suffix)?.claim.terms.metadata.clone()));
            let step = view.follow(&self.keys, event);
            match step? {
                Step::Ended(entry) => {
                    let cause = self.cause(&entry).await?;
                    self.report(ChangeKind::Ended(cause), entry.claim.terms.labels(), entry.token());
                }
                Step::LeftQueue(entry) if !granted.contains(&entry.suffix) => {
                    self.report(ChangeKind::Ended(Cause::Cancelled), entry.claim.terms.labels(), None);
                }
                Step::Granted(suffix) => self.report_entry(ChangeKind::Granted, |view| view.holders.get(suffix)),
                Step::Queued(suffix) => self.report_entry(ChangeKind::Queued, |view| view.waiters.get(suffix)),
                Step::Changed(suffix) => {
                    if let Some(shown) = shown {
                        self.report_entry(ChangeKind::Updated, |view| {
                            view.holders
                                .get(suffix)
                                .filter(|entry| entry.claim.terms.metadata != shown)
                        });
                    }
                }
                Step::LeftQueue(_) | Step::Nothing => {}
            }
        }
        Ok(())
    }

    fn granted(&self, event: &Event) -> Option<KeySuffix> {
        holder_suffix(&self.keys, event).filter(|_| event.event_type() == EventType::Put)
    }

    /// The position of an event among those of its revision.
    fn rank(&self, event: &Event) -> u8 {
        let holder = holder_suffix(&self.keys, event).is_some();
        match (event.event_type(), holder) {
            (EventType::Delete, true) => 0,
            (EventType::Delete, false) => 1,
            (EventType::Put, true) => 2,
            (EventType::Put, false) => 3,
        }
    }

    /// How a holder ended: as recorded, and otherwise it expired.
    async fn cause(&self, entry: &Entry) -> Result<Cause, Failure> {
        let Some(hold) = entry.claim.holds.last() else {
            return Ok(Cause::Expired);
        };
        let key = self.replica.keys.end(&self.name, &hold.secret);
        let read = self.replica.link.get(key, GetOptions::new()).await?;
        let end = read.kvs().first().and_then(|kv| End::decode(kv.value()).ok());
        Ok(end.map_or(Cause::Expired, |end| end.cause))
    }

    fn report_entry(&mut self, kind: ChangeKind, find: impl Fn(&View) -> Option<&Entry>) {
        let found = self.open.as_ref().and_then(|(_, view)| find(view));
        let entry = found.map(|entry| (entry.claim.terms.labels(), entry.token()));
        if let Some((claim, token)) = entry {
            self.report(kind, claim, token);
        }
    }

    fn report(&mut self, kind: ChangeKind, claim: ClaimLabels, token: Option<FencingToken>) {
        let Some((_, view)) = &self.open else {
            return;
        };
        self.ready.push_back(WatchEvent::Change(Change {
            kind,
            claim,
            token,
            holders: view.holders.len(),
            waiters: view.waiters.len(),
        }));
    }
}

/// The key suffix of the holder whose key an event is about.
fn holder_suffix(keys: &LockKeys, event: &Event) -> Option<KeySuffix> {
    match keys.role_of(event.kv()?.key()) {
        Some(KeyRole::Holder(suffix)) => Some(suffix),
        _ => None,
    }
}
