//! What this replica knows of one lock.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::future::{BoxFuture, WeakShared};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::watchers::{Seen, Watcher};
use crate::backend::tree::data::child::Child;
use crate::backend::tree::data::view::View;
use crate::backend::tree::store::{EventKind, Failure};
use crate::name::{CallId, ClaimId};
use crate::queue::Callers;

/// How many lists of a lock are under way at once.
const LISTS: usize = 4;

/// What a list shows, for all who share it.
pub type Listed = Result<Arc<View>, Failure>;

/// A list over one connection that has not begun.
#[derive(Debug)]
pub struct NextList {
    pub generation: u64,
    /// Dropped with the last who shares it.
    pub list: WeakShared<BoxFuture<'static, Listed>>,
}

/// See the module.
#[derive(Debug)]
pub struct LockState {
    pub view: Option<View>,
    /// The number of the list that the view is of, and that of the last list that was asked for.
    pub listed: u64,
    pub asked: u64,
    pub listed_at: Option<Instant>,
    /// The connection over which the view was listed.
    read_over: u64,
    /// Holders that ended, or were granted, while a list was under way, which may not show it: with the number of the last
    /// list that was asked for before.
    pub ended: Vec<(u64, String)>,
    pub granted: Vec<(u64, Child)>,
    /// The connection that has the watch.
    pub watched: Option<u64>,
    /// Held by each list under way.
    pub lists: Arc<Semaphore>,
    /// The list that waits for those, which whoever asks meanwhile shares.
    pub next_list: Option<NextList>,
    /// A task lists it; and it must be listed again after that.
    pub is_listing: bool,
    pub is_outdated: bool,
    pub own: HashMap<CallId, OwnWaiter>,
    /// The number of own waiters that joined after the list in `view` was requested, so that it may lack them.
    missing_from_view: usize,
    /// Own waiters that may be gone, and were not notified of that.
    gone: Vec<CallId>,
    pub watchers: Vec<Watcher>,
    /// Held by one call at a time, in the order of arrival.
    pub in_order: Arc<tokio::sync::Mutex<()>>,
    /// Held by each append under way.
    pub appending: Arc<()>,
    /// The call that holds `in_order` has sent its append.
    pub has_appended: bool,
}

/// A waiter of this replica.
#[derive(Debug, Clone)]
pub struct OwnWaiter {
    pub claim: ClaimId,
    /// The name of its node.
    pub name: String,
    pub session: i64,
    /// The calls that have asked for it.
    pub callers: Callers,
    /// Lists up to this one may not show it.
    pub since: u64,
    /// It was notified, or must not be.
    pub notified: bool,
}

impl LockState {
    /// The state of a lock that nothing is known of. Lists up to this number were asked for another state of it.
    pub fn new(number: u64) -> Self {
        Self {
            view: None,
            listed: number,
            asked: number,
            listed_at: None,
            read_over: 0,
            ended: Vec::new(),
            granted: Vec::new(),
            watched: None,
            lists: Arc::new(Semaphore::new(LISTS)),
            next_list: None,
            is_listing: false,
            is_outdated: false,
            own: HashMap::new(),
            missing_from_view: 0,
            gone: Vec::new(),
            watchers: Vec::new(),
            in_order: Arc::default(),
            appending: Arc::default(),
            has_appended: false,
        }
    }

    /// Whether it has waiters or watchers.
    pub fn is_watched(&self) -> bool {
        !self.own.is_empty() || !self.watchers.is_empty()
    }

    pub fn is_unused(&self) -> bool {
        let is_listed = self.lists.available_permits() < LISTS;
        !self.is_watched() && !self.is_listing && !is_listed && self.in_order_count() + self.appending_count() == 0
    }

    /// Whether the view was listed over this connection and is kept current by its watch.
    pub fn is_current(&self, generation: u64) -> bool {
        self.read_over == generation && self.watched == Some(generation) && !self.is_outdated
    }

