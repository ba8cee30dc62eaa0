//! The byte stream to a server: TCP, or TLS over it.

use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::backend::zookeeper::settings::Tls;
use crate::tls::credentials::client_config;

/// A stream of bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Connects to a server at `host:port`.
///
/// # Errors
/// When it cannot be reached, or TLS does not accept it.
pub async fn connect(server: &str, tls: Option<&Tls>) -> io::Result<Box<dyn Duplex>> {
    let stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = tls else {
        return Ok(Box::new(stream));
    };
    let identity = tls
        .identity
        .as_ref()
        .map(|(cert, key)| (cert.as_slice(), key.as_slice()));
    let config = client_config(&tls.authority, identity).map_err(io::Error::other)?;
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = tls.server_name.clone().unwrap_or_else(|| host.to_owned());
    let name = ServerName::try_from(name).map_err(io::Error::other)?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    Ok(Box::new(stream))
}
