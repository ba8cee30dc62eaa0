//! Changes the metadata of a claim that holds.

use super::namespace_state::NamespaceState;
use super::txn_context::TxnContext;
use crate::backend::{ChangeKind, UpdateOutcome};
use crate::name::{LeaseKey, Metadata};

impl NamespaceState {
    /// See [`crate::backend::Backend::update_metadata`].
    pub fn update_metadata(&mut self, ctx: &mut TxnContext, lease: &LeaseKey, metadata: &Metadata) -> UpdateOutcome {
        let name = &lease.lock.name;
        let position = self.find_token(name, lease.token);
        let held = position.filter(|at| {
            self.locks
                .get(name)
                .is_some_and(|lock| lock.hold_of(*at, lease).is_some())
        });
        let claim = held.and_then(|position| self.claim_mut(name, position));
        let (Some(position), Some(claim)) = (held, claim) else {
            return UpdateOutcome::Gone(self.cause_of(name, lease));
        };
        if claim.terms.metadata != *metadata {
            claim.terms.metadata = metadata.clone();
            self.save(ctx, name, position);
            self.changed_at(ctx, name, ChangeKind::Updated, position);
        }
        UpdateOutcome::Updated
    }
}
