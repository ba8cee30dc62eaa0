//! A client that acquires locks, keeps their leases alive, and reports when a lease is or may be lost.
//!
//! [`Client::connect`] → [`Client::acquire`] → a [`LockGuard`]. The guard's lease is renewed after a third of the TTL until
//! the guard releases it. A client keeps all its leases over one KeepAlive stream, on which the server tells at once
//! when one is lost; with a server that does not offer the stream, it renews each by a call. The guard considers the lease valid until `sent + waited + ttl`, on the time since boot, which
//! includes suspends. A program that stops when [`LockGuard::lost`] resolves has therefore stopped before another claim
//! holds the lock.
//!
//! ```no_run
//! use std::time::Duration;
//! use fencepost_client::{Address, Client};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! # let address = "127.0.0.1:50051";
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
//! No client can exclude that it acts a moment too late: it may be paused between the check of the clock and its write.
//! Where that matters, send [`LockGuard::fencing_token`] with each write, and let the resource reject tokens below the
//! largest one it has seen.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod acquire;
mod address;
#[doc(hidden)]
pub mod backoff;
mod calls;
pub mod clock;
mod connections;
mod credentials;
mod dial;
mod elections;
mod error;
pub mod fence;
mod guard;
mod keep_alive;
mod lease_term;
mod listen;
pub mod raw;
pub mod reason;
mod requests;
mod session;
mod several;
pub mod testing;
mod tls_failure;
mod trust;
mod undo;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;

pub use self::acquire::Acquire;
pub use self::address::Address;
pub use self::calls::time;
pub use self::credentials::Credentials;
#[doc(hidden)]
pub use self::credentials::is_encrypted_key;
pub use self::elections::VALUE;
pub use self::error::Error;
pub use self::guard::LockGuard;
pub use self::lease_term::Loss;
pub use self::listen::{BadAddress, ListenAddress};
pub use self::several::AcquireAll;

use self::calls::{CALL, Calls};
use self::connections::Connections;
use self::error::Failed;
use self::keep_alive::KeepAlive;

/// The messages and clients of `proto/fencepost/v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic, rustdoc::all)]
pub mod proto {
    tonic::include_proto!("fencepost.v1");
}

/// Where a server listens unless it is configured.
const DEFAULT_ADDRESS: &str = "127.0.0.1:50051";

/// Connections to the servers of one service. Clones share them.
///
/// Uses one of the addresses until it fails, then the next one. Each call has a deadline and is repeated within it if
/// no server answered, because every call is idempotent.
///
/// Acquires that wait and releases that are made at the same time are sent over one session, where the server offers
/// sessions. It ends when it was idle for 10 s.
#[derive(Debug, Clone)]
pub struct Client {
    keep_alive: Arc<KeepAlive>,
}

impl Client {
    /// Connects as the command line does: to the addresses in the variable `FENCEPOST_ADDR`, separated by commas (default:
    /// `127.0.0.1:50051`), with the files that `FENCEPOST_CA_FILE`, `FENCEPOST_CERT_FILE` and `FENCEPOST_KEY_FILE`, and
    /// `FENCEPOST_BEARER_FILE` name. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The errors of [`Client::connect_as`], [`Error::Unreachable`] for what is no address, and [`Error::BadCredentials`] for
    /// a certificate without its key, or a key alone.
    pub async fn from_environment() -> Result<Self, Error> {
        let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let text = variable("FENCEPOST_ADDR").unwrap_or_else(|| DEFAULT_ADDRESS.to_owned());
        let parsed: Result<Vec<Address>, BadAddress> = text.split(',').map(|address| address.trim().parse()).collect();
        let addresses = parsed.map_err(|bad| Error::Unreachable {
            addresses: text,
            problem: bad.to_string(),
        })?;
        Self::connect_as(&addresses, credentials_of(variable)?).await
    }

    /// Connects to the first address that accepts. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when no address accepts.
    pub async fn connect(addresses: &[Address]) -> Result<Self, Error> {
        Self::connect_as(addresses, Credentials::default()).await
    }

    /// Connects with credentials: to authenticate the client, or to verify the server.
    ///
    /// # Errors
    /// [`Error::BadCredentials`] when a file cannot be read, or a bearer token would be sent without encryption;
    /// [`Error::Unreachable`] when no address accepts.
    pub async fn connect_as(addresses: &[Address], credentials: Credentials) -> Result<Self, Error> {
        Connections::open(addresses, credentials).await.map(Self::over)
    }

    /// Connects by this function, such as to a server in the same process. Nothing is connected before the first call.
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// None are known.
    #[doc(hidden)]
    pub fn connect_by<S>(connect: impl Fn() -> io::Result<S> + Clone + Send + Sync + 'static) -> Result<Self, Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        Connections::by(connect).map(Self::over)
    }

