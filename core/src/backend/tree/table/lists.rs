//! Lists of locks. A few of each lock are under way at once. Whoever asks for one meanwhile shares the next, so a crowd that
//! joins a queue lists it a few times and not each for itself.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, Shared};
use tokio::time::timeout;

use super::LockTable;
use super::state::{Listed, LockState, NextList};
use crate::backend::tree::data::view::View;
use crate::backend::tree::fenced_connection::FencedConnection;
use crate::name::LockName;
use crate::supervisor::supervise;

/// How long a list waits for those that are under way: while the store hangs, they fail soon after each other.
const TURN: Duration = Duration::from_millis(200);
/// How long a task waits for a list. Whoever shares one with a call that is cancelled may not be woken by its answer.
const LISTED_WITHIN: Duration = Duration::from_secs(10);

impl LockTable {
    /// Lists a lock, and sets its watch before if it needs one. The list shows every step of this session that was
    /// answered.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn list(self: &Arc<Self>, name: &LockName, connection: &FencedConnection) -> Listed {
        let generation = connection.generation;
        let turn = self.with(name, |state| {
            Arc::clone(&state.lists)
                .try_acquire_owned()
                .map_err(|_| self.next_list(name, generation, state))
        });
        match turn {
            Ok(turn) => {
                let listed = self.list_over(name, generation).await;
                drop(turn);
                listed
            }
            Err(shared) => shared.await,
        }
    }

    /// The list that begins when one of those that are under way has ended.
    fn next_list(
        self: &Arc<Self>,
        name: &LockName,
        generation: u64,
        state: &mut LockState,
    ) -> Shared<BoxFuture<'static, Listed>> {
        let next = state.next_list.as_ref().filter(|next| next.generation == generation);
        if let Some(shared) = next.and_then(|next| next.list.upgrade()) {
            return shared;
        }
        let (table, lists, name) = (Arc::clone(self), Arc::clone(&state.lists), name.clone());
        let list = async move {
            let turn = timeout(TURN, lists.acquire_owned()).await;
            table.with_known(&name, |state| {
                state.next_list.take_if(|next| next.generation == generation)
            });
            let listed = table.list_over(&name, generation).await;
            drop(turn);
            listed
        };
        let shared = list.boxed().shared();
        let list = shared.downgrade();
        state.next_list = list.map(|list| NextList { generation, list });
        shared
    }

    async fn list_over(self: &Arc<Self>, name: &LockName, generation: u64) -> Listed {
        let path = self.paths.lock(name);
        let (number, watching, listing) = self.with_number(name, |state, lists| {
            *lists += 1;
            state.asked = *lists;
            let needs_watch = state.is_watched() && state.watched != Some(generation);
            // Sent one after the other, so that the watch reports everything that the list does not show.
            let watching = needs_watch.then(|| {
                state.watched = Some(generation);
                self.tree.watch(generation, &path)
            });
            (state.asked, watching, self.tree.children(generation, &path))
        });
        if let Some(watching) = watching
            && let Err(failure) = watching.await
        {
            self.with_known(name, |state| state.watched.take_if(|watched| *watched == generation));
            return Err(failure);
        }
        let names = listing.await?.map(|(names, _)| names).unwrap_or_default();
        let view = Arc::new(View::of(&names));
        let due = self.with_known(name, |state| {
            state.install((number, generation), View::clone(&view));
            self.settle(name, state)
        });
        // No event says what changed before the watch was set, which this list may be the first to follow.
        self.notify(name, due.unwrap_or_default());
        Ok(view)
    }

    /// Lists a lock in a task, once for all that happened before.
    pub(super) fn list_soon(self: &Arc<Self>, name: &LockName, state: &mut LockState) {
        state.is_outdated = true;
        if !std::mem::replace(&mut state.is_listing, true) {
            self.list_in_task(name);
        }
    }

    pub(super) fn list_in_task(self: &Arc<Self>, name: &LockName) {
        let list = (Arc::clone(self), name.clone());
        supervise("tree: list of a lock", list, |(table, name)| {
            table.list_until_current(name).boxed()
        });
    }

    async fn list_until_current(self: &Arc<Self>, name: &LockName) {
        loop {
            self.with_known(name, |state| state.is_outdated = false);
            let Ok(connection) = self.connections.ready().await else {
                self.with_known(name, |state| state.is_listing = false);
                return;
            };
            let listed = timeout(LISTED_WITHIN, self.list(name, &connection)).await;
            let is_again = self.with_known(name, |state| {
                // What failed is listed over the next connection, which may be there already.
                let now = self.connections.current();
                let is_over = |now: &FencedConnection| now.generation != connection.generation;
                let goes_on = matches!(listed, Ok(Ok(_))) || now.borrow().as_deref().is_some_and(is_over);
                let is_again = goes_on && (state.is_outdated || state.must_list_soon());
                state.is_listing = is_again;
                is_again
            });
            if is_again != Some(true) {
                return;
            }
        }
    }
}
