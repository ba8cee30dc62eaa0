//! What this replica knows of each lock: its own waiters, the view that they are judged by, and who watches.
//!
//! A lock with waiters or watchers of this replica has one watch, and is listed after that was set, and again
//! when a waiter disappeared and may have left, when few waiters are left ahead of those that were enqueued since, every
//! few seconds, and over each new connection.
//!
//! A waiter that was enqueued after the list was requested may lack in the view, and is not judged by it. While the
//! view shows more waiters ahead than may lack, none of those can be next. So a hot lock is listed once per half
//! queue, not once per hand-off.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, broadcast, mpsc};
use tokio::time::{MissedTickBehavior, interval};

use self::state::{LockState, OwnWaiter};
use self::watchers::{Events, Seen, Watcher};
use super::data::child::Child;
use super::data::paths::Paths;
use super::data::view::View;
use super::fenced_connection::{FencedConnection, FencedConnections};
use super::leases::WatchedLeases;
use crate::backend::notifications::NotificationSender;
use crate::backend::tree::store::{Event, EventKind, Tree};
use crate::backend::{Forced, Notification};
use crate::name::{CallId, ClaimId, LockName};
use crate::queue::Callers;

mod lists;
pub mod state;
pub mod watchers;

/// How often locks without waiters are unwatched.
const TIDY_EVERY: Duration = Duration::from_secs(1);
/// How old the list of a lock with waiters gets: an event may be lost.
const LIST_AGAIN: Duration = Duration::from_secs(4);

/// How many notices of forced releases wait for someone to read them.
const FORCED: usize = 256;

/// See the module.
#[derive(Debug)]
pub struct LockTable {
    tree: Arc<dyn Tree>,
    connections: Arc<FencedConnections>,
    paths: Paths,
    notifications: Arc<NotificationSender>,
    leases: Arc<WatchedLeases>,
    forced: broadcast::Sender<Forced>,
    locks: Mutex<Locks>,
}

#[derive(Debug, Default)]
struct Locks {
    states: HashMap<LockName, LockState>,
    /// The number of the last list.
    lists: u64,
}

impl Locks {
    fn state(&mut self, name: &LockName) -> &mut LockState {
        let number = self.lists;
        let new = || LockState::new(number);
        self.states.entry(name.clone()).or_insert_with(new)
    }
}

impl LockTable {
    pub fn new(
        tree: Arc<dyn Tree>,
        connections: Arc<FencedConnections>,
        paths: Paths,
        notifications: Arc<NotificationSender>,
        leases: Arc<WatchedLeases>,
    ) -> Arc<Self> {
        Arc::new(Self {
            tree,
            connections,
            paths,
            notifications,
            leases,
            forced: broadcast::Sender::new(FORCED),
            locks: Mutex::default(),
        })
    }

    fn with<T>(&self, name: &LockName, change: impl FnOnce(&mut LockState) -> T) -> T {
        self.with_number(name, |state, _| change(state))
    }

    /// The same with the number of the last list, which the change may raise.
    fn with_number<T>(&self, name: &LockName, change: impl FnOnce(&mut LockState, &mut u64) -> T) -> T {
        let mut locks = self.locks.lock();
        let mut lists = locks.lists;
        let state = locks.state(name);
        let value = change(state, &mut lists);
        if state.is_unused() && state.watched.is_none() {
            locks.states.remove(name);
        }
        locks.lists = lists;
        value
    }

    fn with_known<T>(&self, name: &LockName, change: impl FnOnce(&mut LockState) -> T) -> Option<T> {
        self.locks.lock().states.get_mut(name).map(change)
    }

    /// Waits for the calls on this lock that came before, which keeps their order.
    pub async fn wait_for_earlier_calls(&self, name: &LockName) -> OwnedMutexGuard<()> {
        let in_order = Arc::clone(&self.locks.lock().state(name).in_order);
        let in_order = in_order.lock_owned().await;
        self.with_known(name, |state| state.has_appended = false);
        in_order
    }

    /// Records that the call that has waited for earlier ones sends its append.
    pub fn note_append(&self, name: &LockName) {
        self.with_known(name, |state| state.has_appended = true);
    }

    /// Counts an append among those that a view may lack, until the value is dropped.
    pub fn begin_append(&self, name: &LockName) -> Arc<()> {
        Arc::clone(&self.locks.lock().state(name).appending)
    }