    fn over(connections: Connections) -> Self {
        let calls = Arc::new(Calls::over(connections));
        let keep_alive = Arc::new(KeepAlive::new(calls));
        Self { keep_alive }
    }

    /// The calls of the client.
    ///
    /// # Errors
    /// [`Error::Closed`].
    fn calls(&self) -> Result<&Arc<Calls>, Error> {
        self.keep_alive.open_calls()
    }

    /// Releases the locks of all guards, and ends waits for others, watches and observers with [`Error::Closed`]. Returns
    /// when all releases are confirmed, after 5 s at the latest; unconfirmed leases end with their TTL. Clones are closed
    /// too, and their later calls fail with [`Error::Closed`]. May be called repeatedly.
    ///
    /// # Cancellation safety
    /// When dropped, the locks are released in the background.
    pub async fn close(&self) {
        self.keep_alive.close().await;
    }

    /// Requests a lock for `owner`, a label for operators. Nothing is sent until the returned value is awaited.
    pub fn acquire(&self, namespace: &str, name: &str, owner: &str) -> Acquire {
        Acquire::new(Arc::clone(&self.keep_alive), namespace, name, owner)
    }

    /// Requests several exclusive locks of a namespace, all or none, for `owner`. Nothing is sent until
    /// [`AcquireAll::guards`] is awaited.
    pub fn acquire_all(&self, namespace: &str, names: &[&str], owner: &str) -> AcquireAll {
        AcquireAll::new(Arc::clone(&self.keep_alive), namespace, names, owner)
    }

    /// Extends a lease to `ttl`; absent: the TTL last requested.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when it has ended.
    pub async fn renew(&self, lease_id: &str, ttl: Option<Duration>) -> Result<proto::Lease, Error> {
        self.calls()?.renew(lease_id, ttl).await
    }

    /// Releases a lease. A repeated release succeeds.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when it ended for another reason.
    pub async fn release(&self, lease_id: &str) -> Result<(), Error> {
        self.calls()?.release(lease_id, CALL).await
    }

    /// Releases a lease, after which its lock stays taken for `keep_for` from now on. Returns how long it stays taken: the
    /// first release of a lease decides that, and only a forced release ends it sooner.
    ///
    /// # Errors
    /// As [`Client::release`].
    pub async fn release_keeping(&self, lease_id: &str, keep_for: Duration) -> Result<Option<Duration>, Error> {
        let request = proto::ReleaseRequest {
            lease_id: lease_id.to_owned(),
            keep_for: (!keep_for.is_zero()).then(|| calls::wire(keep_for)),
        };
        let released = self.calls()?.call(request).await?;
        Ok(released.kept_for.map(|kept| calls::time(Some(kept))))
    }

    /// Replaces the metadata of a lease, which operators see; its TTL stays as it is.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when it has ended, and [`Error::Refused`] with `UNSUPPORTED` if the store cannot do this.
    pub async fn update_metadata(&self, lease_id: &str, metadata: BTreeMap<String, String>) -> Result<(), Error> {
        let lease_id = lease_id.to_owned();
        let request = proto::UpdateMetadataRequest { lease_id, metadata };
        self.calls()?.call(request).await.map(drop)
    }

