//! The transport of a connection: a TCP or Unix socket, with or without TLS.

use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// An accepted socket.
pub(in crate::api) type Socket = Either<TcpStream, UnixStream>;

/// The transport of a connection, maybe with TLS.
pub(in crate::api) type Transport = Either<Socket, Box<TlsStream<Socket>>>;
