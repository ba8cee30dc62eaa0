//! The byte stream to a server: TCP, or TLS over it.

use std::io;

use tokio::net::TcpStream;

use crate::backend::tls_stream::{Duplex, encrypt};
use crate::backend::zookeeper::settings::Tls;

/// Connects to a server at `host:port`.
///
/// # Errors
/// When it cannot be reached, or TLS does not accept it.
pub async fn connect(server: &str, tls: Option<&Tls>) -> io::Result<Box<dyn Duplex>> {
    let stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    match tls {
        Some(tls) => encrypt(stream, server, tls).await,
        None => Ok(Box::new(stream)),
    }
}
