//! How much of the server its callers use at this moment, counted for each identity, for each peer address and
//! for each connection, so that none of them takes all of it.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::peer::Peer;
use super::settings::Settings;
use crate::error::Error;
use crate::metrics::ServerMetrics;
use crate::name::Identity;

mod unsent;
mod watch;

pub(super) use self::unsent::{Answers, ChargeTo, Charged};

/// How many kinds of calls are counted apart.
pub(super) const KINDS: usize = 6;

/// The address that connections of one peer share. Whoever has one IPv6 address has the 2^64 of its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PeerAddress {
    Ip(IpAddr),
    Unix,
}

impl PeerAddress {
    fn of(peer: Peer) -> Self {
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

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    /// An open connection.
    Connection,
    /// An open call of this kind, below [`KINDS`].
    Call(usize),
}

/// What one identity, or one peer address, uses.
#[derive(Debug, Default)]
pub(super) struct Usage {
    connections: AtomicUsize,
    calls: [AtomicUsize; KINDS],
    /// Bytes of answers that were made and not sent yet.
    unsent: AtomicUsize,
}

impl Usage {
    fn counter(&self, what: Counted) -> &AtomicUsize {
        match what {
            Counted::Connection => &self.connections,
            Counted::Call(kind) => &self.calls[kind],
        }
    }

    /// Counts one more while the guard lives; nothing when there are `most` already.
    pub(super) fn count(self: &Arc<Self>, what: Counted, most: usize) -> Option<UsageGuard> {
        let counter = self.counter(what);
        if counter.fetch_add(1, Ordering::Relaxed) >= most {
            counter.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(UsageGuard {
            usage: Arc::clone(self),
            what,
        })
    }
}

/// One that is counted until it is dropped.
#[derive(Debug)]
pub(super) struct UsageGuard {
    usage: Arc<Usage>,
    what: Counted,
}

impl Drop for UsageGuard {
    fn drop(&mut self) {
        self.usage.counter(self.what).fetch_sub(1, Ordering::Relaxed);
    }
}

/// The usage of each caller that uses anything.
struct UsageTable<K>(Mutex<HashMap<K, Weak<Usage>>>);

impl<K> Default for UsageTable<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K> fmt::Debug for UsageTable<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UsageTable").finish_non_exhaustive()
    }
}

impl<K: Hash + Eq> UsageTable<K> {
    fn of(&self, key: K) -> Arc<Usage> {
        let mut table = lock(&self.0);
        let known = table.entry(key).or_default();
        known.upgrade().unwrap_or_else(|| {
            let usage = Arc::default();
            *known = Arc::downgrade(&usage);
            usage
        })
    }

    /// Forgets those who use nothing any more.
    fn prune(&self) {
        lock(&self.0).retain(|_, usage| usage.strong_count() > 0);
    }
}

/// None of these locks is held while anything can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// What all connections of a server share. See [`Capacity::watch`] for what keeps its bounds over time.
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
    /// Seconds since the start, as the watch counts them.
    now: AtomicU32,
    answers: Mutex<Vec<Weak<Answers>>>,
    /// Wakes the watch when the server has too many unsent answers.
    too_many: Notify,
    figures: Option<ServerMetrics>,
}

impl Capacity {
    /// As much as the settings allow.
    pub(super) fn new(settings: &Settings, figures: Option<ServerMetrics>) -> Arc<Self> {
        Arc::new(Self {
            peers: UsageTable::default(),
            identities: UsageTable::default(),
            identity_share: settings.identity_share as usize,
            peer_share: settings.peer_share as usize,
            connection_limit: settings.max_connections,
            unsent_limit: settings.unsent_bytes,
            connection_unsent_limit: settings.connection_unsent_bytes,
            unsent: AtomicUsize::new(0),
            now: AtomicU32::new(0),
            answers: Mutex::default(),
            too_many: Notify::new(),
            figures,
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

    /// Counts a new connection, which `cut` ends; nothing when its peer has as many as it may.
    pub(super) fn connect(self: &Arc<Self>, peer: Peer, cut: CancellationToken) -> Option<ConnectionUsage> {
        let usage = self.peers.of(PeerAddress::of(peer));
        let counted = usage.count(Counted::Connection, self.peer_share(self.connection_limit))?;
        Some(ConnectionUsage {
            answers: Answers::of_connection(self, &usage, cut),
            capacity: Arc::clone(self),
            peer: usage,
            _counted: counted,
            identity: Mutex::default(),
        })
    }
}

/// At least one, so that nobody is shut out.
fn share(limit: usize, percent: usize) -> usize {
    limit.saturating_mul(percent).div_ceil(100).max(1)
}

/// What one connection uses.
#[derive(Debug)]
pub(super) struct ConnectionUsage {
    capacity: Arc<Capacity>,
    pub(super) peer: Arc<Usage>,
    _counted: UsageGuard,
    /// Whose connection it is: that of the first call that proved who it is.
    identity: Mutex<Option<Owner>>,
    pub(super) answers: Arc<Answers>,
}

#[derive(Debug)]
struct Owner {
    identity: Identity,
    usage: Arc<Usage>,
    _counted: UsageGuard,
}

impl ConnectionUsage {
    /// The usage of the identity of a call on this connection. The connection counts for the first identity
    /// that calls on it, also where a proxy sends the calls of others over it.
    ///
    /// # Errors
    /// OVERLOADED when the identity has as many connections as it may.
    pub(super) fn identified(&self, identity: &Identity) -> Result<Arc<Usage>, Error> {
        let mut owner = lock(&self.identity);
        if let Some(owner) = owner.as_ref().filter(|owner| owner.identity == *identity) {
            return Ok(owner.usage.clone());
        }
        let usage = self.capacity.identities.of(identity.clone());
        if owner.is_none() {
            let most = self.capacity.identity_share(self.capacity.connection_limit);
            let counted = usage.count(Counted::Connection, most);
            let counted = counted.ok_or_else(|| overloaded("too many connections of this identity are open"))?;
            *owner = Some(Owner {
                identity: identity.clone(),
                usage: usage.clone(),
                _counted: counted,
            });
        }
        Ok(usage)
    }

    /// The answers of a stream of its own, whose `cut` ends it alone.
    pub(super) fn stream(&self, cut: CancellationToken) -> Arc<Answers> {
        self.answers.of_stream(cut)
    }
}

/// The refusal of a call because there is too much of something.
pub(super) fn overloaded(what: &str) -> Error {
    Error::Overloaded { what: what.into() }
}

#[cfg(test)]
mod tests;
