//! Changes the metadata of a claim that holds.

use crate::name::{LeaseKey, Metadata};
use crate::queue::{ChangeKind, EndedKey, LockState, Refusal, StepContext, StreamNumber, UpdateOutcome};

impl LockState {
    /// See [`crate::backend::Backend::update_metadata`].
    pub fn update_metadata(
        &mut self,
        ctx: &mut impl StepContext,
        lease: &LeaseKey,
        metadata: &Metadata,
        stream: Option<StreamNumber>,
    ) -> UpdateOutcome {
        let held = self.find_hold(lease);
        let claim = held.and_then(|(position, _)| self.get_mut(position));
        let (Some((position, index)), Some(claim)) = (held, claim) else {
            return UpdateOutcome::Gone(ctx.ended(EndedKey::Lease(lease)));
        };
        let Some(hold) = claim.holding_mut().and_then(|holding| holding.holds.get_mut(index)) else {
            return UpdateOutcome::Gone(None);
        };
        if hold.callers.supersede(stream) {
            return UpdateOutcome::Superseded;
        }
        if hold.callers.note(stream) {
            ctx.saved(position, claim);
        }
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
