//! A client: it takes a lock, keeps its lease, and tells when the lease is or may be lost.
//!
//! [`Client::connect`] → [`Client::acquire`] → a [`LockGuard`]. The guard renews itself at a third of
//! its time to live and gives the lock back in the end. It counts on its lease until
//! `sent + waited + ttl` and no longer, on a clock of its own that runs on through a suspend: whoever
//! stops when [`LockGuard::lost`] is ready has stopped before anybody else holds.
//!
//! ```
//! use std::time::Duration;
//! use fencepost::client::{Address, Client};
//!
//! # use std::sync::Arc;
//! # use fencepost::{api, backend::embedded::Store, limits::Limits, locks::Locks};
//! # use fencepost::{name::Namespace, namespaces::Namespaces};
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let listener = api::Listener::bind(&"127.0.0.1:0".parse()?).await?;
//! # let address = listener.local_addr();
//! # let namespace = Namespace::new("jobs")?;
//! # let locks = Locks::new(namespace.clone(), Limits::default(), Store::memory().namespace(namespace));
//! # let settings = api::Settings::default();
//! # let served = api::serve(vec![listener], Namespaces::new(vec![locks]), settings, std::future::pending());
//! # tokio::spawn(served);
//! // One address, or several that serve the same store.
//! let client = Client::connect(&[address.parse::<Address>()?]).await?;
//! let guard = client.acquire("jobs", "reports", "me").wait(Duration::from_secs(5)).await?;
//! tokio::select! {
//!     () = write_reports(guard.fencing_token()) => println!("written"),
//!     loss = guard.lost() => println!("stopped: {loss}"),
//! }
//! guard.release().await?;
//! # async fn write_reports(_token: u64) {}
//! # Ok(())
//! # }
//! ```
//!
//! No client can be kept from acting a moment too late, for it may be paused between its look at the
//! clock and its write. Where that matters send [`LockGuard::fencing_token`] along, and let the
//! resource refuse a token below the highest it has seen.

mod acquire;
mod address;
mod calls;
mod connections;
mod credentials;
mod doubt;
mod error;
mod guard;
mod json;
mod keep_alive;
pub mod raw;

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt};

pub use self::acquire::Acquire;
pub use self::address::Address;
pub use self::credentials::Credentials;
pub use self::error::Error;
pub use self::guard::LockGuard;
pub use self::json::{Answer, NoJson, json};
pub use self::keep_alive::Loss;

use self::calls::{Calls, duration};
use self::connections::Connections;
use crate::api::proto;

/// Connections to the servers of one service. Clones share them.
///
/// Of several addresses one is used, until it fails; then the next. Each call has a deadline, and is
/// repeated while that lasts where no server answered: every call may be repeated without harm.
#[derive(Debug, Clone)]
pub struct Client {
    calls: Arc<Calls>,
}

impl Client {
    /// Connects to the first of these addresses that accepts. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when none does.
    pub async fn connect(addresses: &[Address]) -> Result<Self, Error> {
        Self::connect_as(addresses, Credentials::default()).await
    }

    /// The same, with something to prove who the client is, or to know the server by.
    ///
    /// # Errors
    /// [`Error::BadCredentials`] when a file cannot be read, or a bearer token would be sent for all to
    /// read; [`Error::Unreachable`] when no address accepts.
    pub async fn connect_as(addresses: &[Address], credentials: Credentials) -> Result<Self, Error> {
        let connections = Connections::open(addresses, credentials).await?;
        Ok(Self {
            calls: Arc::new(Calls::new(connections)),
        })
    }

    /// Asks for a lock on behalf of `owner`, a label that operators see. Nothing is sent before the
    /// answer is awaited.
    pub fn acquire(&self, namespace: &str, name: &str, owner: &str) -> Acquire {
        Acquire::new(Arc::clone(&self.calls), namespace, name, owner)
    }

    /// Gives a lease more time: `ttl`, or what it was last given.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when it is gone.
    pub async fn renew(&self, lease_id: &str, ttl: Option<Duration>) -> Result<proto::Lease, Error> {
        self.calls.renew(lease_id, ttl).await
    }

    /// Gives a lease back. Repeating it succeeds.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when it had ended before.
    pub async fn release(&self, lease_id: &str) -> Result<(), Error> {
        self.calls.release(lease_id).await
    }

    /// Who holds a lock, and who waits for it.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn get(&self, namespace: &str, name: &str) -> Result<proto::LockState, Error> {
        self.calls.get(namespace, name).await
    }

    /// A page of the locks in use whose names begin with `prefix`; an empty `page_token` begins.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn list(
        &self,
        namespace: &str,
        prefix: &str,
        page_token: &str,
    ) -> Result<proto::ListLocksResponse, Error> {
        self.calls.list(namespace, prefix, page_token).await
    }

    /// A lock's state, then each change of it; the stream ends with its first error.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn watch(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<BoxStream<'static, Result<proto::WatchLockResponse, Error>>, Error> {
        let seen = self.calls.watch(namespace, name).await?;
        Ok(seen.boxed())
    }

    /// Whether a fencing token is held at this moment, and by whom.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn check_token(
        &self,
        namespace: &str,
        name: &str,
        token: u64,
    ) -> Result<proto::CheckTokenResponse, Error> {
        self.calls.check_token(namespace, name, token).await
    }

    /// Takes a lock away from the claim that a token names.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when the token is not held.
    pub async fn force_release(&self, namespace: &str, name: &str, token: u64) -> Result<(), Error> {
        self.calls.force_release(namespace, name, token).await
    }

    /// Every namespace with its store, limits and health.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn namespaces(&self) -> Result<Vec<proto::NamespaceInfo>, Error> {
        self.calls.namespaces().await
    }
}

/// A time of an answer; zero where there is none.
pub fn time(wire: Option<impl TryInto<Duration>>) -> Duration {
    duration(wire)
}