    /// Whether each call that waits for earlier ones, or has waited, has sent its append.
    pub fn has_sent_appends(&self, name: &LockName) -> bool {
        self.with_known(name, |state| state.has_sent_appends()) == Some(true)
    }

    /// Evaluates a question about the view of a lock, if it has a current one.
    pub fn ask<T>(
        &self,
        name: &LockName,
        connection: &FencedConnection,
        question: impl FnOnce(&View) -> T,
    ) -> Option<T> {
        self.with_known(name, |state| {
            let is_current = state.is_current(connection.generation);
            state.view.as_ref().filter(|_| is_current).map(question)
        })?
    }

    /// Registers a waiter that was just enqueued, and whose call is asking. The next list shows it.
    pub fn join(
        &self,
        name: &LockName,
        (call, claim): (CallId, ClaimId),
        callers: Callers,
        waiter: &str,
        session: i64,
    ) {
        self.with_number(name, |state, lists| {
            let own = OwnWaiter {
                claim,
                name: waiter.to_owned(),
                session,
                callers,
                since: *lists,
                notified: true,
            };
            state.join(call, own);
        });
    }

    /// The holders ahead of the waiter of a call that was just enqueued, if it is known without a list that it has to
    /// wait: the lock is listed before it can be its turn.
    pub fn holders_ahead(&self, name: &LockName, connection: &FencedConnection, call: CallId) -> Option<Vec<String>> {
        self.with_known(name, |state| {
            let is_current = state.is_current(connection.generation);
            let is_of_session = |own: &OwnWaiter| own.session == connection.session;
            let waits = is_current && state.own.get(&call).is_some_and(is_of_session) && !state.must_list_soon();
            let view = state.view.as_ref().filter(|_| waits)?;
            Some(view.holders().iter().map(|holder| holder.name.clone()).collect())
        })?
    }

    /// How many waiters of this replica a view may lack.
    pub fn missing_from_view(&self, name: &LockName) -> usize {
        self.with_known(name, |state| state.missing_from_view()).unwrap_or(0)
    }

    /// The waiter of a call.
    pub fn own(&self, name: &LockName, call: CallId) -> Option<OwnWaiter> {
        self.with_known(name, |state| state.own.get(&call).cloned())?
    }

    /// Whether it is known that claims wait for a lock.
    pub fn has_waiters(&self, name: &LockName) -> bool {
        let waiting = |state: &mut LockState| {
            let seen = state.view.as_ref().is_some_and(|view| !view.waiters().is_empty());
            seen || !state.own.is_empty()
        };
        self.with_known(name, waiting).unwrap_or(false)
    }

    /// A waiter that may not hold yet is notified when it may.
    pub fn allow_notification(self: &Arc<Self>, name: &LockName, call: CallId) {
        self.change(name, |state| {
            if let Some(own) = state.own.get_mut(&call) {
                own.notified = false;
            }
        });
    }

    /// A waiter of this replica is handed the lock over, or is asking: it needs no notification.
    pub fn suppress_notification(&self, name: &LockName, call: CallId) {
        self.with_known(name, |state| {
            if let Some(own) = state.own.get_mut(&call) {
                own.notified = true;
            }
        });
    }

    /// Removes the waiter of a call.
    pub fn remove_own_waiter(&self, name: &LockName, call: CallId) -> Option<OwnWaiter> {
        self.with_known(name, |state| state.remove_own_waiter(call))?
    }

    /// A step of this replica has removed a waiter from the queue.
    pub fn waiter_removed(self: &Arc<Self>, name: &LockName, waiter: &str) {
        self.change(name, |state| state.waiter_removed(waiter));
    }

    /// A step of this replica has granted a call.
    pub fn granted(self: &Arc<Self>, name: &LockName, holder: &Child) {
        self.change(name, |state| state.granted(holder));
    }

    /// A step of this replica has ended a holder.
    pub fn ended(self: &Arc<Self>, name: &LockName, holder: &str) {
        self.change(name, |state| state.ended(holder));
    }

    fn change(self: &Arc<Self>, name: &LockName, change: impl FnOnce(&mut LockState)) {
        let due = self.with_known(name, |state| {
            change(state);
            self.settle(name, state)
        });
        self.notify(name, due.unwrap_or_default());
    }

