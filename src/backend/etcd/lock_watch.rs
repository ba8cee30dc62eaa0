//! What happens on the locks for which this replica has waiters: one watch per lock, opened at
//! "now" and then read once, and read again every few seconds, for watches have lost events in
//! released versions. Who comes to be within the prefix is woken, and nobody else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{WatchOptions, WatchStream};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::keys::{Keys, LockKeys};
use super::cluster_client::{ANSWER_BYTES, Failure, ClusterClient, failure};
use super::in_flight::Others;
use super::view::{Entry, Step, View};
use super::notifications::NotificationSender;
use crate::backend::{NewClaim, Notification};
use crate::name::{CallId, ClaimId, LockName};

#[cfg(test)]
mod tests;

/// How soon a watch that broke is opened again.
const AGAIN: Duration = Duration::from_millis(100);
/// How long a lock without waiters is still watched.
const LINGER: Duration = Duration::from_secs(1);
/// After how many of these everything is read again.
const READ_EVERY: u32 = 3;

/// The scenes of a namespace.
#[derive(Debug)]
pub struct LockWatches {
    keys: Keys,
    link: Arc<ClusterClient>,
    notifications: Arc<NotificationSender>,
    closed: CancellationToken,
    by_lock: Mutex<HashMap<LockName, Arc<Mutex<LockWatch>>>>,
}

/// One lock as this replica sees it.
#[derive(Debug, Default)]
struct LockWatch {
    view: Option<View>,
    mine: HashMap<ClaimId, OwnWaiter>,
}

/// A waiting claim of this replica.
#[derive(Debug)]
struct OwnWaiter {
    call: CallId,
    /// The revision at which it was queued: a view that is older does not know it yet.
    since: i64,
    told: bool,
}

impl OwnWaiter {
    fn new(call: CallId, since: i64) -> Self {
        Self {
            call,
            since,
            told: false,
        }
    }
}

impl LockWatch {
    /// Takes a view over, unless events have brought a later one.
    fn freshen(&mut self, view: &View) {
        if self.view.as_ref().is_none_or(|known| known.revision < view.revision) {
            self.view = Some(view.clone());
        }
    }

    /// Who of this replica should ask again now.
    fn due(&mut self) -> Vec<ClaimId> {
        let Some(view) = &self.view else {
            return Vec::new();
        };
        let mut due = Vec::new();
        for next in view.next_without(None) {
            if let Some(mine) = self.mine.get_mut(&next.id).filter(|mine| !mine.told) {
                mine.told = true;
                due.push(next.id);
            }
        }
        due
    }

    /// Whether a waiting claim of this replica is no more what it was. It is forgotten then: it joins
    /// again if it still waits, and one that was granted meanwhile never parts.
    fn is_lost(&mut self, id: &ClaimId) -> bool {
        let (Some(view), Some(mine)) = (&self.view, self.mine.get(id)) else {
            return false;
        };
        let there = view.waiters.get(id);
        let kept = there.is_some_and(|entry| entry.claim.hold(id).is_some_and(|hold| hold.call == mine.call));
        if mine.told || kept || view.revision < mine.since {
            return false;
        }
        self.mine.remove(id);
        true
    }
}

