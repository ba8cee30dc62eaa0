//! Promotes a waiting claim to a holder, on request of the replica that serves its call.

use std::sync::Arc;
use std::time::Duration;

use futures::future::FutureExt;

use super::inspect::read_all;
use super::{Replica, TRIES, grant_of, outcome_of};
use crate::backend::tree::data::child::Child;
use crate::backend::tree::data::record::{Claim, Memory};
use crate::backend::tree::data::view::View;
use crate::backend::tree::fenced_connection::FencedConnection;
use crate::backend::tree::store::{ANY, Failure, Op};
use crate::backend::{AcquireOutcome, NewClaim, QueuePosition};
use crate::name::LockName;

/// The most holders whose leases are read.
const READ: usize = 256;

impl Replica {
    /// See [`crate::backend::Backend::promote`].
    pub async fn promote(&self, lock: &LockName, new: &NewClaim) -> Result<AcquireOutcome, Failure> {
        let outcome = outcome_of(self.promote_now(lock, new).await)?;
        self.calls.note_outcome(new.call, &outcome);
        Ok(outcome)
    }

    async fn promote_now(&self, lock: &LockName, new: &NewClaim) -> Result<AcquireOutcome, Failure> {
        let connection = self.connections.ready().await?;
        self.table.suppress_notification(lock, new.call);
        let known = self.table.own(lock, new.call).and_then(|own| {
            let is_next = self.table.ask(lock, &connection, |view| view.is_next(&own.name, None));
            (is_next == Some(true)).then_some(own.name)
        });
        if let Some(waiter) = known
            && let Some(grant) = self.grant_waiter(lock, new, &waiter, &connection).await?
        {
            return Ok(AcquireOutcome::Held(grant));
        }
        // What another replica released before this call makes room.
        let connection = self.connections.ready().await?;
        let view = self.list_now(&connection, lock).await?;
        self.promote_from_view(lock, new, connection, view).await
    }

    /// The outcome of a call by a list of its lock, in which it may wait.
    pub async fn promote_from_view(
        &self,
        lock: &LockName,
        new: &NewClaim,
        mut connection: Arc<FencedConnection>,
        mut view: Arc<View>,
    ) -> Result<AcquireOutcome, Failure> {
        for _ in 0..TRIES {
            if self.calls.is_cancelled(new.call) {
                return Ok(AcquireOutcome::Cancelled);
            }
            match view.of_call(new.call) {
                None => return self.outcome_without_claim(lock, new, &connection, &view).await,
                Some(holder) if holder.holds() => {
                    if let Some(outcome) = self.grant_again(lock, new, &connection, holder).await? {
                        return Ok(outcome);
                    }
                }
                Some(waiter) if !view.is_next(&waiter.name, None) => {
                    let own = self.table.own(lock, new.call);
                    if own.is_some_and(|own| own.session == connection.session) {
                        return self.wait(lock, new, &connection, (waiter, &view)).await;
                    }
                    self.move_waiter(lock, new, &connection, waiter).await?;
                }
                Some(waiter) => {
                    if let Some(grant) = self.grant_waiter(lock, new, &waiter.name, &connection).await? {
                        return Ok(AcquireOutcome::Held(grant));
                    }
                }
            }
            connection = self.connections.ready().await?;
            view = self.table.list(lock, &connection).await?;
        }
        Err(Failure::Contended)
    }

    /// Moves a waiter that an earlier session of this replica has enqueued to the present one, with its place: it would
    /// end with that session, and its call would not be notified. The lock may have changed before.
    async fn move_waiter(
        &self,
        lock: &LockName,
        new: &NewClaim,
        connection: &FencedConnection,
        waiter: &Child,
    ) -> Result<(), Failure> {
        let Some(known) = self.read_waiter(connection, lock, waiter).await? else {
            return Ok(());
        };
        let claim = Claim::of_waiter(new, &known);
        let old = vec![Op::delete(self.child(lock, &waiter.name), ANY)];
        let read_over = Some(connection.generation);
        self.put_waiter(lock, new, (&claim, waiter.place()), (old, read_over), &mut None)
            .await?;
        Ok(())
    }

