//! Passwords and certificates of stores that change while calls are under way.

#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(all(feature = "redis", feature = "redlock"))]
mod redlock;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fencepost::api::proto::Lease;
use tempfile::TempDir;
use tonic::Status;

use crate::observe::asks::{living, reason};
use crate::observe::calls::Calls;
use crate::observe::fixture::{Fixture, ask, eventually};
use crate::observe::server::PATIENCE;

pub const APPLIED: &str = "fencepost_config_reloads_total";
pub const FAILED: &str = "fencepost_config_reload_failed";
const HEALTHY: &str = "fencepost_backend_healthy";
/// For how long a lock stays taken whose release was lost.
const SHORT: Duration = Duration::from_secs(2);

/// A file in a folder of the test's own.
pub fn file(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    replace(&path, text);
    path
}

/// Puts another file in its place.
pub fn replace(path: &Path, text: impl AsRef<[u8]>) {
    let next = path.with_extension("next");
    fs::write(&next, text).expect("a file");
    fs::rename(&next, path).expect("the swap");
}

/// A server with the namespace `far` over a store, which serves when this returns.
pub async fn served(store: &str) -> Fixture {
    let fixture = Fixture::start(&format!("[namespaces.far]\n{store}")).await;
    serves(&fixture).await;
    fixture
}

/// Waits until the namespace serves.
pub async fn serves(fixture: &Fixture) {
    fixture.shows(HEALTHY, &[("namespace", "far")], 1.0).await;
}

/// Waits until the namespace does not.
pub async fn fails(fixture: &Fixture) {
    fixture.shows(HEALTHY, &[("namespace", "far")], 0.0).await;
}

/// Waits until a lock is granted: a moment after a connection was cut it may not be.
pub async fn grants(fixture: &Fixture) {
    let granted = tokio::time::timeout(PATIENCE, async {
        while let Err(status) = fixture.calls.try_acquire(ask("far", "a", "o")).await {
            assert!(is_unavailable(&status), "{status:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(granted.await.is_ok(), "not within {PATIENCE:?}");
}

/// A lease that is renewed all along, beside somebody who takes another lock and gives it back.
pub struct Kept {
    calls: Calls,
    lease: Lease,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    away: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Kept {
    pub async fn begin(fixture: &Fixture) -> Self {
        let (calls, stop) = (fixture.calls.clone(), Arc::<AtomicBool>::default());
        let (done, away) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let lease = calls
            .acquire(living(Duration::from_secs(60), ask("far", "kept", "keeper")))
            .await;
        let task = tokio::spawn({
            let (calls, lease) = (calls.clone(), lease.clone());
            let (stop, done, away) = (Arc::clone(&stop), Arc::clone(&done), Arc::clone(&away));
            async move {
                while !stop.load(Ordering::Relaxed) {
                    let other = async {
                        let other = calls
                            .try_acquire(living(SHORT, ask("far", "other", "passer-by")))
                            .await?;
                        calls.try_release(&other).await
                    };
                    let (renewed, passed) = tokio::join!(calls.try_renew(&lease, None), other);
                    let failed: Vec<Status> = [renewed.err(), passed.err()].into_iter().flatten().collect();
                    assert!(failed.iter().all(is_unavailable), "{failed:?}");
                    match failed.is_empty() {
                        true => done.fetch_add(1, Ordering::Relaxed),
                        false => away.fetch_add(1, Ordering::Relaxed),
                    };
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        });
        Self {
            calls,
            lease,
            stop,
            done,
            away,
            task,
        }
    }

    /// Waits until some more calls have succeeded.
    pub async fn goes_on(&self) {
        let before = self.done.load(Ordering::Relaxed);
        eventually("calls go on", || self.done.load(Ordering::Relaxed) > before + 10).await;
    }

    /// How many times calls failed, for the store was away.
    pub fn failed(&self) -> u64 {
        self.away.load(Ordering::Relaxed)
    }

    /// Ends it: the lease was never lost.
    pub async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("no call failed in another way");
        self.calls.release(&self.lease).await;
    }
}

/// The store was away, or is back and has a lock whose release was lost.
fn is_unavailable(status: &Status) -> bool {
    ["BACKEND_UNAVAILABLE", "NO_QUORUM", "LOCK_HELD"].contains(&reason(status).as_str())
}