impl LockWatches {
    pub fn new(keys: Keys, link: Arc<ClusterClient>, notifications: Arc<NotificationSender>, closed: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            keys,
            link,
            notifications,
            closed,
            by_lock: Mutex::default(),
        })
    }

    /// Wakes this waiting claim from now on when it should ask; it was seen waiting in `view`.
    pub fn join(self: &Arc<Self>, name: &LockName, waiter: &Entry, view: &View) {
        if let Some(hold) = waiter.claim.holds.first() {
            self.wait(name, waiter.id, OwnWaiter::new(hold.call, waiter.modified), Some(view));
        }
    }

    /// The same for one that was just queued, at this revision. The view of its lock tells its place
    /// as soon as the events up to there have come: before, somebody ahead might be missing.
    pub fn join_behind(self: &Arc<Self>, name: &LockName, new: &NewClaim, queued: i64) {
        self.wait(name, new.id, OwnWaiter::new(new.call, queued), None);
    }

    fn wait(self: &Arc<Self>, name: &LockName, waiter: ClaimId, mine: OwnWaiter, view: Option<&View>) {
        let (due, opened) = self.sit(name, waiter, mine, view);
        self.tell(name, due);
        if let Some(scene) = opened {
            tokio::spawn(Arc::clone(self).follow(name.clone(), scene));
        }
    }

    /// Lets a waiter in; who should ask now, and the scene if it is a new one.
    fn sit(
        &self,
        name: &LockName,
        waiter: ClaimId,
        mine: OwnWaiter,
        view: Option<&View>,
    ) -> (Vec<ClaimId>, Option<Arc<Mutex<LockWatch>>>) {
        let mut opened = None;
        // Kept to the end: a scene where nobody waits may be taken down at any time.
        let mut by_lock = lock(&self.by_lock);
        let scene = Arc::clone(by_lock.entry(name.clone()).or_insert_with(|| {
            let scene = Arc::default();
            opened = Some(Arc::clone(&scene));
            scene
        }));
        let mut scene = lock(&scene);
        scene.mine.insert(waiter, mine);
        if let Some(view) = view {
            scene.freshen(view);
        }
        let mut due = scene.due();
        due.extend(scene.is_lost(&waiter).then_some(waiter));
        (due, opened)
    }

    /// This call does not wait any more.
    pub fn part(&self, name: &LockName, id: &ClaimId, call: CallId) {
        if let Some(scene) = self.scene(name) {
            let mine = &mut lock(&scene).mine;
            if mine.get(id).is_some_and(|mine| mine.call == call) {
                mine.remove(id);
            }
        }
    }

    /// This call is about to leave: its waiting claim is told nothing more. The revision at which that was written, as
    /// far as this replica knows.
    pub fn leaving(&self, name: &LockName, id: &ClaimId, call: CallId) -> Option<i64> {
        let scene = self.scene(name)?;
        let mut scene = lock(&scene);
        let mine = scene.mine.get_mut(id).filter(|mine| mine.call == call)?;
        mine.told = true;
        Some(mine.since)
    }

    /// This waiting claim, if it is known to be within the prefix, and the revision at which it was.
    pub fn next(&self, name: &LockName, id: &ClaimId) -> Option<(Entry, i64)> {
        let scene = self.scene(name)?;
        let scene = lock(&scene);
        let view = scene.view.as_ref()?;
        let entry = view.next_without(None).find(|entry| entry.id == *id)?;
        Some((entry.clone(), view.revision))
    }

    /// A holder is gone, and this replica has the answer that says so: its event may come later.
    pub fn ended(&self, name: &LockName, holder: &Entry) {
        let Some(scene) = self.scene(name) else {
            return;
        };
        let due = {
            let mut scene = lock(&scene);
            if let Some(view) = &mut scene.view {
                view.end(holder);
            }
            scene.due()
        };
        self.tell(name, due);
    }

    /// A grant of this replica: its event may come later, and a release before that one must know
    /// who holds.
    pub fn granted(&self, name: &LockName, holder: &Entry) {
        if let Some(scene) = self.scene(name)
            && let Some(view) = &mut lock(&scene).view
        {
            view.grant(holder);
        }
    }

    /// What the view of a lock says, if there is one.
    pub fn ask<T>(&self, name: &LockName, question: impl FnOnce(&View) -> T) -> Option<T> {
        let scene = self.scene(name)?;
        lock(&scene).view.as_ref().map(question)
    }

    /// Whether a queue of `limit` claims has room for one more, by this view of it or the one that is kept up,
    /// beside the waiters of this replica that came after it and the claims that are on their way.
    pub fn has_room(&self, name: &LockName, view: Option<&View>, coming: &Others, limit: usize) -> bool {
        let Some(scene) = self.scene(name) else {
            return view.is_some_and(|view| has_room(view, &HashMap::new(), coming, limit));
        };
        let scene = lock(&scene);
        let view = view.or(scene.view.as_ref());
        view.is_some_and(|view| has_room(view, &scene.mine, coming, limit))
    }

    /// Tells this waiter nothing until the answer is dropped: a release of this replica is making it
    /// a holder, and the events of that may come before its answer does.
    pub fn hand_over<'a>(&'a self, name: &'a LockName, next: ClaimId) -> HandOverGuard<'a> {
        self.hush(name, &next, true);
        HandOverGuard {
            scenes: self,
            name,
            next,
        }
    }

    fn hush(&self, name: &LockName, id: &ClaimId, hushed: bool) {
        let Some(scene) = self.scene(name) else {
            return;
        };
        let due = {
            let mut scene = lock(&scene);
            if let Some(mine) = scene.mine.get_mut(id) {
                mine.told = hushed;
            }
            let mut due = scene.due();
            due.extend(scene.is_lost(id).then_some(*id));
            due
        };
        self.tell(name, due);
    }

    fn scene(&self, name: &LockName) -> Option<Arc<Mutex<LockWatch>>> {
        lock(&self.by_lock).get(name).cloned()
    }

    /// Asks all waiters of this replica to ask again, and forgets them.
    pub fn lose_all(&self) {
        for scene in lock(&self.by_lock).values() {
            lock(scene).mine.clear();
        }
        self.notifications.send(Notification::Gap);
    }

    fn tell(&self, name: &LockName, claims: impl IntoIterator<Item = ClaimId>) {
        for claim in claims {
            self.notifications.send(Notification::Next(name.clone(), claim));
        }
    }

    /// Follows a lock until nobody of this replica waits for it.
    async fn follow(self: Arc<Self>, name: LockName, scene: Arc<Mutex<LockWatch>>) {
        let keys = self.keys.lock(&name);
        let mut ticks = interval(LINGER);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        while !self.is_left(&name, &scene) {
            if self.watch(&keys, &name, &scene, &mut ticks).await.is_err() {
                lock(&scene).view = None;
                sleep(AGAIN).await;
            }
        }
    }

    /// Takes the scene down if nobody waits.
    fn is_left(&self, name: &LockName, scene: &Mutex<LockWatch>) -> bool {
        let mut by_lock = lock(&self.by_lock);
        let left = lock(scene).mine.is_empty() || self.closed.is_cancelled();
        if left {
            by_lock.remove(name);
        }
        left
    }

    /// Follows one watch, until it breaks or nobody waits.
    async fn watch(
        &self,
        keys: &LockKeys,
        name: &LockName,
        scene: &Mutex<LockWatch>,
        ticks: &mut Interval,
    ) -> Result<(), Failure> {
        let mut events = open(&self.link, keys).await?;
        self.read(keys, name, scene).await?;
        let mut ticked = 0;
        loop {
            tokio::select! {
                message = events.message() => {
                    let message = message.map_err(|error| failure(&error))?;
                    let message = message.filter(|message| !message.canceled());
                    let message = message.ok_or_else(|| Failure::Unavailable("etcd: a watch ended".into()))?;
                    self.see(keys, name, scene, message.events())?;
                }
                _ = ticks.tick() => {
                    if lock(scene).mine.is_empty() {
                        return Ok(());
                    }
                    ticked += 1;
                    if ticked % READ_EVERY == 0 {
                        self.read(keys, name, scene).await?;
                    }
                }
            }
        }
    }

    /// Reads the lock as it is now.
    async fn read(&self, keys: &LockKeys, name: &LockName, scene: &Mutex<LockWatch>) -> Result<(), Failure> {
        let view = read(&self.link, keys).await?;
        let due = {
            let mut scene = lock(scene);
            scene.freshen(&view);
            let mut due = scene.due();
            let all: Vec<_> = scene.mine.keys().copied().collect();
            due.extend(all.into_iter().filter(|id| scene.is_lost(id)));
            due
        };
        self.tell(name, due);
        Ok(())
    }

    fn see(
        &self,
        keys: &LockKeys,
        name: &LockName,
        scene: &Mutex<LockWatch>,
        events: &[etcd_client::Event],
    ) -> Result<(), Failure> {
        let mut due = Vec::new();
        {
            let mut scene = lock(scene);
            let mut touched = Vec::new();
            if let Some(view) = &mut scene.view {
                for event in events {
                    match view
                        .follow(keys, event)
                        .map_err(|error| Failure::Refused(error.to_string()))?
                    {
                        Step::Changed(id) => touched.push(id),
                        Step::LeftQueue(entry) => touched.push(entry.id),
                        Step::Queued(_) | Step::Granted(_) | Step::Ended(_) | Step::Nothing => {}
                    }
                }
            }
            due.extend(touched.into_iter().filter(|id| scene.is_lost(id)));
            due.extend(scene.due());
        }
        self.tell(name, due);
        Ok(())
    }
}

