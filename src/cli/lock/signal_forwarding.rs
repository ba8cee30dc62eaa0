//! The signals that are passed on to the command.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// All that a user or a system sends to ask something of a command.
const PASSED: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Those signals, from the system's hands as soon as this exists.
#[derive(Debug)]
pub struct SignalForwarding {
    streams: Vec<(unix::Signal, Signal)>,
}

impl SignalForwarding {
    /// Takes the signals over; needs a runtime.
    ///
    /// # Errors
    /// Those of the system.
    pub fn take() -> io::Result<Self> {
        let stream = |kind: Signal| Ok((signal(SignalKind::from_raw(kind as i32))?, kind));
        let streams = PASSED.into_iter().map(stream).collect::<io::Result<_>>()?;
        Ok(Self { streams })
    }

    /// The next one.
    ///
    /// # Cancellation safety
    /// Dropped, none is missed.
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
