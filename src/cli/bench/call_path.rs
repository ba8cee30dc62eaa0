//! What a caller sends its calls over.

use fencepost::api::proto::{AcquireRequest, Lease};
use fencepost_client::Error;
use fencepost_client::raw::{Raw, RawSession};

/// A connection with a call for each operation, or a session with a command for each.
#[derive(Debug, Clone)]
pub enum CallPath {
    Calls(Box<Raw>),
    Session(RawSession),
}

impl CallPath {
    /// See [`Raw::acquire`].
    pub async fn acquire(&mut self, request: AcquireRequest) -> Result<Lease, Error> {
        match self {
            Self::Calls(connection) => connection.acquire(request).await,
            Self::Session(session) => session.acquire(request).await,
        }
    }

    /// See [`Raw::release`].
    pub async fn release(&mut self, lease_id: String) -> Result<(), Error> {
        match self {
            Self::Calls(connection) => connection.release(lease_id).await,
            Self::Session(session) => session.release(lease_id).await,
        }
    }
}
