//! Watch calls of the API: the lock's queue, then each change with its cause.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures::future::FutureExt;

use super::Replica;
use super::inspect::read_all;
use crate::backend::tree::data::child::Child;
use crate::backend::tree::fenced_connection::FencedConnection;
use crate::backend::tree::store::Failure;
use crate::backend::tree::table::watchers::{Events, Seen};
use crate::backend::{Change, ChangeKind, InspectLimit, WatchEvent};
use crate::claim::{Cause, ClaimLabels};
use crate::name::{FencingToken, Identity, LockName, Metadata};

/// How many holders and how many waiters a full state lists at most.
const LISTED: usize = 1000;

/// A watch of one lock.
pub struct Watching {
    replica: Arc<Replica>,
    lock: LockName,
    events: Events,
    /// The connection over which the last full state was read.
    generation: u64,
    /// The claims of the last state and the changes since; None if a full state follows.
    known: Option<Vec<Known>>,
    ready: VecDeque<WatchEvent>,
}

/// A child of the lock, and what its events tell.
struct Known {
    child: Child,
    /// What a holder showed last.
    claim: ClaimLabels,
    token: Option<FencingToken>,
    /// Whether it was released and stays.
    is_kept: bool,
}

impl Watching {
    pub fn new(replica: Arc<Replica>, lock: LockName) -> Self {
        Self {
            events: replica.table.watch(&lock),
            replica,
            lock,
            generation: 0,
            known: None,
            ready: VecDeque::new(),
        }
    }

