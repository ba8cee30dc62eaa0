//! The life of a claim, written once for every backend (skeleton).
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use tokio::sync::watch;

use crate::backend::{Backend, Guarantee, Health, Listing, Offers, Page, Seen};
use crate::claim::{Holder, Queue};
use crate::error::Error;
use crate::limits::Limits;
use crate::name::{FencingToken, Identity, LeaseKey, LockName, Metadata, Mode, Namespace, Owner, RequestId};

/// The locks of one namespace.
#[derive(Debug, Clone)]
pub struct Locks {
    backend: Arc<dyn Backend>,
}

/// What an Acquire asks for.
#[derive(Debug, Clone)]
pub struct Acquire {
    /// Which lock.
    pub lock: LockName,
    /// Who asks, by its own label.
    pub owner: Owner,
    /// Who asks, as proven.
    pub identity: Identity,
    /// How to share the lock.
    pub mode: Mode,
    /// How long to live; absent: the namespace's default.
    pub ttl: Option<Duration>,
    /// How long to wait; zero tries once.
    pub wait: Duration,
    /// What a retry is recognised by.
    pub request_id: Option<RequestId>,
    /// Whether to join, and be joined by, reentrant claims of the same owner.
    pub reentrant: bool,
    /// Shown to operators.
    pub metadata: Metadata,
}

/// A lease as its client gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// What its lease id says.
    pub key: LeaseKey,
    /// What is really granted, or what remains.
    pub ttl: Duration,
    /// From the call's arrival to the sending of the granting step.
    pub waited: Duration,
    /// Who holds.
    pub owner: Owner,
    /// What the namespace's store promises.
    pub guarantee: Guarantee,
    /// How many holds the claim has.
    pub holds: u32,
}

/// A granted lease whose answer is still to be handed to the client.
///
/// Dropped before [`Granted::delivered`], the grant is taken back (unless a retry has found it).
#[derive(Debug)]
pub struct Granted {
    /// The lease.
    pub lease: Lease,
}

impl Granted {
    /// Keeps the grant: its answer was handed over.
    pub fn delivered(self) -> Lease {
        self.lease
    }
}

#[allow(missing_docs, unused_variables, clippy::unused_async)]
impl Locks {
    pub fn new(namespace: Namespace, limits: Limits, backend: Arc<dyn Backend>) -> Self {
        Self { backend }
    }
    pub async fn acquire(&self, ask: Acquire) -> Result<Granted, Error> {
        Err(Error::Draining)
    }
    pub async fn renew(&self, lease: &LeaseKey, ttl: Option<Duration>) -> Result<Lease, Error> {
        Err(Error::Draining)
    }
    pub async fn release(&self, lease: &LeaseKey) -> Result<(), Error> {
        Err(Error::Draining)
    }
    pub async fn look(&self, lock: &LockName, most: usize) -> Result<Queue, Error> {
        Err(Error::Draining)
    }
    pub async fn check(&self, lock: &LockName, token: FencingToken) -> Result<Option<Holder>, Error> {
        Err(Error::Draining)
    }
    pub async fn list(&self, prefix: &str, page: Page) -> Result<Listing, Error> {
        Err(Error::Draining)
    }
    pub fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<Seen, Error>> {
        Box::pin(futures::stream::empty())
    }
    pub async fn force_release(&self, lock: &LockName, token: FencingToken) -> Result<(), Error> {
        Err(Error::Draining)
    }
    pub async fn admit(&self, node: Option<&str>) -> Result<(), Error> {
        Err(Error::Draining)
    }
    pub fn namespace(&self) -> &Namespace {
        unimplemented!()
    }
    pub fn limits(&self) -> &Limits {
        unimplemented!()
    }
    pub fn offers(&self) -> Offers {
        self.backend.offers()
    }
    pub fn health(&self) -> watch::Receiver<Health> {
        self.backend.health()
    }
    /// Ends every waiting acquire and every watch with DRAINING, and refuses new acquires with it; other calls go on.
    pub fn drain(&self) {}
    /// Waits for undos under way, then closes the backend.
    pub async fn close(&self) {}
}
