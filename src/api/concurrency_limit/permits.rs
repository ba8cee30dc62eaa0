//! The permits of all calls, by kind, identity and peer address.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::Kind;
use crate::api::authenticate::Caller;
use crate::api::capacity::{Capacity, Counted, KINDS, Usage, overloaded};
use crate::api::settings::Settings;
use crate::error::Error;
use crate::usage::InUse;

/// The permits for open calls, by kind.
#[derive(Debug)]
pub(in crate::api) struct Permits {
    kinds: [Limited; KINDS],
    kept_leases: Limited,
    /// At most half of the kept leases, so that waits leave places for leases that are held.
    waits_to_keep: Limited,
    pub(in crate::api) drain: CancellationToken,
    /// The maximum size of a request.
    pub(in crate::api) request_bytes: usize,
}

/// The permits of a kind, and how many of them one identity and one peer address may take.
#[derive(Debug)]
struct Limited {
    permits: Arc<Semaphore>,
    of_identity: usize,
    of_peer: usize,
}

/// The permit of one call.
#[derive(Debug)]
pub(in crate::api) struct Permit {
    _server: OwnedSemaphorePermit,
    _identity: Option<InUse<Usage>>,
    _peer: Option<InUse<Usage>>,
}

impl Kind {
    /// The index of the kind's permits, below [`KINDS`].
    fn index(self) -> usize {
        match self {
            Self::Acquire => 0,
            Self::Stream | Self::BidiStream | Self::Session => 1,
            Self::OpenStream | Self::OpenBidiStream => 2,
            Self::Finishing => 3,
            Self::Health => 4,
            Self::Other => 5,
        }
    }
}

impl Limited {
    fn take(&self, what: Counted, number: usize, caller: Option<&Caller>, reason: &str) -> Result<Permit, Error> {
        let identity = caller.and_then(|caller| caller.usage.as_ref());
        let identity = identity.map(|usage| InUse::count(usage, what, number, self.of_identity).ok_or("this identity"));
        let peer = caller.and_then(|caller| caller.peer.as_ref()?.usage.as_ref());
        let peer = peer.map(|usage| InUse::count(&usage.peer, what, number, self.of_peer).ok_or("this address"));
        let of = |whose| overloaded(&format!("{reason} of {whose}"));
        let permits = u32::try_from(number).unwrap_or(u32::MAX);
        let server = Arc::clone(&self.permits).try_acquire_many_owned(permits);
        Ok(Permit {
            _identity: identity.transpose().map_err(of)?,
            _peer: peer.transpose().map_err(of)?,
            _server: server.map_err(|_| overloaded(reason))?,
        })
    }
}

impl Permits {
    /// The permits that the settings define. After `drain`, only some kinds are admitted.
    pub(in crate::api) fn new(settings: &Settings, capacity: &Capacity, drain: CancellationToken) -> Self {
        let limited = |limit: usize| Limited {
            permits: Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS))),
            of_identity: capacity.identity_share(limit),
            of_peer: capacity.peer_share(limit),
        };
        let Settings {
            max_acquires: acquires,
            max_streams: streams,
            max_calls: calls,
            max_kept_leases,
            ..
        } = *settings;
        Self {
            kept_leases: limited(max_kept_leases),
            waits_to_keep: limited((max_kept_leases / 2).max(1)),
            kinds: [acquires, streams, streams, calls, calls, calls].map(limited),
            drain,
            request_bytes: settings.request_bytes,
        }
    }

    /// Cancelled when the streams of a caller have to end: those of its connection, or all.
    pub(in crate::api) fn drain_of<'a>(&'a self, caller: Option<&'a Caller>) -> &'a CancellationToken {
        caller.and_then(Caller::ending).unwrap_or(&self.drain)
    }

    /// Takes the permit of a call.
    ///
    /// # Errors
    /// OVERLOADED at a limit, and DRAINING.
    pub(in crate::api) fn admit(&self, kind: Kind, caller: Option<&Caller>) -> Result<Permit, Error> {
        if !kind.is_admitted_while_draining() && self.drain.is_cancelled() {
            return Err(Error::Draining);
        }
        let counted = Counted::Call(kind.index());
        self.kinds[kind.index()].take(counted, 1, caller, kind.overload_reason())
    }

    /// Takes the permit of a call to keep so many leases.
    ///
    /// # Errors
    /// OVERLOADED at a limit.
    pub(in crate::api) fn keep(&self, leases: usize, caller: &Caller) -> Result<Permit, Error> {
        self.kept_leases
            .take(Counted::KeptLease, leases, Some(caller), "too many leases are kept")
    }

    /// Takes the permit of an Acquire to wait for a lease that its stream will keep, in addition to [`Self::keep`].
    ///
    /// # Errors
    /// OVERLOADED at a limit.
    pub(in crate::api) fn wait_to_keep(&self, caller: &Caller) -> Result<Permit, Error> {
        let reason = "too many Acquires wait for leases to keep";
        self.waits_to_keep.take(Counted::WaitToKeep, 1, Some(caller), reason)
    }
}