    /// After a change of a view: lists the lock if it shows few waiters. Returns the waiters that should ask.
    fn settle(self: &Arc<Self>, name: &LockName, state: &mut LockState) -> Vec<ClaimId> {
        if state.view.is_some() && state.must_list_soon() && !std::mem::replace(&mut state.is_listing, true) {
            self.list_in_task(name);
        }
        state.due()
    }

    fn notify(&self, name: &LockName, due: Vec<ClaimId>) {
        for claim in due {
            self.notifications.send(Notification::Next(name.clone(), claim));
        }
    }

    /// Reports the changes of a lock to a watcher, from the next list on.
    pub fn watch(&self, name: &LockName) -> Events {
        let (watcher, events) = Watcher::new();
        self.with(name, |state| state.watchers.push(watcher));
        events
    }

    /// Applies the events of watches, and keeps the lists current, until the namespace is closed.
    pub async fn run(self: &Arc<Self>, events: &mut mpsc::UnboundedReceiver<Event>) {
        let closed = self.connections.closed().clone();
        let mut connections = self.connections.current();
        // Also the present one: after a panic, events may have had no effect.
        connections.mark_changed();
        let mut ticks = interval(TIDY_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut connected = None;
        let run = async {
            loop {
                tokio::select! {
                    biased;
                    Some(event) = events.recv() => self.apply(&event),
                    changed = connections.changed() => {
                        if changed.is_err() {
                            return;
                        }
                        let connection = connections.borrow_and_update().clone();
                        if let Some(connection) = connection.filter(|connection| connected != Some(connection.generation)) {
                            connected = Some(connection.generation);
                            self.connected(&connection);
                        }
                    }
                    _ = ticks.tick() => self.tidy(),
                }
            }
        };
        closed.run_until_cancelled(run).await;
        self.locks.lock().states.clear();
    }

    fn apply(self: &Arc<Self>, event: &Event) {
        let Some((name, Some(child))) = self.paths.split(&event.path) else {
            if let Some(forced) = self
                .paths
                .forced_at(&event.path)
                .filter(|_| event.kind == EventKind::Created)
            {
                // Nobody may listen.
                let _ = self.forced.send(forced);
            }
            return;
        };
        let due = self.with_known(&name, |state| {
            match event.kind {
                EventKind::Created => state.tell(&Seen::Created(child.clone())),
                EventKind::Deleted => state.tell(&Seen::Deleted(child.clone())),
                EventKind::Changed => {
                    state.tell(&Seen::Changed(child.clone()));
                    self.leases.note_changed(&name, &child);
                }
            }
            let must_list = match Child::parse(&child) {
                Some(child) => state.apply(event.kind, &child),
                // It has kept all others waiting.
                None => event.kind == EventKind::Deleted && !state.own.is_empty(),
            };
            if must_list {
                self.list_soon(&name, state);
            }
            self.settle(&name, state)
        });
        self.notify(&name, due.unwrap_or_default());
    }

    /// The forced releases that are told from now on.
    pub fn forced(&self) -> broadcast::Receiver<Forced> {
        self.forced.subscribe()
    }

    /// Lists all locks again over a new connection, which has no watches.
    fn connected(self: &Arc<Self>, connection: &FencedConnection) {
        tokio::spawn(self.tree.watch(connection.generation, &self.paths.all_forced()));
        let mut has_lost = false;
        let mut locks = self.locks.lock();
        for (name, state) in &mut locks.states {
            let waiting = state.own.len();
            if state.connected(connection.generation, connection.session) {
                self.list_soon(name, state);
            }
            has_lost |= state.own.len() < waiting;
        }
        drop(locks);
        if has_lost {
            self.notifications.send(Notification::Gap);
        }
    }

    /// Ends the watches of locks that have no waiters and no watchers, and lists the others from time to time.
    fn tidy(self: &Arc<Self>) {
        let mut locks = self.locks.lock();
        for (name, state) in &mut locks.states {
            state.watchers.retain(|watcher| !watcher.is_closed());
            if !state.own.is_empty() && state.listed_at.is_some_and(|at| at.elapsed() > LIST_AGAIN) {
                self.list_soon(name, state);
            } else if !state.is_watched()
                && !state.is_listing
                && let Some(generation) = state.watched.take()
            {
                state.view = None;
                tokio::spawn(self.tree.unwatch(generation, &self.paths.lock(name)));
            }
        }
        locks
            .states
            .retain(|_, state| !state.is_unused() || state.watched.is_some());
    }
}
