//! Counts the resources that each identity, each peer address and each connection uses, so that none of them can use
//! all of the server's capacity.
//!
//! By default one identity, and one peer address, may use half of each resource: calls of each kind, connections,
//! unsent bytes. The share is relative, so that a service alone on a server can use it. Behind one proxy, set
//! `peer_share = 100`.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::peer::Peer;
use super::settings::Settings;
use crate::error::Error;
use crate::metrics::ServerMetrics;
use crate::name::Identity;
use crate::usage::{Counters, InUse};

mod received;
mod unsent;
mod watch;

pub(super) use self::received::{ReceivedBy, ReceivedBytes};
pub(super) use self::unsent::{ByteCounters, CountedData, QueuedBytes, UnsentAnswers};

/// The number of call kinds that are counted separately.
pub(super) const KINDS: usize = 6;

/// The address by which connections are counted. IPv6 addresses are counted by their /64 network, because a host
/// usually has all 2^64 addresses of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum PeerAddress {
    /// An address, or a network of IPv6.
    Ip(IpAddr),
    /// All clients at Unix sockets.
    Unix,
}

impl PeerAddress {
    /// That of this peer.
    pub(super) fn of(peer: Peer) -> Self {
        let Peer::Tcp(address) = peer else {
            return Self::Unix;
        };
        match address.ip().to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() & !u128::from(u64::MAX);
                Self::Ip(Ipv6Addr::from_bits(network).into())
            }
            address @ IpAddr::V4(_) => Self::Ip(address),
        }
    }
}

/// A counted resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    /// An open connection.
    Connection,
    /// An open call of the kind with this index, below [`KINDS`].
    Call(usize),
    /// A lease that a stream keeps.
    KeptLease,
    /// A lease that a stream will keep and waits for. It is counted as kept too.
    WaitToKeep,
}

/// The resources that one identity, or one peer address, uses.
#[derive(Debug, Default)]
pub(super) struct Usage {
    connections: AtomicUsize,
    calls: [AtomicUsize; KINDS],
    /// The leases that streams keep.
    kept: AtomicUsize,
    /// The part of `kept` for which an Acquire still waits.
    waits_to_keep: AtomicUsize,
    /// The bytes of answers that have not been sent yet, and of messages that have not arrived completely.
    unsent: AtomicUsize,
}

impl Usage {
    /// The average of the unsent bytes of the open connections.
    fn average_unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed) / self.connections.load(Ordering::Relaxed).max(1)
    }
}

impl Counters for Usage {
    type Resource = Counted;

    fn counter(&self, what: Counted) -> &AtomicUsize {
        match what {
            Counted::Connection => &self.connections,
            Counted::Call(kind) => &self.calls[kind],
            Counted::KeptLease => &self.kept,
            Counted::WaitToKeep => &self.waits_to_keep,
        }
    }
}

/// The usage of all callers that currently use anything.
#[derive(Debug)]
struct UsageTable<K>(Mutex<HashMap<K, Weak<Usage>>>);

impl<K: Hash + Eq> UsageTable<K> {
    fn of(&self, key: K) -> Arc<Usage> {
        let mut table = self.0.lock();
        let known = table.entry(key).or_default();
        known.upgrade().unwrap_or_else(|| {
            let usage = Arc::default();
            *known = Arc::downgrade(&usage);
            usage
        })
    }

    /// Removes the callers that no longer use anything.
    fn prune(&self) {
        self.0.lock().retain(|_, usage| usage.strong_count() > 0);
    }
}

/// The capacity that all connections of a server share. [`Capacity::watch`] enforces the bounds of unsent answers.
#[derive(Debug)]
pub(super) struct Capacity {
    peers: UsageTable<PeerAddress>,
    identities: UsageTable<Identity>,
    /// In percent.
    identity_share: usize,
    peer_share: usize,
    connection_limit: usize,
    unsent_limit: usize,
    connection_unsent_limit: usize,
    unsent: AtomicUsize,
    /// Seconds since the start, counted by [`Capacity::watch`].
    now: AtomicU32,
    answers: Mutex<Vec<Weak<UnsentAnswers>>>,
    /// Notified when the server exceeds its limit of unsent bytes.
    too_many: Notify,
    pub(super) metrics: Option<ServerMetrics>,
}

