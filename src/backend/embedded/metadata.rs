//! Changes the metadata of a claim that holds.

use super::namespace_state::NamespaceState;
use super::txn_context::TxnContext;
use crate::backend::{ChangeKind, UpdateOutcome};
use crate::name::{LeaseKey, Metadata};

impl NamespaceState {
    /// See [`crate::backend::Backend::update_metadata`].
    pub fn update_metadata(&mut self, ctx: &mut TxnContext, lease: &LeaseKey, metadata: &Metadata) -> UpdateOutcome {
        let name = &lease.lock.name;
        let held = self.find_hold(name, lease);
        let claim = held.and_then(|(position, _)| self.claim_mut(name, position));
        let (Some((position, _)), Some(claim)) = (held, claim) else {
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