    /// How many calls hold `in_order` or wait for it.
    fn in_order_count(&self) -> usize {
        Arc::strong_count(&self.in_order) - 1
    }

    fn appending_count(&self) -> usize {
        Arc::strong_count(&self.appending) - 1
    }

    /// Whether all calls that are in order have sent their appends.
    pub fn has_sent_appends(&self) -> bool {
        self.in_order_count() == usize::from(self.has_appended)
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
        for call in std::mem::take(&mut self.gone) {
            let Some(own) = self.own.get_mut(&call) else { continue };
            let is_gone = self.listed > own.since && !view.has(&own.name);
            if is_gone && !own.notified {
                own.notified = true;
                due.push(own.claim);
            } else if is_gone {
                // It is asking, and may have to be notified again.
                self.gone.push(call);
            }
        }
        due
    }

    /// Registers a waiter of this replica.
    pub fn join(&mut self, call: CallId, own: OwnWaiter) {
        self.remove_own_waiter(call);
        self.missing_from_view += usize::from(own.since >= self.listed);
        self.own.insert(call, own);
    }

    /// Removes the waiter of a call.
    pub fn remove_own_waiter(&mut self, call: CallId) -> Option<OwnWaiter> {
        let own = self.own.remove(&call)?;
        self.missing_from_view -= usize::from(own.since >= self.listed);
        Some(own)
    }

    /// The number of own waiters that `view` may lack, with those that are being made. They are judged after the next list.
    pub fn missing_from_view(&self) -> usize {
        self.missing_from_view + self.appending_count()
    }

    /// Whether an own waiter that the view may lack can soon be the next. While more waiters are ahead than may lack, none of
    /// these can be next.
    pub fn must_list_soon(&self) -> bool {
        let ahead = self.view.as_ref().map_or(0, |view| view.waiters().len());
        self.missing_from_view > 0 && ahead <= self.missing_from_view
    }

    /// Installs a list as the view, unless a later one is installed.
    pub fn install(&mut self, (number, generation): (u64, u64), mut view: View) {
        if number <= self.listed {
            return;
        }
        // A list shows what happened before it was asked for.
        self.granted.retain(|(asked, _)| *asked >= number);
        self.ended.retain(|(asked, _)| *asked >= number);
        self.granted.iter().for_each(|(_, holder)| view.granted(holder));
        for (_, name) in &self.ended {
            view.ended(name);
        }
        if number == self.asked {
            self.ended.clear();
            self.granted.clear();
        }
        (self.listed, self.read_over, self.listed_at) = (number, generation, Some(Instant::now()));
        self.missing_from_view = self.own.values().filter(|own| own.since >= number).count();
        let shown: HashSet<&str> = view.waiters().iter().map(|waiter| waiter.name.as_str()).collect();
        let is_gone = |own: &OwnWaiter| own.since < number && !shown.contains(own.name.as_str());
        let gone = self.own.iter().filter(|(_, own)| is_gone(own));
        self.gone = gone.map(|(call, _)| *call).collect();
        self.view = Some(view);
    }

    pub fn granted(&mut self, holder: &Child) {
        if let Some(view) = &mut self.view {
            view.granted(holder);
        }
        if self.asked > self.listed {
            self.granted.push((self.asked, holder.clone()));
        }
        if self.own.contains_key(&holder.call) {
            self.gone.push(holder.call);
        }
    }

    /// A waiter has left the queue, and was not granted.
    pub fn waiter_removed(&mut self, name: &str) {
        if let Some(view) = &mut self.view {
            view.waiter_removed(name);
        }
    }

    /// Whether it is known that this call was granted.
    fn is_granted(&self, call: CallId) -> bool {
        let granted = self.granted.iter().map(|(_, holder)| holder);
        let mut known = self.view.iter().flat_map(View::holders).chain(granted);
        known.any(|holder| holder.call == call)
    }

