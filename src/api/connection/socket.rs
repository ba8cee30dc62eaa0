//! The transport of a connection: a TCP or Unix socket, with or without TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// An accepted socket.
#[derive(Debug)]
pub(in crate::api) enum Socket {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixStream),
}

/// The transport of a connection.
#[derive(Debug)]
pub(in crate::api) enum Transport {
    /// Without encryption.
    Plain(Socket),
    /// With TLS.
    Tls(Box<TlsStream<Socket>>),
}

/// Implements reading and writing for an enum with two variants.
macro_rules! either {
    ($type:ident, $first:ident, $second:ident) => {
        impl AsyncRead for $type {
            fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::$first(inner) => Pin::new(inner).poll_read(cx, buf),
                    Self::$second(inner) => Pin::new(inner).poll_read(cx, buf),
                }
            }
        }

        impl AsyncWrite for $type {
            fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    Self::$first(inner) => Pin::new(inner).poll_write(cx, buf),
                    Self::$second(inner) => Pin::new(inner).poll_write(cx, buf),
                }
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    Self::$first(inner) => Pin::new(inner).poll_write_vectored(cx, bufs),
                    Self::$second(inner) => Pin::new(inner).poll_write_vectored(cx, bufs),
                }
            }

            fn is_write_vectored(&self) -> bool {
                match self {
                    Self::$first(inner) => inner.is_write_vectored(),
                    Self::$second(inner) => inner.is_write_vectored(),
                }
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::$first(inner) => Pin::new(inner).poll_flush(cx),
                    Self::$second(inner) => Pin::new(inner).poll_flush(cx),
                }
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::$first(inner) => Pin::new(inner).poll_shutdown(cx),
                    Self::$second(inner) => Pin::new(inner).poll_shutdown(cx),
                }
            }
        }
    };
}

either!(Socket, Tcp, Unix);
either!(Transport, Plain, Tls);
