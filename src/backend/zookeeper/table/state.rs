//! What this replica knows of one lock.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::backend::zookeeper::client::EventKind;
use crate::backend::zookeeper::data::child::Child;
use crate::backend::zookeeper::data::view::View;
use crate::name::{CallId, ClaimId};

/// See the module.
#[derive(Debug, Default)]
pub struct LockState {
    pub view: Option<View>,
    /// The number of the list that the view is of, and that of the last list that was asked for.
    pub listed: u64,
    pub asked: u64,
    pub listed_at: Option<Instant>,
    /// Holders that ended, or were granted, while a list was under way, which may not show it.
    pub ended: Vec<String>,
    pub granted: Vec<Child>,
    /// The connection that has the watch.
    pub watched: Option<u64>,
    /// A task lists it; and it must be listed again after that.
    pub is_listing: bool,
    pub is_outdated: bool,
    pub own: HashMap<CallId, Own>,
    pub watchers: Vec<mpsc::UnboundedSender<Seen>>,
    pub admission: Arc<tokio::sync::Mutex<()>>,
}

/// What a watcher of a lock is told.
#[derive(Debug, Clone)]
pub enum Seen {
    /// A child of this name was created or deleted.
    Created(String),
    Deleted(String),
    /// The data of a holder of this name was changed.
    Changed(String),
    /// Events may have been lost.
    Gap,
}

/// A waiter of this replica.
#[derive(Debug, Clone)]
pub struct Own {
    pub claim: ClaimId,
    /// The name of its node.
    pub name: String,
    pub session: i64,
    /// Lists up to this one may not show it.
    pub since: u64,
    /// It was notified, or must not be.
    pub notified: bool,
}

impl LockState {
    /// Whether it has waiters or watchers.
    pub fn is_watched(&self) -> bool {
        !self.own.is_empty() || !self.watchers.is_empty()
    }

    pub fn is_unused(&self) -> bool {
        !self.is_watched() && !self.is_listing && Arc::strong_count(&self.admission) == 1
    }

    /// Marks the waiters of this replica that should ask, and returns those that were not marked before: those that
    /// may hold, in the order of the queue, and those that are gone.
    pub fn due(&mut self) -> Vec<ClaimId> {
        let Some(view) = &self.view else {
            return Vec::new();
        };
        let mut due = Vec::new();
        for waiter in view.next_without(None) {
            if let Some(own) = self.own.get_mut(&waiter.call).filter(|own| !own.notified) {
                own.notified = true;
                due.push(own.claim);
            }
        }
        for own in self.own.values_mut() {
            let is_gone = self.listed > own.since && !view.has(&own.name);
            if is_gone && !own.notified {
                own.notified = true;
                due.push(own.claim);
            }
        }
        due
    }

    /// Takes a list over, unless a later one was taken over before.
    pub fn take(&mut self, number: u64, mut view: View) {
        if number <= self.listed {
            return;
        }
        self.granted.iter().for_each(|holder| view.granted(holder));
        for name in &self.ended {
            view.ended(name);
        }
        if number == self.asked {
            self.ended.clear();
            self.granted.clear();
        }
        (self.listed, self.listed_at) = (number, Some(Instant::now()));
        self.view = Some(view);
    }

    pub fn granted(&mut self, holder: &Child) {
        if let Some(view) = &mut self.view {
            view.granted(holder);
        }
        if self.asked > self.listed {
            self.granted.push(holder.clone());
        }
    }

    pub fn ended(&mut self, name: &str) {
        if let Some(view) = &mut self.view {
            view.ended(name);
        }
        if self.asked > self.listed {
            self.ended.push(name.to_owned());
        }
    }

    /// Applies an event. Whether the lock must be listed again.
    pub fn apply(&mut self, kind: EventKind, child: &Child) -> bool {
        match (kind, child.holds()) {
            (EventKind::Created, true) => self.granted(child),
            (EventKind::Deleted, true) => self.ended(&child.name),
            (EventKind::Deleted, false) => {
                let is_known = self.view.as_ref().is_none_or(|view| view.has(&child.name));
                return is_known && !self.own.is_empty();
            }
            _ => {}
        }
        false
    }

    pub fn tell(&mut self, seen: &Seen) {
        self.watchers.retain(|watcher| watcher.send(seen.clone()).is_ok());
    }
}
