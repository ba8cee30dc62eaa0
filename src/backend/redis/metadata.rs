//! Changes the metadata of a holder. Its description is opaque to the scripts, so it is read first, and replaced only if it
//! is still the one that was read. An update that reaches Redis late therefore never undoes a later one.

use super::answer::{self, UpdateAnswer};
use super::{Core, scripts};
use crate::backend::redis_server::description::ClaimDescription;
use crate::backend::redis_server::failure::{broken, not_sent, unavailable};
use crate::backend::redis_server::script::StepRequirements;
use crate::backend::{BackendError, UpdateOutcome};
use crate::name::{LeaseKey, Metadata};

/// How often an update is retried because another one came between its two steps.
const TRIES: usize = 16;

impl Core {
    /// See [`crate::backend::Backend::update_metadata`].
    pub async fn update_metadata(&self, lease: &LeaseKey, metadata: &Metadata) -> Result<UpdateOutcome, BackendError> {
        let lock = &lease.lock.name;
        let (mut read, mut new, mut needs) = (Vec::new(), Vec::new(), StepRequirements::Nothing);
        for _ in 0..TRIES {
            let args = self.space.update(lease, &read, new);
            let answer = self.call(&scripts::UPDATE, lock, &args, needs).await?;
            match answer::updated(answer.value)? {
                UpdateAnswer::Read(description) => {
                    let known = ClaimDescription::read(&description);
                    let known = known.ok_or_else(|| broken("a claim's description cannot be read"))?;
                    (new, read) = (known.with_metadata(metadata), description);
                    needs = StepRequirements::Grant;
                }
                UpdateAnswer::Done(outcome) => {
                    return match (outcome, answer.unconfirmed) {
                        (UpdateOutcome::Updated, Some(reason)) => Err(unavailable(reason)),
                        (outcome, _) => Ok(outcome),
                    };
                }
            }
        }
        Err(not_sent("the metadata of the lease changes too fast"))
    }
}
