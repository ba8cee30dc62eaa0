//! Converts what happens on a session to its events.

use std::time::Duration;

use prost::Message as _;
use tonic::Status;

use super::outbox::Outgoing;
use crate::api::access::CountedGrant;
use crate::api::grant_delivery::Deliver;
use crate::api::proto::session_event::command_result::Outcome;
use crate::api::proto::session_event::{Ask, CommandError, CommandResult, Event, Kept, LeaseError, LeaseTtl, Lost};
use crate::api::proto::{self, SessionEvent};
use crate::api::{convert, status};
use crate::backend::BackendError;
use crate::error::Error;
use crate::session::{Message, NotRenewed};

/// The answer to a command.
#[derive(Debug)]
pub(super) enum Answer {
    Granted(Box<CountedGrant>),
    GrantedAll(Vec<CountedGrant>),
    /// Any other.
    Other(Outcome),
}

/// An event.
pub(super) fn event(event: Event) -> SessionEvent {
    SessionEvent { event: Some(event) }
}

/// The result of a command.
pub(super) fn result(id: u64, answer: Result<Answer, Status>) -> Outgoing {
    let (outcome, granted): (_, Option<Box<dyn Deliver>>) = match answer {
        Ok(Answer::Granted(granted)) => {
            let lease = Some(convert::lease(granted.lease()));
            (Outcome::Acquire(proto::AcquireResponse { lease }), Some(granted))
        }
        Ok(Answer::GrantedAll(granted)) => {
            let leases = granted.iter().map(|granted| convert::lease(granted.lease())).collect();
            let answer = proto::AcquireAllResponse { leases };
            (Outcome::AcquireAll(answer), Some(Box::new(granted)))
        }
        Ok(Answer::Other(outcome)) => (outcome, None),
        Err(status) => (Outcome::Error(error(&status)), None),
    };
    let result = CommandResult {
        id,
        outcome: Some(outcome),
    };
    Outgoing {
        event: event(Event::Result(result)),
        granted,
    }
}

/// The result of a command that failed.
pub(super) fn failed(id: u64, error: impl Into<Error>) -> Outgoing {
    result(id, Err(status::of(error)))
}

/// The details of a status are encoded as a google.rpc.Status, which has the same fields. What a call has in trailers, a
/// result has in fields of its own.
fn error(status: &Status) -> CommandError {
    let decoded = CommandError::decode(status.details()).unwrap_or_default();
    let trailer = |name| status.metadata().get(name).and_then(|value| value.to_str().ok());
    CommandError {
        code: status.code().into(),
        message: status.message().into(),
        details: decoded.details,
        reason: trailer(status::REASON_TRAILER).unwrap_or_default().into(),
        cause: trailer(status::CAUSE_TRAILER).unwrap_or_default().into(),
    }
}

/// A message about the attached leases.
pub(super) fn of_leases(message: Message) -> Event {
    match message {
        Message::Ask => Event::Ask(Ask {}),
        Message::Kept {
            beat,
            not_renewed,
            new_ttls,
            ..
        } => Event::Kept(Kept {
            id: beat,
            not_renewed: not_renewed.into_iter().map(not_kept).collect(),
            new_ttls: new_ttls.into_iter().map(lease_ttl).collect(),
        }),
        Message::Lost { lease_id, error } => {
            let (reason, cause) = status::reason_and_cause(&error);
            Event::Lost(Lost {
                lease_id,
                reason,
                cause,
            })
        }
    }
}

fn not_kept(NotRenewed { lease_id, error }: NotRenewed) -> LeaseError {
    let error = error.unwrap_or_else(|| {
        let reason = "the store did not answer in time".into();
        Error::Backend(BackendError::Unavailable { reason })
    });
    lease_error(lease_id, &error)
}

fn lease_ttl((lease_id, ttl): (String, Duration)) -> LeaseTtl {
    LeaseTtl {
        lease_id,
        ttl: Some(convert::wire_duration(ttl)),
    }
}

/// What happened to a lease.
pub(super) fn lease_error(lease_id: String, error: &Error) -> LeaseError {
    let (reason, cause) = status::reason_and_cause(error);
    LeaseError {
        lease_id,
        reason,
        cause,
    }
}
