//! The permits of all calls, by kind, identity and peer address.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::Kind;
use crate::api::authenticate::Caller;
use crate::api::capacity::{Capacity, Counted, KINDS, UsageGuard, overloaded};
use crate::api::settings::Settings;
use crate::error::Error;

/// The permits for open calls, by kind.
#[derive(Debug)]
pub(in crate::api) struct Permits {
    kinds: [Limited; KINDS],
    pub(super) drain: CancellationToken,
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
    _identity: Option<UsageGuard>,
    _peer: Option<UsageGuard>,
}

impl Kind {
    /// The index of the kind's permits, below [`KINDS`].
    fn index(self) -> usize {
        match self {
            Self::Acquire => 0,
            Self::Stream | Self::BidiStream => 1,
            Self::OpenStream | Self::OpenBidiStream => 2,
            Self::Finishing => 3,
            Self::Health => 4,
            Self::Other => 5,
        }
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
            ..
        } = *settings;
        Self {
            kinds: [acquires, streams, streams, calls, calls, calls].map(limited),
            drain,
        }
    }

    pub(super) fn admit(&self, kind: Kind, caller: Option<&Caller>) -> Result<Permit, Error> {
        if !kind.is_admitted_while_draining() && self.drain.is_cancelled() {
            return Err(Error::Draining);
        }
        let limited = &self.kinds[kind.index()];
        let counted = Counted::Call(kind.index());
        let identity = caller.and_then(|caller| caller.usage.as_ref());
        let identity = identity.map(|usage| usage.count(counted, limited.of_identity).ok_or("this identity"));
        let peer = caller.and_then(|caller| caller.peer.as_ref()?.usage.as_ref());
        let peer = peer.map(|usage| usage.peer.count(counted, limited.of_peer).ok_or("this address"));
        let of = |whose| overloaded(&format!("{} of {whose}", kind.overload_reason()));
        Ok(Permit {
            _identity: identity.transpose().map_err(of)?,
            _peer: peer.transpose().map_err(of)?,
            _server: limited
                .permits
                .clone()
                .try_acquire_owned()
                .map_err(|_| overloaded(kind.overload_reason()))?,
        })
    }
}
