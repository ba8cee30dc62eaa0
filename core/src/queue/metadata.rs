//! Changes the metadata of a claim that holds.

use crate::name::{LeaseKey, Metadata};
use crate::queue::{ChangeKind, EndedKey, LockState, Refusal, StepContext, UpdateOutcome};

impl LockState {
    /// See [`crate::backend::Backend::update_metadata`].
    pub fn update_metadata(
        &mut self,
        ctx: &mut impl StepContext,
        lease: &LeaseKey,
        metadata: &Metadata,
    ) -> UpdateOutcome {
        let held = self.find_hold(lease);
        let claim = held.and_then(|(position, _)| self.get_mut(position));
        let (Some((position, _)), Some(claim)) = (held, claim) else {
            return UpdateOutcome::Gone(ctx.ended(EndedKey::Lease(lease)));
        };
        if claim.terms.metadata != *metadata {
            if metadata.bytes() > claim.terms.metadata.bytes()
                && let Some(refusal @ Refusal::LockFull { .. }) = ctx.store_limit_reached()
            {
                return UpdateOutcome::Refused(refusal);
            }
            claim.terms.metadata = metadata.clone();
            ctx.saved(position, claim);
            self.changed_at(ctx, ChangeKind::Updated, position);
        }
        UpdateOutcome::Updated
    }
}