/// See [`LockWatches::has_room`].
fn has_room(view: &View, mine: &HashMap<ClaimId, OwnWaiter>, coming: &Others, limit: usize) -> bool {
    // Far from the limit nobody is counted.
    if view.len() + mine.len() + coming.len() < limit {
        return true;
    }
    let is_new = |id: &ClaimId| view.waiters.get(id).is_none() && view.holders.get(id).is_none();
    let queued = mine.iter().filter(|(_, mine)| mine.since > view.revision);
    let queued = queued.filter(|(id, _)| is_new(id) && !coming.contains_key(id)).count();
    view.len() + queued + coming.keys().filter(|id| is_new(id)).count() < limit
}

/// See [`LockWatches::hand_over`].
#[derive(Debug)]
pub struct HandOverGuard<'a> {
    scenes: &'a LockWatches,
    name: &'a LockName,
    next: ClaimId,
}

impl Drop for HandOverGuard<'_> {
    fn drop(&mut self) {
        self.scenes.hush(self.name, &self.next, false);
    }
}

/// Opens a watch of a lock's keys at "now", and returns once it is there. (One with a start
/// revision that has passed would wait for the loop that serves the late, every 100 ms.)
pub async fn open(link: &ClusterClient, keys: &LockKeys) -> Result<WatchStream, Failure> {
    let prefix = keys.all().to_owned();
    let options = WatchOptions::new().with_range(keys.behind());
    let opened = link.call(|client| async move {
        let mut watch = client.watch_client().max_decoding_message_size(ANSWER_BYTES);
        let mut stream = watch.watch(prefix, Some(options)).await?;
        let created = stream.message().await?;
        Ok((stream, created))
    });
    match opened.await? {
        (stream, Some(created)) if created.created() && !created.canceled() => Ok(stream),
        _ => Err(Failure::Unavailable("etcd: a watch was refused".into())),
    }
}

/// A lock as it is now.
pub async fn read(link: &ClusterClient, keys: &LockKeys) -> Result<View, Failure> {
    let (revision, kvs) = link.range(keys.all(), keys.behind()).await?;
    View::read(keys, revision, &kvs).map_err(|error| Failure::Refused(error.to_string()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