    async fn wait(
        &self,
        lock: &LockName,
        new: &NewClaim,
        connection: &FencedConnection,
        (waiter, view): (&Child, &View),
    ) -> Result<AcquireOutcome, Failure> {
        let holders = view.holders().iter().take(READ);
        let leases = read_all(holders.map(|holder| self.shown_holder(connection, lock, holder).boxed())).await?;
        let frees_in = leases
            .into_iter()
            .flatten()
            .map(|lease| self.leases.remaining(&lease))
            .min();
        self.table.allow_notification(lock, new.call);
        Ok(AcquireOutcome::Waiting(QueuePosition {
            position: waiter.place().map_or(0, |place| place.position()),
            frees_in,
        }))
    }

    /// The outcome of a call that already holds. None if its holder has changed.
    async fn grant_again(
        &self,
        lock: &LockName,
        new: &NewClaim,
        connection: &FencedConnection,
        holder: &Child,
    ) -> Result<Option<AcquireOutcome>, Failure> {
        let Some(lease) = self.read_holder(connection, lock, holder).await? else {
            return Ok(None);
        };
        let Some(hold) = lease.claim.hold_of_call(new.call) else {
            let is_found = lease.claim.hold(&new.id).is_some();
            return Ok(Some(if is_found {
                AcquireOutcome::Superseded
            } else {
                AcquireOutcome::Gone
            }));
        };
        if self.calls.is_unknown(new.call) && hold.callers.adopted {
            // Another call has found it, and its client counts on this token.
            return Ok(Some(AcquireOutcome::Superseded));
        }
        if self.calls.is_unknown(new.call) {
            let granted = self.grant_with_new_token(lock, new, &lease, connection).await?;
            return Ok(granted.map(AcquireOutcome::Held));
        }
        self.table.remove_own_waiter(lock, new.call);
        let grant = grant_of(&lease, hold, self.leases.remaining(&lease), Duration::ZERO);
        Ok(Some(AcquireOutcome::Held(grant)))
    }

    /// The outcome of a call that neither waits nor holds.
    async fn outcome_without_claim(
        &self,
        lock: &LockName,
        new: &NewClaim,
        connection: &FencedConnection,
        view: &View,
    ) -> Result<AcquireOutcome, Failure> {
        if let Some(outcome) = self.joined_hold(lock, new, connection, view).await? {
            return Ok(outcome);
        }
        let own = self.table.remove_own_waiter(lock, new.call);
        if new.retryable && view.of_claim(&new.id).is_some() {
            return Ok(AcquireOutcome::Superseded);
        }
        let waited = own.is_some_and(|own| own.session == connection.session);
        // It was not granted by a step whose answer was lost, and did not end with its session: so another call has taken
        // its place out. The session is looked at after the list.
        if waited && !self.calls.is_unknown(new.call) && self.connections.is_session_alive(connection).await? {
            self.calls.cancel(new.call);
            return Ok(AcquireOutcome::Cancelled);
        }
        if new.retryable {
            let request = self.paths.request(lock, new.id);
            if let Some((Some(Memory::Ended(end)), _)) = self.history.read(connection.generation, &request).await? {
                return Ok(AcquireOutcome::Finished(end.cause));
            }
        }
        Ok(AcquireOutcome::Gone)
    }

    /// The hold of a call that has joined another claim.
    async fn joined_hold(
        &self,
        lock: &LockName,
        new: &NewClaim,
        connection: &FencedConnection,
        view: &View,
    ) -> Result<Option<AcquireOutcome>, Failure> {
        let reentrant = view.holders().iter().filter(|holder| new.reentrant && holder.reentrant);
        for holder in reentrant {
            let lease = self.read_holder(connection, lock, holder).await?;
            if let Some(lease) = lease
                && let Some(hold) = lease.claim.hold_of_call(new.call)
            {
                let grant = grant_of(&lease, hold, self.leases.remaining(&lease), Duration::ZERO);
                return Ok(Some(AcquireOutcome::Held(grant)));
            }
        }
        Ok(None)
    }
}