    pub fn ended(&mut self, name: &str) {
        if let Some(view) = &mut self.view {
            view.ended(name);
        }
        if self.asked > self.listed {
            self.ended.push((self.asked, name.to_owned()));
        }
    }

    /// A new connection has no watches. Whether the lock must be listed over it.
    pub fn connected(&mut self, generation: u64, session: i64) -> bool {
        self.own.retain(|_, own| own.session == session);
        self.missing_from_view = self.own.values().filter(|own| own.since >= self.listed).count();
        // Also if it was listed over this connection already: that list tells its watchers nothing.
        self.tell(&Seen::Connected(generation));
        if self.watched == Some(generation) {
            return false;
        }
        if !self.is_watched() {
            self.watched = None;
        }
        self.is_watched()
    }

    /// Applies an event. Whether the lock must be listed again.
    pub fn apply(&mut self, kind: EventKind, child: &Child) -> bool {
        match (kind, child.holds()) {
            (EventKind::Created, true) => self.granted(child),
            (EventKind::Deleted, true) => self.ended(&child.name),
            (EventKind::Deleted, false) => {
                // A list that is under way may show it, unless it was granted: that is known to the list, too.
                let may_be_shown = self.asked > self.listed && !self.is_granted(child.call);
                let is_shown = || self.view.as_ref().is_none_or(|view| view.has(&child.name));
                let is_own = || self.own.get(&child.call).is_some_and(|own| own.name == child.name);
                let is_lost_own = || is_own() && !self.is_granted(child.call);
                return !self.own.is_empty() && (may_be_shown || is_shown() || is_lost_own());
            }
            _ => {}
        }
        false
    }

