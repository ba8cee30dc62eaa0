//! How a waiting claim becomes a holder, asked for by the replica that serves it.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Txn, TxnOp};

use super::Replica;
use super::grant::grant_of;
use super::cluster_client::Failure;
use super::snapshot::Snapshot;
use crate::backend::{NewClaim, AcquireOutcome};
use crate::name::{CallId, LockName};

impl Replica {
    /// See [`crate::backend::Backend::promote`].
    pub async fn promote(&self, name: &LockName, new: &NewClaim) -> Result<AcquireOutcome, Failure> {
        let ticket = self.session.ticket().await?;
        let mut known = None;
        if let Some((entry, revision)) = self.scenes.next(name, &new.id)
            && entry.claim.hold(&new.id).is_some_and(|hold| hold.call == new.call)
        {
            match self.grant_waiting(ticket, name, new, (&entry, revision)).await? {
                Ok(grant) => return Ok(AcquireOutcome::Held(grant)),
                Err(survey) => known = Some(survey),
            }
        }
        let survey = match known {
            Some(survey) => survey,
            None => self.survey(ticket, name, new).await?,
        };
        let ticket = match self.holds_good(ticket, &survey) {
            true => ticket,
            false => self.session.ticket().await?,
        };
        let place = match self.place_of(name, new, &survey).await? {
            Some(place) => place,
            None => self.stand(ticket, name, new, survey.view).await?,
        };
        match place {
            AcquireOutcome::Waiting(_) => return Ok(place),
            // What was lost before has granted it, or found no waiter any more.
            AcquireOutcome::Held(_) => drop(self.calls.over(new.call)),
            AcquireOutcome::Cancelled if self.calls.is_settled(new.call) => {
                self.calls.release(new.call);
                self.unmark(new.call);
            }
            // What was lost before finds no waiter any more, or another one.
            AcquireOutcome::Superseded | AcquireOutcome::Gone | AcquireOutcome::Finished(_) => drop(self.calls.over(new.call)),
            AcquireOutcome::Cancelled | AcquireOutcome::Busy(_) | AcquireOutcome::Refused(_) => {}
        }
        self.scenes.part(name, &new.id, new.call);
        Ok(place)
    }

    /// Takes a mark away that has told its call what it had to, and keeps out nothing.
    fn unmark(&self, call: CallId) {
        let (link, mark) = (Arc::clone(&self.link), self.keys.mark(call));
        tokio::spawn(async move {
            if let Err(failure) = link.txn(Txn::new().and_then([TxnOp::delete(mark, None)])).await {
                tracing::debug!(%failure, "a mark stays as long as its session");
            }
        });
    }

    /// Where a claim stands that does not wait for this call; nothing for one that does.
    pub async fn place_of(&self, name: &LockName, new: &NewClaim, survey: &Snapshot) -> Result<Option<AcquireOutcome>, Failure> {
        if survey.marked {
            return Ok(Some(AcquireOutcome::Cancelled));
        }
        let id = survey.view.name_of(&new.id, new.call);
        if let Some(entry) = survey.view.waiters.get(&id) {
            let ours = entry.claim.hold(&id).is_some_and(|hold| hold.call == new.call);
            return Ok((!ours).then_some(AcquireOutcome::Superseded));
        }
        if let Some(entry) = survey.view.holder_with(&id) {
            let Some(hold) = entry.claim.hold(&id).filter(|hold| hold.call == new.call) else {
                return Ok(Some(AcquireOutcome::Superseded));
            };
            let left = self.remaining(entry).await?;
            let left = left.ok_or_else(|| Failure::Unavailable("etcd: a lease is about to end".into()))?;
            self.ends.granted(name, entry);
            return Ok(Some(AcquireOutcome::Held(grant_of(entry, hold.secret, left, Duration::ZERO)?)));
        }
        Ok(Some(survey.ended.map_or(AcquireOutcome::Gone, AcquireOutcome::Finished)))
    }
}
