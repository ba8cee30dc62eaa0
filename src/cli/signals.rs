//! The signals that end the server, and the one that makes it reload its configuration.

use std::io;
use std::process;

use futures::stream::{self, BoxStream, StreamExt};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit code after a second signal.
const SECOND_SIGNAL: i32 = 1;

/// Handles SIGTERM and SIGINT from its creation on.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the handlers. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The system's errors.
    pub fn take() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the first signal. After it, a second signal ends the process at once.
    pub async fn first(mut self) {
        let name = self.next().await;
        tracing::info!(signal = name, "shutting down; a second signal ends at once");
        tokio::spawn(self.second());
    }

    async fn second(mut self) {
        let name = self.next().await;
        tracing::warn!(signal = name, "ending at once");
        process::exit(SECOND_SIGNAL);
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Handles SIGHUP from its creation on.
#[derive(Debug)]
pub struct HangUps(Signal);

impl HangUps {
    /// Installs the handler. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The system's errors.
    pub fn take() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    /// A stream with one item per signal.
    pub fn into_stream(self) -> BoxStream<'static, ()> {
        stream::unfold(self, |mut signals| async { Some((signals.0.recv().await?, signals)) }).boxed()
    }
}