    pub fn tell(&mut self, seen: &Seen) {
        self.watchers.retain(|watcher| watcher.tell(seen));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::NewClaim;

    const SESSION: i64 = 1;

    fn waiter(number: u8) -> Child {
        let name = Child::waiter_prefix(&NewClaim::numbered(number), None) + &format!("{number:010}");
        Child::parse(&name).unwrap()
    }

    fn view(children: &[&Child]) -> View {
        let names: Vec<_> = children.iter().map(|child| child.name.clone()).collect();
        View::of(&names)
    }

    /// A state with an own waiter.
    fn waiting(child: &Child) -> LockState {
        let mut state = LockState::new(3);
        let own = OwnWaiter {
            claim: child.claim,
            name: child.name.clone(),
            session: SESSION,
            callers: Callers::default(),
            since: 3,
            notified: false,
        };
        state.join(child.call, own);
        state
    }

    #[test]
    fn a_waiter_that_leaves_while_a_list_is_under_way_is_listed_again() {
        let (ahead, own) = (waiter(1), waiter(2));
        let mut state = waiting(&own);
        state.asked = 4;
        state.install((4, 0), view(&[&own]));
        state.asked = 5;
        assert!(state.apply(EventKind::Deleted, &ahead), "the list may show it");
        state.install((5, 0), view(&[&ahead, &own]));
        assert!(state.due().is_empty());
        state.install((6, 0), view(&[&own]));
        assert_eq!(state.due(), [own.claim]);
        assert!(!state.apply(EventKind::Deleted, &ahead), "no list shows it");
    }

    #[test]
    fn a_waiter_that_was_granted_while_a_list_is_under_way_is_not_listed_again() {
        let (ahead, own) = (waiter(1), waiter(2));
        let mut state = waiting(&own);
        state.asked = 4;
        state.install((4, 0), view(&[&ahead, &own]));
        state.asked = 5;
        let holder = Child::parse(&Child::holder_name(&NewClaim::numbered(1), 0)).unwrap();
        assert!(!state.apply(EventKind::Created, &holder));
        assert!(!state.apply(EventKind::Deleted, &ahead));
        state.install((5, 0), view(&[&ahead, &own]));
        assert!(state.due().is_empty(), "the list does not show the holder");
        assert!(!state.apply(EventKind::Deleted, &holder));
        assert_eq!(state.due(), [own.claim]);
    }

    #[test]
    fn waiters_that_no_list_has_shown_are_listed_when_few_are_left_ahead() {
        let ahead = [waiter(1), waiter(2), waiter(3)];
        let (listed, own) = (waiter(4), waiter(5));
        let mut state = waiting(&listed);
        state.asked = 4;
        state.install((4, 0), view(&[&ahead[0], &ahead[1], &ahead[2], &listed]));
        assert!(!state.must_list_soon() && state.missing_from_view() == 0);
        let joined = OwnWaiter {
            claim: own.claim,
            name: own.name.clone(),
            since: 4,
            ..state.own[&listed.call].clone()
        };
        state.join(own.call, joined);
        assert!(!state.must_list_soon() && state.missing_from_view() == 1);
        for name in ahead.iter().map(|waiter| waiter.name.as_str()) {
            assert!(!state.must_list_soon());
            state.waiter_removed(name);
        }
        assert!(state.must_list_soon());
        assert!(
            state.apply(EventKind::Deleted, &own),
            "it has gone before it was listed"
        );
        state.remove_own_waiter(own.call);
        assert!(!state.must_list_soon() && state.missing_from_view() == 0);
    }

    #[test]
    fn what_a_list_shows_is_not_kept_while_lists_overlap() {
        let own = waiter(2);
        let mut state = waiting(&own);
        let holder = Child::parse(&Child::holder_name(&NewClaim::numbered(1), 0)).unwrap();
        for number in 4..100 {
            state.asked = number + 1;
            state.granted(&holder);
            state.ended(&holder.name);
            state.install((number, 0), view(&[&own]));
        }
        assert!(state.granted.len() + state.ended.len() <= 4, "of two lists under way");
    }

    #[test]
    fn a_list_that_was_asked_for_an_earlier_state_is_not_taken() {
        let own = waiter(1);
        let mut state = waiting(&own);
        state.install((3, 0), view(&[]));
        assert!(state.view.is_none());
        state.asked = 4;
        state.install((4, 0), view(&[&own]));
        assert_eq!(state.due(), [own.claim]);
    }

    #[test]
    fn a_view_that_was_read_over_an_earlier_connection_is_not_current() {
        let own = waiter(1);
        let mut state = waiting(&own);
        (state.asked, state.watched) = (4, Some(7));
        state.install((4, 7), view(&[&own]));
        assert!(state.is_current(7));
        state.watched = Some(8);
        assert!(!state.is_current(8), "the list over it is under way");
        state.asked = 5;
        state.install((5, 8), view(&[&own]));
        assert!(state.is_current(8));
    }

    #[tokio::test]
    async fn watchers_are_told_of_a_connection_over_which_the_lock_was_listed_already() {
        let mut state = waiting(&waiter(1));
        let (watcher, mut events) = Watcher::new();
        state.watchers.push(watcher);
        state.watched = Some(7);
        assert!(!state.connected(7, SESSION) && state.own.len() == 1);
        assert_eq!(events.next().await, Some(Seen::Connected(7)));
        assert!(state.connected(8, SESSION + 1), "it has a watcher");
        assert!(state.own.is_empty(), "its session has ended");
    }
    #[test]
    fn a_lock_has_sent_its_appends_when_each_call_in_order_has() {
        let mut state = LockState::new(0);
        assert!(state.has_sent_appends());
        let first = Arc::clone(&state.in_order).try_lock_owned().unwrap();
        assert!(!state.has_sent_appends(), "it may still list the lock");
        state.has_appended = true;
        assert!(state.has_sent_appends());
        let second = Arc::clone(&state.in_order);
        assert!(!state.has_sent_appends(), "another one waits for it");
        drop((first, second));
        assert!(state.is_unused());
    }
}
