//! Bare calls, for measuring: each is sent once, with no deadline and no renewal.
//!
//! Whoever uses a lock wants [`super::Client`].

use std::time::Duration;

use tonic::transport::Channel;

use super::calls::{incomplete, wire};
use super::connections::endpoint;
use super::error::{Error, Failed};
use super::{Address, Credentials};
use crate::api::proto::lock_service_client::LockServiceClient;
use crate::api::proto::{AcquireRequest, Lease, ReleaseRequest};

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
        let unreachable =
            |error: tonic::transport::Error| Failed::silent(address, super::connections::innermost(&error));
        let endpoint = endpoint(address, credentials)?;
        let channel = endpoint.connect().await.map_err(|error| unreachable(error).error)?;
        Ok(Self {
            locks: LockServiceClient::new(channel),
            address: address.clone(),
            credentials: credentials.clone(),
        })
    }

    /// Takes a lock: at once or within `wait`, for `ttl` or the namespace's default.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn acquire(
        &mut self,
        ask: AcquireRequest,
        wait: Option<Duration>,
        ttl: Option<Duration>,
    ) -> Result<Lease, Error> {
        let ask = AcquireRequest {
            wait: wait.map(wire),
            ttl: ttl.map(wire),
            ..ask
        };
        let answer = self.locks.acquire(self.credentials.request(ask).await?).await;
        let answer = answer.map_err(|status| Failed::of(&status, &self.address).error)?;
        answer.into_inner().lease.ok_or_else(|| incomplete().error)
    }

    /// Gives a lease back.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn release(&mut self, lease_id: String) -> Result<(), Error> {
        let ask = self.credentials.request(ReleaseRequest { lease_id }).await?;
        let answer = self.locks.release(ask).await;
        answer
            .map(drop)
            .map_err(|status| Failed::of(&status, &self.address).error)
    }
}
