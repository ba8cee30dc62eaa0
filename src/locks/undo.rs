//! What happens to a claim whose call ends without its answer.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::NamespaceState;
use crate::backend::{ReleaseOutcome, Health, ReleaseTarget, NewClaim};
use crate::error::Error;
use crate::name::{CallId, ClaimId, LockName};

/// How soon a store that failed is asked again, if its health tells nothing: at first, and after a
/// while.
const AGAIN: Duration = Duration::from_millis(200);
const AT_LAST: Duration = Duration::from_secs(10);

/// Undoes a call when it is dropped: its claim leaves the queue, its grant is taken back (unless a
/// retry has found it). The undo runs in a task of its own, so that it survives the call.
#[derive(Debug)]
pub struct Undo {
    state: Arc<NamespaceState>,
    call: CallToUndo,
    armed: bool,
}

/// What an undo must know of a call that entered a claim.
#[derive(Debug, Clone)]
struct CallToUndo {
    lock: LockName,
    claim: ClaimId,
    call: CallId,
}

impl Undo {
    /// Undoes this claim's call when dropped, from now on.
    pub fn armed(state: &Arc<NamespaceState>, lock: &LockName, claim: &NewClaim) -> Self {
        Self {
            state: Arc::clone(state),
            call: CallToUndo {
                lock: lock.clone(),
                claim: claim.id,
                call: claim.call,
            },
            armed: true,
        }
    }

    /// There is nothing to undo: the call left nothing behind, or its answer was handed over.
    pub fn disarm(mut self) {
        self.armed = false;
    }

    /// Undoes the call now and says what was found. Still armed until it has succeeded.
    ///
    /// # Errors
    /// When the store failed; whether the call's claim is still there is unknown then.
    pub async fn run(&mut self) -> Result<ReleaseOutcome, Error> {
        let departure = release(&self.state, &self.call).await?;
        self.armed = false;
        Ok(departure)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let insist = insist(Arc::clone(&self.state), self.call.clone());
        self.state.undos.spawn_on(insist, &self.state.runtime);
    }
}

async fn release(state: &Arc<NamespaceState>, entered: &CallToUndo) -> Result<ReleaseOutcome, Error> {
    // It names nobody as the next: a waiter that leaves seldom makes room, and wakes are for the rest.
    let who = ReleaseTarget::Call(&entered.claim, entered.call);
    Ok(state.backend.release(&entered.lock, who, None).await?)
}

/// Undoes a call: tries until it succeeds, however long that takes, for a store that comes back may
/// bring its waiters along. A store that is known to be away refuses new calls, which leave nothing to
/// undo, so there are never more of these tasks than calls that were under way when it went. No guard
/// watches over them: when the runtime ends under them, there is nobody left to undo for.
async fn insist(state: Arc<NamespaceState>, entered: CallToUndo) {
    let mut health = state.backend.health();
    let mut again = AGAIN;
    while let Err(error) = release(&state, &entered).await {
        tokio::select! {
            () = state.closed.cancelled() => {
                tracing::warn!(lock = %entered.lock, %error, "closed before a call was undone");
                return;
            }
            () = came_back(&mut health) => {}
            () = tokio::time::sleep(again) => {}
        }
        again = (again * 2).min(AT_LAST);
    }
}

/// Returns when the store has changed to a state in which it answers.
async fn came_back(health: &mut watch::Receiver<Health>) {
    while health.changed().await.is_ok() {
        if !matches!(*health.borrow_and_update(), Health::Unavailable { .. }) {
            return;
        }
    }
    pending().await
}
