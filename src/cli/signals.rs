//! Signals to this process.

use std::future::poll_fn;
use std::io;
use std::process;
use std::task::Poll;

use fencepost::telemetry;
use futures::stream::{self, BoxStream, StreamExt};
use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// The exit code after a second signal.
const SECOND_SIGNAL: i32 = 1;

/// The signals that end a server, or a measurement.
pub const TERMINATION: [Signal; 2] = [Signal::SIGTERM, Signal::SIGINT];

/// Handles some signals from its creation on.
#[derive(Debug)]
pub struct Signals {
    streams: Vec<(unix::Signal, Signal)>,
}

impl Signals {
    /// Installs the handlers. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The system's errors.
    pub fn take(kinds: &[Signal]) -> io::Result<Self> {
        let stream = |kind: &Signal| Ok((signal(SignalKind::from_raw(*kind as i32))?, *kind));
        let streams = kinds.iter().map(stream).collect::<io::Result<_>>()?;
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

    /// Waits for the first signal. After it, a second signal ends the process at once.
    pub async fn first(mut self) {
        let signal = self.next().await.as_str();
        tracing::info!(signal, "shutting down; a second signal ends at once");
        tokio::spawn(self.second());
    }

    async fn second(mut self) {
        let signal = self.next().await.as_str();
        tracing::warn!(signal, "ending at once");
        // Lines of the audit may be queued; it ends even if nobody reads them.
        telemetry::flush();
        process::exit(SECOND_SIGNAL);
    }

    /// A stream with one item per signal.
    pub fn into_stream(self) -> BoxStream<'static, ()> {
        let next = |mut signals: Self| async move { Some((signals.next().await, signals)) };
        stream::unfold(self, next).map(|_| ()).boxed()
    }
}
