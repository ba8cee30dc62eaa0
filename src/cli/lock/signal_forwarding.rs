//! The signals that are forwarded to the command.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// Signals that users and systems send to control a command.
const FORWARDED: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Handles these signals from its creation on.
#[derive(Debug)]
pub struct SignalForwarding {
    streams: Vec<(unix::Signal, Signal)>,
}

impl SignalForwarding {
    /// Installs the handlers. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The system's errors.
    pub fn take() -> io::Result<Self> {
        let stream = |kind: Signal| Ok((signal(SignalKind::from_raw(kind as i32))?, kind));
        let streams = FORWARDED.into_iter().map(stream).collect::<io::Result<_>>()?;
        Ok(Self { streams })
    }

    /// The next signal.
    ///
    /// # Cancellation safety
    /// When dropped, no signal is lost.
    pub async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (stream, kind) in &mut self.streams {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(*kind);
                }
            }
            Poll::Pending
        })
        .await
    }
}
