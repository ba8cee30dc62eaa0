//! Finds out what became of a commit.

use std::time::Duration;

use tokio::time::sleep;

use super::{PAUSE, Settled, Worker};
use crate::backend::BackendError;
use crate::backend::record::root::LockRecord;
use crate::backend::record::store::{Commit, Committed, Found, FoundRoot};
use crate::backend::record::verb::Pending;

/// Verbs behind an unsettled commit fail once they have waited so long while the store does not answer.
const PATIENCE: Duration = Duration::from_secs(1);

impl Worker {
    /// Sends a commit until its outcome is known, or the store refuses it. The same bytes are sent again while the version
    /// that they expect is there: at most one of the copies takes effect.
    pub(super) async fn settle(&mut self, commit: Commit, batch: &mut [Pending]) -> Settled {
        let mut is_unknown = false;
        let mut pause = PAUSE.0;
        loop {
            let error = match self.core.store.commit(commit.clone()).await {
                Ok(Committed::Applied(stamp)) => return Settled::Applied(stamp, None),
                Ok(Committed::Unconfirmed(stamp, reason)) => return Settled::Applied(stamp, Some(reason)),
                Ok(Committed::Refused(found)) => match self.outcome(found, &commit, is_unknown) {
                    Ok(settled) => return settled,
                    Err(found) => return Settled::Refused(found),
                },
                Err(error) if error.is_without_effect() => return Settled::Failed(error),
                Err(error) => error,
            };
            tracing::debug!(lock = %commit.lock, %error, "a commit was not answered");
            is_unknown = true;
            // Whatever is found: it may have taken effect before others did, and its verbs find that when they run again.
            batch.iter_mut().for_each(|pending| pending.unsettled = true);
            let mut failed = Some(error);
            while let Some(error) = failed {
                self.fail_impatient(&error);
                sleep(pause).await;
                pause = (2 * pause).min(PAUSE.1);
                failed = match self.core.store.read(&commit.lock, None).await {
                    Ok(found) => match self.outcome(found, &commit, true) {
                        Ok(settled) => return settled,
                        Err(_) => None,
                    },
                    Err(error) => Some(error),
                };
            }
        }
    }

    /// What a root that was found says of a commit; the root again if it says nothing, because the expected version is
    /// still there.
    fn outcome(&self, found: Found, commit: &Commit, is_unknown: bool) -> Result<Settled, Found> {
        let version = match &found.root {
            FoundRoot::Absent => None,
            FoundRoot::Known => commit.expected,
            FoundRoot::Root(root) if root.version == commit.version => {
                if !self.core.store.confirms() {
                    return Ok(Settled::Applied(root.stamp, None));
                }
                // Its verbs run again, and have it confirmed by a write.
                self.entry.state.lock().unconfirmed = true;
                return Ok(Settled::Overwritten(found));
            }
            FoundRoot::Root(root) => Some(root.version),
        };
        let log = match &found.root {
            FoundRoot::Root(root) if is_unknown => LockRecord::read_log(root),
            _ => Vec::new(),
        };
        if log.contains(&commit.version) {
            return Ok(Settled::Overwritten(found));
        }
        if !is_unknown {
            return Ok(Settled::Refused(found));
        }
        let mut state = self.entry.state.lock();
        if version == commit.expected || commit.expected.is_none() {
            state.unsettled.add(commit.expected);
        }
        match version == commit.expected {
            true => Err(found),
            false => Ok(Settled::Refused(found)),
        }
    }

    /// Fails these verbs.
    pub(super) fn fail(&mut self, batch: Vec<Pending>, error: &BackendError) {
        self.contention.failed();
        batch.into_iter().for_each(|pending| pending.fail(error));
    }

    /// Fails the verbs that have waited for long behind a commit that cannot be settled.
    fn fail_impatient(&self, error: &BackendError) {
        let mut state = self.entry.state.lock();
        while state
            .queue
            .front()
            .is_some_and(|pending| pending.arrived.elapsed() >= PATIENCE)
        {
            if let Some(pending) = state.pop() {
                pending.fail(error);
            }
        }
    }
}
