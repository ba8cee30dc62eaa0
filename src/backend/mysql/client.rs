//! A client of the protocol of MariaDB and MySQL: TLS, the login, and scripts of statements with their answers as text.
//!
//! A server that is broken or hostile costs no more than what was asked of it may take: the bytes of each answer are
//! bounded, and nothing is reserved because a server names a number.
//!
//! - [`packets`]: packets, and the values in them.
//! - [`login`]: the handshake, TLS, and the password.
//! - [`answers`]: what the statements of a script returned.

use std::fmt;
use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::timeout;

use self::answers::Outcome;
use self::login::Handshake;
use self::packets::Packets;
use crate::backend::login::Credentials;
use crate::backend::tls_stream::{encrypt, is_secret};

pub mod answers;
mod login;
mod packets;
mod public_key;

/// How often the system asks whether an idle server is still there.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long the farewell to a server may take.
const FAREWELL: Duration = Duration::from_secs(1);
/// The bytes of a row: a root takes 1 MiB.
pub const ROW: usize = (1 << 20) + (1 << 16);
/// The bytes of all answers to a script.
pub const SCRIPT: usize = 72 << 20;
/// The commands.
const QUIT: u8 = 1;
const QUERY: u8 = 3;

/// Why a connection cannot be used, or a statement failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server refuses it. The connection may be used further.
    #[error("error {code}: {message}")]
    Server {
        /// Its number for it.
        code: u16,
        /// Its words.
        message: String,
    },
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The server does not keep to the protocol, or exceeds a bound.
    #[error("{0}")]
    Protocol(String),
}

impl ClientError {
    fn protocol(problem: impl Into<String>) -> Self {
        Self::Protocol(problem.into())
    }
}

/// A connection to a server.
pub struct Client {
    packets: Option<Packets>,
    handshake: Handshake,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Drop for Client {
    /// Says farewell, because a server logs each connection that ends without.
    fn drop(&mut self) {
        let (packets, runtime) = (self.packets.take(), tokio::runtime::Handle::try_current());
        if let (Some(mut packets), Ok(runtime)) = (packets, runtime) {
            runtime.spawn(async move { timeout(FAREWELL, packets.command(QUIT, &[])).await });
        }
    }
}

impl Client {
    /// Connects to a database of the server at `host:port`.
    ///
    /// # Errors
    /// [`ClientError`] if the server cannot be reached, or does not accept the login.
    pub async fn connect(server: &str, database: &str, credentials: &Credentials) -> Result<Self, ClientError> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
        let is_secret = is_secret(stream.peer_addr()?.ip());
        let mut packets = Packets::new(Box::new(stream));
        let handshake = Handshake::read(&mut packets, is_secret).await?;
        if let Some(tls) = &credentials.tls {
            packets.send(&handshake.tls_request()?).await?;
            packets = packets.over(|stream| encrypt(stream, server, tls)).await?;
        }
        handshake.log_in(&mut packets, database, credentials).await?;
        Ok(Self {
            packets: Some(packets),
            handshake,
        })
    }

    /// The number of its session.
    pub fn session(&self) -> u32 {
        self.handshake.session
    }

    /// Whether it is a MariaDB.
    pub fn is_mariadb(&self) -> bool {
        self.handshake.version.contains("MariaDB")
    }

    /// Runs statements in one round trip. They return at most so many rows together.
    ///
    /// # Errors
    /// The statement that failed, by its number, and why. Those behind it were not run.
    ///
    /// # Cancellation safety
    /// The statements run on, and the connection must not be used any more.
    pub async fn run(&mut self, script: &[String], rows: usize) -> Result<Vec<Outcome>, (usize, ClientError)> {
        let mut outcomes = Vec::with_capacity(script.len());
        match self.read_outcomes(script, rows, &mut outcomes).await {
            Ok(()) => Ok(outcomes),
            Err(error) => {
                // What is left of its answers would be taken for those to others.
                if !matches!(error, ClientError::Server { .. }) {
                    self.packets = None;
                }
                Err((outcomes.len(), error))
            }
        }
    }

    async fn read_outcomes(
        &mut self,
        script: &[String],
        rows: usize,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), ClientError> {
        let closed = || ClientError::protocol("the connection is closed");
        let packets = self.packets.as_mut().ok_or_else(closed)?;
        packets.command(QUERY, script.join(";\n").as_bytes()).await?;
        packets.allow(ROW.saturating_mul(rows.saturating_add(1)).min(SCRIPT));
        loop {
            let (outcome, has_more) = answers::read(packets).await?;
            outcomes.push(outcome);
            if has_more != (outcomes.len() < script.len()) {
                return Err(ClientError::protocol("it does not answer each statement once"));
            }
            if !has_more {
                return Ok(());
            }
        }
    }
}
