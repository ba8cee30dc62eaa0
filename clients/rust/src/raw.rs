//! Single calls, for benchmarks: each is sent once, without a deadline and without renewals.
//!
//! To use locks, see [`super::Client`].

use tonic::transport::Channel;

pub use super::calls::wire;
use super::connections::endpoint;
use super::dial::connect;
use super::error::{Error, Failed};
use super::session::{CommandFailure, Session};
use super::{Address, Credentials};
use crate::proto::lock_service_client::LockServiceClient;
use crate::proto::session_command::Command;
use crate::proto::session_event::command_result::Outcome;
use crate::proto::{AcquireRequest, Lease, ReleaseRequest};

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
        let channel = connect(address, &endpoint(address, credentials)?).await;
        let channel = channel.map_err(|error| Failed::of_transport(&error, address).error)?;
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
        response.into_inner().lease.ok_or_else(|| Failed::incomplete().error)
    }

    /// Opens a session on this connection. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The server's error.
    pub async fn session(&self) -> Result<RawSession, Error> {
        let (commands, messages) = Session::messages();
        let request = self.credentials.request(messages).await?;
        let mut locks = self.locks.clone();
        let session = Session::open(locks.session(request), commands, None, &self.address).await;
        session.map(RawSession).map_err(|failed| failed.error)
    }

    /// Releases a lease.
    ///
    /// # Errors
    /// The server's error.
    pub async fn release(&mut self, lease_id: String) -> Result<(), Error> {
        let request = self
            .credentials
            .request(ReleaseRequest {
                lease_id,
                keep_for: None,
            })
            .await?;
        let response = self.locks.release(request).await;
        response
            .map(drop)
            .map_err(|status| Failed::of(&status, &self.address).error)
    }
}

/// A session on one connection. Clones share it, and the last one ends it.
#[derive(Debug, Clone)]
pub struct RawSession(Session);

impl RawSession {
    /// How many commands the server accepts at once.
    pub fn command_limit(&self) -> u32 {
        self.0.command_limit
    }

    /// As [`Raw::acquire`].
    ///
    /// # Cancellation safety
    /// If dropped, a wait is cancelled. A grant that is on its way lives until its TTL.
    ///
    /// # Errors
    /// The server's error.
    pub async fn acquire(&self, request: AcquireRequest) -> Result<Lease, Error> {
        match self.call(Command::Acquire(request.into())).await? {
            Outcome::Acquire(answer) => answer.lease.ok_or_else(|| Failed::incomplete().error),
            _ => Err(Failed::incomplete().error),
        }
    }

    /// As [`Raw::release`].
    ///
    /// # Errors
    /// The server's error.
    pub async fn release(&self, lease_id: String) -> Result<(), Error> {
        match self
            .call(Command::Release(ReleaseRequest {
                lease_id,
                keep_for: None,
            }))
            .await?
        {
            Outcome::Release(_) => Ok(()),
            _ => Err(Failed::incomplete().error),
        }
    }

    async fn call(&self, command: Command) -> Result<Outcome, Error> {
        let outcome = self.0.call(command, None, None).await;
        outcome.map_err(|failure| match failure {
            CommandFailure::Answered(failed) | CommandFailure::Unanswered(failed) => failed.error,
            CommandFailure::NotSent => self.0.ended().error,
        })
    }
}