    /// The holders and waiters of a lock.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn get(&self, namespace: &str, name: &str) -> Result<proto::LockState, Error> {
        let request = proto::GetLockRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let response = self.calls()?.call(request).await?;
        response.lock.ok_or_else(|| Failed::incomplete().error)
    }

    /// A page of the locks in use whose names begin with `prefix`. An empty `page_token` requests the first page.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn list(
        &self,
        namespace: &str,
        prefix: &str,
        page_token: &str,
    ) -> Result<proto::ListLocksResponse, Error> {
        self.list_by(0, namespace, prefix, page_token).await
    }

    /// [`Client::list`] with pages as large as the server allows, for a caller that reads them all.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn list_in_large_pages(
        &self,
        namespace: &str,
        prefix: &str,
        page_token: &str,
    ) -> Result<proto::ListLocksResponse, Error> {
        self.list_by(i32::MAX, namespace, prefix, page_token).await
    }

    async fn list_by(
        &self,
        page_size: i32,
        namespace: &str,
        prefix: &str,
        page_token: &str,
    ) -> Result<proto::ListLocksResponse, Error> {
        let request = proto::ListLocksRequest {
            namespace: namespace.to_owned(),
            prefix: prefix.to_owned(),
            page_size,
            page_token: page_token.to_owned(),
        };
        self.calls()?.call(request).await
    }

    /// The state of a lock, then each change. Returns when the state has arrived, or fails after 5 s without it. The
    /// stream goes on over restarts of servers and stores of up to 60 s, at the next address where there are several, each
    /// time with the present state first. It ends with its first other error.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn watch(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<BoxStream<'static, Result<proto::WatchLockResponse, Error>>, Error> {
        let request = proto::WatchLockRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        self.calls()?.open_stream(request).await
    }

    /// Whether a fencing token is held now, and by which holder.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn check_token(
        &self,
        namespace: &str,
        name: &str,
        token: u64,
    ) -> Result<proto::CheckTokenResponse, Error> {
        let request = proto::CheckTokenRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            fencing_token: token,
        };
        self.calls()?.call(request).await
    }

    /// Forcibly releases the claim that holds this token.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when the token is not held.
    pub async fn force_release(&self, namespace: &str, name: &str, token: u64) -> Result<(), Error> {
        self.force_release_with_reason(namespace, name, token, "").await
    }

    /// [`Self::force_release`], with a reason of at most 256 bytes for the audit log of the server.
    ///
    /// # Errors
    /// As [`Self::force_release`].
    pub async fn force_release_with_reason(
        &self,
        namespace: &str,
        name: &str,
        token: u64,
        reason: &str,
    ) -> Result<(), Error> {
        let request = proto::ForceReleaseRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            fencing_token: token,
            reason: reason.to_owned(),
        };
        self.calls()?.call(request).await.map(drop)
    }

    /// Ends the quarantine of a namespace's store, or of one node of it. An empty `node` stands for all of the store.
    ///
    /// # Errors
    /// [`Error`]: a store without quarantines refuses it.
    pub async fn admit(&self, namespace: &str, node: &str) -> Result<(), Error> {
        let request = proto::AdmitRequest {
            namespace: namespace.to_owned(),
            node: node.to_owned(),
        };
        self.calls()?.call(request).await.map(drop)
    }

    /// All namespaces with their store, limits and health.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn namespaces(&self) -> Result<Vec<proto::NamespaceInfo>, Error> {
        let response = self.calls()?.call(proto::ListNamespacesRequest {}).await?;
        Ok(response.namespaces)
    }

    /// Whether the server serves or, with a namespace, whether the store of that namespace does.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the reason `NOT_SERVING` when it does not, and other [`Error`]s.
    pub async fn health(&self, namespace: Option<&str>) -> Result<(), Error> {
        let service = namespace.map(|name| format!("namespace/{name}")).unwrap_or_default();
        match self.calls()?.call(HealthCheckRequest { service }).await {
            Ok(response) if response.status() == ServingStatus::Serving => Ok(()),
            Ok(_) => Err(Error::Unavailable {
                reason: "NOT_SERVING".to_owned(),
                message: match namespace {
                    Some(name) => format!("the store of the namespace {name:?} does not serve"),
                    None => "the server does not serve".to_owned(),
                },
            }),
            Err(Error::Refused { reason, .. }) if reason == "NotFound" => Err(Error::Refused {
                reason: reason::NAMESPACE_NOT_FOUND.to_owned(),
                message: format!(
                    "there is no namespace {:?} for this caller",
                    namespace.unwrap_or_default()
                ),
            }),
            Err(error) => Err(error),
        }
    }

    /// A page of the open KeepAlive and Session streams of the server that is asked. An empty `page_token` requests the
    /// first page.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn sessions(&self, page_token: &str) -> Result<proto::ListSessionsResponse, Error> {
        let request = proto::ListSessionsRequest {
            page_size: i32::MAX,
            page_token: page_token.to_owned(),
        };
        self.calls()?.call(request).await
    }
}

/// The credentials in the files that these variables name.
///
/// # Errors
/// [`Error::BadCredentials`].
fn credentials_of(variable: impl Fn(&str) -> Option<String>) -> Result<Credentials, Error> {
    const OWN: [&str; 2] = ["FENCEPOST_CERT_FILE", "FENCEPOST_KEY_FILE"];
    let mut credentials = Credentials::default();
    if let Some(file) = variable("FENCEPOST_CA_FILE") {
        credentials = credentials.authorities(file);
    }
    credentials = match OWN.map(&variable) {
        [Some(certificate), Some(key)] => credentials.own(certificate, key),
        [None, None] => credentials,
        [certificate, _] => {
            let missing = OWN[usize::from(certificate.is_some())];
            let problem = format!("{missing} is not set: a certificate and its key belong together");
            return Err(Error::BadCredentials { problem });
        }
    };
    if let Some(file) = variable("FENCEPOST_BEARER_FILE") {
        credentials = credentials.bearer(file);
    }
    Ok(credentials)
}

#[cfg(test)]
mod tests;
