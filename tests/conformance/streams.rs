//! Listening to a backend: what waiters are told, and what watchers see.

use std::time::Duration;

use fencepost::backend::NewClaim;
use fencepost::backend::{BackendError, Change, ChangeKind, Notification, WatchEvent};
use fencepost::claim::Queue;
use fencepost::name::LockName;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::time::timeout;

/// How long something that must come may take.
const SOON: Duration = Duration::from_secs(30);

/// What a replica's waiters are told.
pub struct NotificationSender {
    stream: BoxStream<'static, Notification>,
    quiet: Duration,
}

impl NotificationSender {
    /// Listens to a stream, and calls it quiet after `quiet`.
    pub fn new(stream: BoxStream<'static, Notification>, quiet: Duration) -> Self {
        Self { stream, quiet }
    }

    /// Waits until this claim is told to ask again, by name or with its whole lock.
    pub async fn until(&mut self, lock: &LockName, claim: &NewClaim) {
        let told = async {
            while let Some(wake) = self.stream.next().await {
                if concerns(&wake, lock, claim) {
                    return true;
                }
            }
            false
        };
        assert_eq!(timeout(SOON, told).await, Ok(true), "{:?} was not woken", claim.owner);
    }

    /// All that comes until it is quiet.
    pub async fn all(&mut self) -> Vec<Notification> {
        let mut all = Vec::new();
        while let Ok(Some(wake)) = timeout(self.quiet, self.stream.next()).await {
            all.push(wake);
        }
        all
    }

    /// Asserts that what comes wakes each of `these`, and until it is quiet then no other claim of the
    /// lock by name.
    pub async fn only(&mut self, lock: &LockName, these: &[&NewClaim]) {
        let mut all = Vec::new();
        for claim in these {
            while !all.iter().any(|wake| concerns(wake, lock, claim)) {
                match timeout(SOON, self.stream.next()).await {
                    Ok(Some(wake)) => all.push(wake),
                    _ => panic!("{:?} was not woken: {all:?}", claim.owner),
                }
            }
        }
        all.append(&mut self.all().await);
        let named = |wake: &Notification| match wake {
            Notification::Next(_, id) => these.iter().any(|claim| claim.id == *id),
            Notification::Changed(_) => !these.is_empty(),
            Notification::Gone(..) | Notification::Gap => false,
        };
        assert!(all.iter().all(named), "others were woken too: {all:?}");
    }

    /// Waits for the end of the stream.
    pub async fn end(mut self) {
        let end = async { while self.stream.next().await.is_some() {} };
        timeout(SOON, end).await.expect("the stream of wakes ends");
    }
}

fn concerns(wake: &Notification, lock: &LockName, claim: &NewClaim) -> bool {
    match wake {
        Notification::Next(name, id) | Notification::Gone(name, id) => name == lock && *id == claim.id,
        Notification::Changed(name) => name == lock,
        Notification::Gap => true,
    }
}

/// What somebody sees who watches a lock.
pub struct Watching {
    stream: BoxStream<'static, Result<WatchEvent, BackendError>>,
}

impl Watching {
    /// Begins to watch: the stream and the state that comes first.
    pub async fn begin(stream: BoxStream<'static, Result<WatchEvent, BackendError>>) -> (Self, Queue) {
        let mut watching = Self { stream };
        match watching.next().await {
            WatchEvent::State(queue) => (watching, queue),
            change => panic!("the state does not come first: {change:?}"),
        }
    }

    /// The next change, which must be this one. A full state in between shows a gap, and is passed.
    pub async fn sees(&mut self, kind: ChangeKind, owner: &str) -> Change {
        loop {
            match self.next().await {
                WatchEvent::State(_) => {}
                WatchEvent::Change(change) => {
                    assert_eq!((change.kind, change.claim.owner.as_str()), (kind, owner), "{change:?}");
                    return change;
                }
            }
        }
    }

    /// The first full state of which this is true.
    pub async fn comes_to(&mut self, is_so: impl Fn(&Queue) -> bool) -> Queue {
        loop {
            match self.next().await {
                WatchEvent::State(queue) if is_so(&queue) => return queue,
                _ => {}
            }
        }
    }

    async fn next(&mut self) -> WatchEvent {
        let next = timeout(SOON, self.stream.next()).await;
        next.expect("a message comes")
            .expect("the watch goes on")
            .expect("the store answers")
    }
}
