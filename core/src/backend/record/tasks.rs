//! The background tasks of an engine: it tells that it lives, listens, and rechecks the locks on which it waits.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::Core;
use super::liveness;
use super::local;
use super::message::Notice;
use super::root::{LockRecord, server_of};
use super::store::{Heard, ServerId};
use crate::backend::BackendError;
use crate::name::LockName;
use crate::queue::ReplicaId;
use crate::supervisor::supervise;

/// A root without claims that was not written for so long is removed. Longer than a commit may be late.
pub const IDLE: Duration = Duration::from_secs(600);
/// How often idle roots are looked for.
const SWEEP: Duration = Duration::from_secs(120);
/// How many roots one step of a sweep reads.
const SWEPT: usize = 256;
/// One closing server of so many looks for idle roots: it finds those of many that lived too short for [`SWEEP`].
const SWEEPING: u64 = 4;
/// How long that may delay the close, and as long again the removal of the counter.
const AT_CLOSE: Duration = Duration::from_secs(1);
/// How often records that must be read again are forgotten.
const FORGET: Duration = Duration::from_secs(10);
/// How often changes are looked for that are missing.
const GAPS: Duration = Duration::from_millis(250);

/// How many dead servers the log remembers to have told.
const TOLD: usize = 256;
/// A server numbers its namespaces from a random number on: two that differ by less are of one server.
const NUMBERS: u64 = 1 << 20;

/// The dead servers that the log has told, the last one at the end.
static DEAD: Mutex<VecDeque<u64>> = Mutex::new(VecDeque::new());

/// Starts the tasks of an engine. They end with it.
pub fn start(core: &Arc<Core>) -> Vec<AbortOnDropHandle<()>> {
    let (messages, of) = (core.store.messages(core.server), || Arc::clone(core));
    let tasks = [
        supervise("record: beat", of(), |core| beat(Arc::clone(core)).boxed()),
        supervise("record: messages", (of(), messages), |(core, messages)| {
            async move {
                // Those that an earlier run has taken may have had no effect.
                core.recheck_attended();
                listen(core, messages).await;
            }
            .boxed()
        }),
        supervise("record: due locks", of(), |core| {
            look_when_due(Arc::clone(core)).boxed()
        }),
        supervise("record: sweep", of(), |core| sweep(Arc::clone(core)).boxed()),
        supervise("record: tidy", Arc::downgrade(core), |core| {
            tidy(Weak::clone(core)).boxed()
        }),
    ];
    tasks.into_iter().map(AbortOnDropHandle::new).collect()
}

impl Core {
    /// Whether a waiting claim of this replica has nobody who waits for it.
    pub fn is_lost(&self, replica: ReplicaId) -> bool {
        server_of(replica).is_none_or(|server| self.liveness.is_dead(server, Instant::now()))
    }

    /// Rechecks the locks on which this server waits or that it watches: a recheck tells the waiters whose claims are
    /// eligible, or not theirs any more.
    fn recheck_attended(self: &Arc<Self>) {
        self.locks.attended().iter().for_each(|lock| self.recheck(lock));
    }
}

async fn beat(core: Arc<Core>) {
    let mut beats = interval(liveness::INTERVAL);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut has_failed = false;
    loop {
        beats.tick().await;
        let sent = Instant::now();
        let has_left = core.has_left.lock().await;
        if *has_left {
            return;
        }
        let beaten = core.store.beat(core.server).await;
        drop(has_left);
        let counters = match beaten {
            Ok(counters) => counters,
            Err(error) => {
                // Of an outage the health tells.
                if matches!(error, BackendError::Broken { .. }) && !std::mem::replace(&mut has_failed, true) {
                    tracing::warn!(%error, "this server cannot tell the others that it lives");
                }
                continue;
            }
        };
        has_failed = false;
        for server in core.liveness.beaten(&counters, (sent, Instant::now())) {
            // One that has closed has no counter.
            if counters.iter().any(|(counted, _)| *counted == server) && is_news(server) {
                tracing::info!(
                    server = server.0.get(),
                    "a server has gone; its waiters leave their queues"
                );
            }
            let waits = |record: &LockRecord| record.waiters().any(|waiter| server_of(waiter.replica) == Some(server));
            core.locks.known(waits).iter().for_each(|lock| core.recheck(lock));
        }
    }
}

/// Whether the log has not told yet that this server is dead: each of its namespaces notices it.
fn is_news(server: ServerId) -> bool {
    let (number, mut dead) = (server.0.get(), DEAD.lock());
    if dead.iter().any(|told| told.abs_diff(number) < NUMBERS) {
        return false;
    }
    if dead.len() == TOLD {
        dead.pop_front();
    }
    dead.push_back(number);
    true
}

