//! The errors of a store, each from its reason.

use crate::backend::BackendError;

/// The store is unavailable for this reason; the outcome of the step is unknown.
pub fn unavailable(reason: impl ToString) -> BackendError {
    BackendError::Unavailable {
        reason: reason.to_string(),
    }
}

/// The store is unavailable for this reason and the step was not sent: it had no effect.
pub fn not_sent(reason: impl ToString) -> BackendError {
    BackendError::NotSent {
        reason: reason.to_string(),
    }
}

/// The store returned an invalid reply.
pub fn broken(reason: impl ToString) -> BackendError {
    BackendError::Broken {
        reason: reason.to_string(),
    }
}
