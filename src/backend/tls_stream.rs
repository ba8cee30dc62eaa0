//! TLS over the byte stream to a server of a store.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::login::Tls;
use crate::tls::credentials::client_config;

/// A stream of bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Encrypts a stream to the server at `host:port`.
///
/// # Errors
/// When a certificate is not accepted, or the server speaks no TLS.
pub async fn encrypt(stream: impl Duplex + 'static, server: &str, tls: &Tls) -> io::Result<Box<dyn Duplex>> {
    let identity = tls
        .identity
        .as_ref()
        .map(|(cert, key)| (cert.as_slice(), key.as_slice()));
    let config = client_config(Some(&tls.authority), identity).map_err(io::Error::other)?;
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = tls.server_name.clone().unwrap_or_else(|| host.to_owned());
    let name = ServerName::try_from(name).map_err(io::Error::other)?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    Ok(Box::new(stream))
}

/// Whether nobody else reads what is sent to this address.
pub fn is_secret(peer: IpAddr) -> bool {
    peer.to_canonical().is_loopback()
}
