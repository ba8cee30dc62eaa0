//! What the client of an HTTP/1.1 connection has ended.
//!
//! While a request is answered, hyper does not read, so it does not notice the end of the connection. Bytes that the
//! client sent behind its request would hide the end from a read, too. Therefore the socket below TLS is asked whether
//! its client has ended it, which reads nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures::FutureExt;
use rustix::io::ioctl_fionread;
use tokio::io::{Interest, Ready};
use tokio_util::either::Either;

use super::{Socket, Transport};

/// What a client has ended, as of the last look.
#[derive(Debug, Default)]
pub(in crate::api) struct ClientEnd {
    /// It sends no more: it is gone, or only reads.
    stopped_sending: AtomicBool,
    /// Bytes lie in the socket, which hides the arrival of an end from the runtime: another look is needed.
    is_hidden: AtomicBool,
    unread: AtomicU64,
}

/// How many unread bytes make a socket so full that the system may not receive an end behind them.
const FULL: u64 = 32 << 10;

impl ClientEnd {
    /// Whether the client sends no more.
    pub(in crate::api) fn stopped_sending(&self) -> bool {
        self.stopped_sending.load(Ordering::Relaxed)
    }

    /// Whether the task of the connection is not woken when its client ends the connection.
    pub(in crate::api) fn is_hidden(&self) -> bool {
        self.is_hidden.load(Ordering::Relaxed)
    }

    /// Whether so much lies in the socket that no end can be seen.
    pub(in crate::api) fn is_full(&self) -> bool {
        self.unread.load(Ordering::Relaxed) >= FULL
    }

    /// Looks at the socket. The task is woken by what arrives next, unless the end is hidden.
    pub(super) fn look(&self, transport: &Transport, cx: &mut Context<'_>) {
        let socket = match transport {
            Either::Left(socket) => socket,
            Either::Right(tls) => tls.get_ref().0,
        };
        // The waker is registered first, so that no end is missed between the two.
        let is_hidden = poll_readable(socket, cx).is_ready();
        self.is_hidden.store(is_hidden, Ordering::Relaxed);
        self.unread
            .store(if is_hidden { unread(socket) } else { 0 }, Ordering::Relaxed);
        self.stopped_sending
            .store(readiness(socket).is_read_closed(), Ordering::Relaxed);
    }
}

fn poll_readable(socket: &Socket, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
    match socket {
        Either::Left(tcp) => tcp.poll_read_ready(cx),
        Either::Right(unix) => unix.poll_read_ready(cx),
    }
}

/// How many bytes lie in the socket.
fn unread(socket: &Socket) -> u64 {
    let unread = match socket {
        Either::Left(tcp) => ioctl_fionread(tcp),
        Either::Right(unix) => ioctl_fionread(unix),
    };
    // It fails only for a connection that is gone.
    unread.unwrap_or_default()
}

/// What the system has told about the socket.
fn readiness(socket: &Socket) -> Ready {
    let ready = match socket {
        Either::Left(tcp) => tcp.ready(Interest::READABLE).now_or_never(),
        Either::Right(unix) => unix.ready(Interest::READABLE).now_or_never(),
    };
    ready.and_then(Result::ok).unwrap_or(Ready::EMPTY)
}