impl Capacity {
    /// The capacity that the settings define.
    pub(super) fn new(settings: &Settings, metrics: Option<ServerMetrics>) -> Arc<Self> {
        Arc::new(Self {
            peers: UsageTable(Mutex::default()),
            identities: UsageTable(Mutex::default()),
            identity_share: settings.identity_share as usize,
            peer_share: settings.peer_share as usize,
            connection_limit: settings.max_connections,
            unsent_limit: settings.unsent_bytes,
            connection_unsent_limit: settings.connection_unsent_bytes,
            unsent: AtomicUsize::new(0),
            now: AtomicU32::new(0),
            answers: Mutex::default(),
            too_many: Notify::new(),
            metrics,
        })
    }

    /// How much of `limit` one identity may use.
    pub(super) fn identity_share(&self, limit: usize) -> usize {
        share(limit, self.identity_share)
    }

    /// How much of `limit` one peer address may use.
    pub(super) fn peer_share(&self, limit: usize) -> usize {
        share(limit, self.peer_share)
    }

    /// Counts a new connection, which `cut` closes. Returns `None` if its peer address is at its limit.
    pub(super) fn connect(self: &Arc<Self>, peer: Peer, cut: CancellationToken) -> Option<ConnectionUsage> {
        let usage = self.peers.of(PeerAddress::of(peer));
        let counted = InUse::count(&usage, Counted::Connection, 1, self.peer_share(self.connection_limit))?;
        Some(ConnectionUsage {
            answers: UnsentAnswers::of_connection(self, &usage, cut),
            capacity: Arc::clone(self),
            peer: usage,
            _counted: counted,
            identity: Mutex::default(),
            read: AtomicUsize::new(0),
        })
    }
}

/// At least one, so that no caller is excluded completely.
fn share(limit: usize, percent: usize) -> usize {
    limit.saturating_mul(percent).div_ceil(100).max(1)
}

/// The usage of one connection.
#[derive(Debug)]
pub(super) struct ConnectionUsage {
    capacity: Arc<Capacity>,
    pub(super) peer: Arc<Usage>,
    _counted: InUse<Usage>,
    /// The identity of the first authenticated call, for which the connection counts.
    identity: Mutex<Option<Owner>>,
    pub(super) answers: Arc<UnsentAnswers>,
    /// The bytes that were read in the current step of the connection's task.
    read: AtomicUsize,
}

#[derive(Debug)]
struct Owner {
    identity: Identity,
    usage: Arc<Usage>,
    _counted: InUse<Usage>,
}

impl ConnectionUsage {
    /// Returns the usage of the identity of a call on this connection. The connection itself counts for the first
    /// identity, even if a proxy sends calls of other identities over it.
    ///
    /// # Errors
    /// OVERLOADED if the identity has reached its limit of connections.
    pub(super) fn identified(&self, identity: &Identity) -> Result<Arc<Usage>, Error> {
        let mut owner = self.identity.lock();
        if let Some(owner) = owner.as_ref().filter(|owner| owner.identity == *identity) {
            return Ok(owner.usage.clone());
        }
        let usage = self.capacity.identities.of(identity.clone());
        if owner.is_none() {
            let limit = self.capacity.identity_share(self.capacity.connection_limit);
            let counted = InUse::count(&usage, Counted::Connection, 1, limit);
            let counted = counted.ok_or_else(|| overloaded("too many connections of this identity are open"))?;
            *owner = Some(Owner {
                identity: identity.clone(),
                usage: usage.clone(),
                _counted: counted,
            });
        }
        Ok(usage)
    }

    /// Makes a step of the connection's task.
    pub(super) fn step<T>(usage: Option<&Self>, step: impl FnOnce() -> T) -> T {
        if let Some(usage) = usage {
            usage.read.store(0, Ordering::Relaxed);
        }
        let done = step();
        if let Some(usage) = usage {
            usage.answers.note_step();
        }
        done
    }

    /// How many bytes were read in this step.
    pub(super) fn read(&self) -> usize {
        self.read.load(Ordering::Relaxed)
    }

    /// Counts bytes that were read in this step.
    pub(super) fn note_read(&self, bytes: usize) {
        self.read.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The unsent answers of a stream on this connection. `cut` ends only the stream.
    pub(super) fn stream(&self, cut: CancellationToken) -> Arc<UnsentAnswers> {
        self.answers.of_stream(cut)
    }
}

/// The error OVERLOADED with this reason.
pub(super) fn overloaded(what: &str) -> Error {
    Error::Overloaded { what: what.into() }
}

#[cfg(test)]
mod tests;