    /// The next event.
    ///
    /// # Errors
    /// When the store fails, which ends the watch.
    pub async fn next(&mut self) -> Result<WatchEvent, Failure> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            self.advance().await?;
        }
    }

    async fn advance(&mut self) -> Result<(), Failure> {
        if self.known.is_none() {
            return self.begin().await;
        }
        let closed = || Failure::NotSent("the namespace is closed".into());
        let event = self.events.next().await.ok_or_else(closed)?;
        let connection = self.replica.connections.ready().await?;
        match event {
            // The state was read over this connection, or a later one.
            Seen::Connected(generation) if generation <= self.generation => {}
            Seen::Connected(_) | Seen::Lost => self.known = None,
            Seen::Created(name) => {
                if let Some(child) = Child::parse(&name) {
                    self.created(&connection, child).await?;
                }
            }
            Seen::Deleted(name) => self.deleted(&connection, &name).await?,
            Seen::Changed(name) => self.changed(&connection, &name).await?,
        }
        Ok(())
    }

    /// Reads the full state. Events that it includes already are recognised by their names.
    async fn begin(&mut self) -> Result<(), Failure> {
        let connection = self.replica.connections.ready().await?;
        self.events.clear();
        let view = self.replica.list_now(&connection, &self.lock).await?;
        let limit = InspectLimit::of_each(LISTED);
        let state = self.replica.show(&connection, &self.lock, &view, limit).await?;
        let children = view.holders().iter().chain(view.waiters());
        let read = read_all(children.map(|child| self.read(&connection, child).boxed())).await?;
        let mut known: Vec<Known> = read.into_iter().flatten().collect();
        // What follows is compared with what the state showed, not with what was read later.
        let mut shown: HashMap<_, _> = state.holders.iter().map(|one| (one.claim, &one.metadata)).collect();
        for known in known.iter_mut().filter(|known| known.child.holds()) {
            if let Some(metadata) = shown.remove(&known.child.claim) {
                known.claim.metadata = metadata.clone();
            }
        }
        self.known = Some(known);
        self.generation = connection.generation;
        self.ready.push_back(WatchEvent::State(state));
        Ok(())
    }

    /// Reads whose child it is; `None` if it is gone and nothing is remembered of it.
    async fn read(&self, connection: &FencedConnection, child: &Child) -> Result<Option<Known>, Failure> {
        let (replica, lock) = (&self.replica, &self.lock);
        let child = child.clone();
        if !child.holds() {
            let claim = replica.read_waiter(connection, lock, &child).await?;
            let token = None;
            return Ok(claim.map(|claim| Known {
                child,
                claim: claim.terms.labels(),
                token,
                is_kept: false,
            }));
        }
        if let Some(lease) = replica.known_holder(connection, lock, &child).await? {
            return Ok(Some(Known {
                child,
                claim: lease.claim.terms.labels(),
                token: Some(lease.token),
                is_kept: lease.claim.holds.is_empty(),
            }));
        }
        let end = replica
            .history
            .of_claim(connection.generation, lock, child.claim)
            .await?;
        Ok(end.map(|end| Known {
            child,
            claim: ClaimLabels {
                owner: end.owner,
                identity: Identity::anonymous(),
                metadata: Metadata::default(),
            },
            token: Some(end.token),
            is_kept: false,
        }))
    }

    async fn created(&mut self, connection: &FencedConnection, child: Child) -> Result<(), Failure> {
        if self.find(&child.name).is_some() {
            return Ok(());
        }
        let Some(new) = self.read(connection, &child).await? else {
            return Ok(());
        };
        let Some(known) = &mut self.known else { return Ok(()) };
        // A claim that was granted, adopted or granted anew has one entry.
        let before = known.len();
        let was_holder = known
            .iter()
            .any(|other| other.child.claim == child.claim && other.child.holds());
        known.retain(|other| other.child.claim != child.claim);
        let was_known = known.len() < before;
        let (claim, token) = (new.claim.clone(), new.token);
        known.push(new);
        if child.holds() && !was_holder {
            self.report(ChangeKind::Granted, claim, token);
        } else if !child.holds() && !was_known {
            self.report(ChangeKind::Queued, claim, None);
        }
        Ok(())
    }

    async fn deleted(&mut self, connection: &FencedConnection, name: &str) -> Result<(), Failure> {
        let Some(at) = self.find(name) else { return Ok(()) };
        let Some(known) = &mut self.known else { return Ok(()) };
        let gone = known.remove(at);
        let cause = match gone.child.holds() {
            false => Cause::Cancelled,
            true if gone.is_kept => self.end_of_kept(connection, &gone).await?,
            true => self.cause(connection, &gone).await?,
        };
        self.report(ChangeKind::Ended(cause), gone.claim, gone.token);
        Ok(())
    }

    /// Reads a holder again, and reports its release, or its metadata if that has changed. A renewal changes the data too.
    async fn changed(&mut self, connection: &FencedConnection, name: &str) -> Result<(), Failure> {
        let Some(at) = self.find(name) else { return Ok(()) };
        let Some(child) = self.known.as_ref().map(|known| known[at].child.clone()) else {
            return Ok(());
        };
        if !child.holds() {
            return Ok(());
        }
        // Without it its deletion follows.
        let Some(lease) = self.replica.read_holder(connection, &self.lock, &child).await? else {
            return Ok(());
        };
        let Some(known) = self.known.as_mut().and_then(|known| known.get_mut(at)) else {
            return Ok(());
        };
        if lease.claim.holds.is_empty() && !std::mem::replace(&mut known.is_kept, true) {
            let (claim, token) = (known.claim.clone(), known.token);
            self.report(ChangeKind::Ended(Cause::Released), claim, token);
            return Ok(());
        }
        if known.claim.metadata != lease.claim.terms.metadata {
            known.claim = lease.claim.terms.labels();
            self.report(ChangeKind::Updated, lease.claim.terms.labels(), Some(lease.token));
        }
        Ok(())
    }

    /// How a holder ended: as remembered, and otherwise it was undone.
    async fn cause(&self, connection: &FencedConnection, gone: &Known) -> Result<Cause, Failure> {
        let history = &self.replica.history;
        let end = history
            .of_claim(connection.generation, &self.lock, gone.child.claim)
            .await?;
        let end = end.filter(|end| Some(end.token) == gone.token);
        Ok(end.map_or(Cause::Undone, |end| end.cause))
    }

    /// How a claim ended whose holds were released before.
    async fn end_of_kept(&self, connection: &FencedConnection, gone: &Known) -> Result<Cause, Failure> {
        let Some(token) = gone.token else {
            return Ok(Cause::Expired);
        };
        let history = &self.replica.history;
        let was_forced = history.was_forced(connection.generation, &self.lock, token).await?;
        Ok(if was_forced { Cause::Forced } else { Cause::Expired })
    }

    fn find(&self, name: &str) -> Option<usize> {
        let known = self.known.as_ref()?;
        known.iter().position(|known| known.child.name == name)
    }

    fn report(&mut self, kind: ChangeKind, claim: ClaimLabels, token: Option<FencingToken>) {
        let Some(known) = &self.known else { return };
        let holders = known.iter().filter(|known| known.child.holds()).count();
        self.ready.push_back(WatchEvent::Change(Change {
            kind,
            claim,
            token,
            holders,
            waiters: known.len() - holders,
        }));
    }
}
