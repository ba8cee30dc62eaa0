//! Single calls, for benchmarks: each is sent once, without a deadline and without renewals.
//!
//! To use locks, see [`super::Client`].

use futures::channel::mpsc::unbounded;
use tonic::transport::Channel;

pub use self::session::RawSession;
use super::calls::incomplete;
pub use super::calls::wire;
use super::connections::endpoint;
use super::error::{Error, Failed, innermost};
use super::{Address, Credentials};
use crate::api::proto::lock_service_client::LockServiceClient;
use crate::api::proto::{AcquireRequest, Lease, ReleaseRequest};

mod session;

/// One connection. Clones share it.
#[derive(Debug, Clone)]
pub struct Raw {
    locks: LockServiceClient<Channel>,
    address: Address,
    credentials: Credentials,
}

impl Raw {
    /// Connects to a server.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when it does not accept; [`Error::BadCredentials`].
    pub async fn connect(address: &Address, credentials: &Credentials) -> Result<Self, Error> {
        credentials.check(std::slice::from_ref(address))?;
        let unreachable = |error: tonic::transport::Error| Failed::no_response(address, innermost(&error));
        let endpoint = endpoint(address, credentials)?;
        let channel = endpoint.connect().await.map_err(|error| unreachable(error).error)?;
        Ok(Self {
            locks: LockServiceClient::new(channel),
            address: address.clone(),
            credentials: credentials.clone(),
        })
    }

    /// Acquires a lock.
    ///
    /// # Errors
    /// The server's error.
    pub async fn acquire(&mut self, request: AcquireRequest) -> Result<Lease, Error> {
        let response = self.locks.acquire(self.credentials.request(request).await?).await;
        let response = response.map_err(|status| Failed::of(&status, &self.address).error)?;
        response.into_inner().lease.ok_or_else(|| incomplete().error)
    }

    /// Opens a session on this connection. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The server's error.
    pub async fn session(&self) -> Result<RawSession, Error> {
        let (commands, messages) = unbounded();
        let request = self.credentials.request(messages).await?;
        let opened = self.locks.clone().session(request).await;
        let events = opened.map_err(|status| Failed::of(&status, &self.address).error)?;
        RawSession::opened(commands, events.into_inner(), self.address.clone()).await
    }

    /// Releases a lease.
    ///
    /// # Errors
    /// The server's error.
    pub async fn release(&mut self, lease_id: String) -> Result<(), Error> {
        let request = self.credentials.request(ReleaseRequest { lease_id }).await?;
        let response = self.locks.release(request).await;
        response
            .map(drop)
            .map_err(|status| Failed::of(&status, &self.address).error)
    }
}