async fn listen(core: &Arc<Core>, messages: &mut BoxStream<'static, Heard>) {
    while let Some(heard) = messages.next().await {
        match heard {
            Heard::Gap => core.recheck_attended(),
            Heard::Message(lock, stamp, body) => match Notice::read(&body, stamp) {
                Some(notice) => hear(core, &lock, notice),
                None => core.recheck(&lock),
            },
        }
    }
}

fn hear(core: &Arc<Core>, lock: &LockName, notice: Notice) {
    if !notice.next.is_empty() {
        let entry = core.locks.entry(lock);
        let mut state = entry.state.lock();
        state.stepped = Some(Instant::now());
        let are_known = notice
            .next
            .iter()
            .filter(|claim| !local::tell(core, lock, &mut state, **claim))
            .count()
            == 0;
        drop(state);
        if !are_known {
            core.recheck(lock);
        }
    }
    if let Some(left) = notice.ends {
        let is_attended = core.locks.look_at(lock, Instant::now() + left + local::AFTER_END);
        // A claim may be on its way into the queue, with a record that is older than the grant.
        if !is_attended && core.locks.is_running(lock) {
            core.recheck(lock);
        }
    }
    if let Some((after, changes)) = notice.changes {
        core.watchers.changed(lock, after, changes);
    }
    core.tell_forced(lock, &notice.forced);
}

/// Rechecks the locks on which this server waits or that it watches: when a lease on them ends, and now and then, because
/// messages may be lost.
async fn look_when_due(core: Arc<Core>) {
    loop {
        let due = core.locks.next_due();
        let due = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => core.locks.take_due(Instant::now()).iter().for_each(|lock| core.recheck(lock)),
            () = core.locks.earlier.notified() => {}
        }
    }
}

async fn tidy(core: Weak<Core>) {
    let mut forget_at = Instant::now() + FORGET;
    loop {
        sleep(GAPS).await;
        let Some(core) = core.upgrade() else { return };
        core.watchers.end_gaps();
        if Instant::now() >= forget_at {
            core.locks.forget_stale();
            forget_at = Instant::now() + FORGET;
        }
    }
}

async fn sweep(core: Arc<Core>) {
    loop {
        sleep(SWEEP).await;
        sweep_all(&core).await;
    }
}

/// Removes idle roots, if it is this server's turn.
pub async fn sweep_at_close(core: &Arc<Core>) {
    if core.server.0.get().is_multiple_of(SWEEPING) {
        let _ = timeout(AT_CLOSE, sweep_all(core)).await;
    }
}

/// Removes the counter of this server for good: others need not count it as dead.
pub async fn leave(core: &Core) {
    let leave = async {
        let mut has_left = core.has_left.lock().await;
        *has_left = true;
        core.store.leave(core.server).await
    };
    // A counter that stays stands still.
    if let Ok(Err(error)) = timeout(AT_CLOSE, leave).await {
        tracing::debug!(%error, "the counter of this server was not removed");
    }
}

async fn sweep_all(core: &Arc<Core>) {
    let mut after = None;
    loop {
        match sweep_some(core, after.take()).await {
            Ok(Some(last)) => after = Some(last),
            Ok(None) => return,
            Err(error) => return tracing::debug!(%error, "idle locks were not removed"),
        }
    }
}

/// Removes the idle ones of some roots, under a floor above their tokens. Returns the last name, unless it was the end.
async fn sweep_some(core: &Arc<Core>, after: Option<String>) -> Result<Option<String>, BackendError> {
    let roots = core.store.idle(IDLE, after.as_deref(), SWEPT).await?;
    let last = roots
        .last()
        .filter(|_| roots.len() >= SWEPT)
        .map(|(lock, _)| lock.as_str().to_owned());
    let (mut idle, mut floor) = (Vec::new(), 0);
    for (lock, root) in roots {
        let Ok(record) = LockRecord::read(&root) else { continue };
        if record.queue.is_empty() {
            // Its ends are older than they are remembered.
            floor = floor.max(record.token);
            idle.push((lock, root.version));
        } else {
            // What has expired ends now, so that the root is idle next time.
            core.recheck(&lock);
        }
    }
    if !idle.is_empty() {
        core.store.remove(&idle, floor).await?;
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_server_is_told_once_for_all_its_namespaces() {
        let told = |number: u64| is_news(ServerId(number.try_into().expect("not 0")));
        let (first, second) = (7_u64 << 40, 9_u64 << 40);
        assert!(told(first));
        assert!(!told(first + 1) && !told(first));
        assert!(told(second));
        assert!(!told(first + 39));
    }
}
