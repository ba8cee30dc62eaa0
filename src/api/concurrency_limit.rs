//! Limits how many calls of each kind are open, and which calls are admitted while the server drains.
//!
//! The kinds have separate limits. Therefore waiting Acquires, or reads of a hanging store, cannot block a Renew or a
//! Release, and unauthenticated calls cannot block authenticated ones. Each identity and each peer address has a share
//! of each limit. A call takes its permit when its headers arrive, so its message must follow within 5 s, except on a
//! stream of messages. It returns the permit when its answer is ready, even if the client reads it later.

use std::sync::Arc;

use http::{Extensions, Request};
use tonic::body::Body;

pub(super) use self::beats::{BEAT_BYTES, MessageBounds};
pub(super) use self::body::{CallBody, CallTerms};
use self::body::{CallPermit, until_drain, with_message_timeout};
pub(super) use self::permits::{Permit, Permits};
use super::authenticate::Caller;
use super::capacity::{ByteCounters, ReceivedBy, UnsentAnswers};
use crate::error::Error;
use crate::rpc::{Method, path};

mod beats;
mod body;
mod permits;

/// The kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// May wait as long as its caller wants.
    Acquire,
    /// A stream that lasts until one side ends it.
    Stream,
    /// Renew, Release, ReleaseAll and Resign, with which clients keep or end their leases.
    Finishing,
    /// A health check, possibly unauthenticated.
    Health,
    /// A stream of the health service, possibly unauthenticated.
    OpenStream,
    /// A stream in both directions.
    BidiStream,
    /// A Session. It is a stream in both directions that ends itself when the server drains.
    Session,
    /// A bidirectional stream of the reflection service, possibly unauthenticated.
    OpenBidiStream,
    /// Any other call; short.
    Other,
}

impl Kind {
    /// The kind of the method at a path such as `/fencepost.v1.LockService/Acquire`.
    pub(super) fn of(path: &str) -> Self {
        match path {
            path::SESSION => Self::Session,
            path::ACQUIRE | path::ACQUIRE_ALL | path::CAMPAIGN => Self::Acquire,
            path::RENEW | path::RELEASE | path::RELEASE_ALL | path::RESIGN => Self::Finishing,
            "/grpc.health.v1.Health/Check" => Self::Health,
            "/grpc.health.v1.Health/Watch" => Self::OpenStream,
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => Self::OpenBidiStream,
            path => match Method::at(path) {
                Some(method) if method.takes_stream => Self::BidiStream,
                Some(method) if method.streams => Self::Stream,
                _ => Self::Other,
            },
        }
    }

    /// Whether the call is a stream, which ends when the server drains.
    pub(super) fn is_stream(self) -> bool {
        matches!(
            self,
            Self::Stream | Self::BidiStream | Self::Session | Self::OpenStream | Self::OpenBidiStream
        )
    }

    /// Whether the client may send several messages.
    pub(super) fn takes_stream(self) -> bool {
        matches!(self, Self::BidiStream | Self::Session | Self::OpenBidiStream)
    }

    /// Whether the call is admitted while the server drains.
    fn is_admitted_while_draining(self) -> bool {
        matches!(self, Self::Finishing | Self::Health)
    }

    /// The reason in the error OVERLOADED.
    fn overload_reason(self) -> &'static str {
        match self {
            Self::Acquire => "too many Acquire calls are open",
            kind if kind.is_stream() => "too many streams are open",
            _ => "too many calls are open",
        }
    }
}

impl Permits {
    /// Admits a call: its request with a limit for its message, and the terms of its answer.
    ///
    /// # Errors
    /// OVERLOADED at a limit, and DRAINING.
    pub(super) fn begin(self: &Arc<Self>, mut request: Request<Body>) -> Result<(Request<Body>, CallTerms), Error> {
        let kind = Kind::of(request.uri().path());
        let received: Option<ReceivedBy> = request.extensions_mut().remove();
        let caller = request.extensions().get::<Caller>();
        if let (Some(received), Some(identity)) = (received, caller.and_then(|caller| caller.usage.as_ref())) {
            received.count_for(identity);
        }
        let permit = self.admit(kind, caller)?;
        let byte_counters = byte_counters(request.extensions(), caller);
        let drain = self.drain_of(caller).clone();
        let ends_itself = kind == Kind::Session;
        let until = (kind.is_stream() && !ends_itself).then_some(&drain);
        let permit = CallPermit::new(permit, kind.is_stream(), until);
        let request = match kind {
            Kind::Session => request,
            Kind::BidiStream => until_drain(beats::counted(request, self), &drain),
            Kind::OpenBidiStream => until_drain(request, &drain),
            Kind::Stream | Kind::OpenStream => until_drain(with_message_timeout(request), &drain),
            _ => with_message_timeout(request),
        };
        let terms = CallTerms {
            permit: Some(permit),
            byte_counters,
        };
        Ok((request, terms))
    }
}

/// The stream, or else the connection, and the identity for which a call's unsent answers count.
pub(super) fn byte_counters(extensions: &Extensions, caller: Option<&Caller>) -> Option<ByteCounters> {
    let stream = extensions.get::<Arc<UnsentAnswers>>();
    let usage = caller.and_then(|caller| caller.peer.as_ref()?.usage.as_ref());
    let answers = stream.or_else(|| usage.map(|usage| &usage.answers))?;
    Some(ByteCounters {
        answers: Arc::clone(answers),
        identity: caller.and_then(|caller| caller.usage.clone()),
    })
}

#[cfg(test)]
mod tests;
