//! The signals that end the server, and the one that lets it read its configuration again.

use std::io;
use std::process;

use futures::stream::{self, BoxStream, StreamExt};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit code of a server that was told twice to end.
const TOLD_TWICE: i32 = 1;

/// SIGTERM and SIGINT, taken from the system's own hands as soon as this exists.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes the signals over; needs a runtime.
    ///
    /// # Errors
    /// Those of the system.
    pub fn take() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the first signal; from then on a second one ends the process at once.
    pub async fn first(mut self) {
        let name = self.next().await;
        tracing::info!(signal = name, "shutting down; a second signal ends at once");
        tokio::spawn(self.second());
    }

    async fn second(mut self) {
        let name = self.next().await;
        tracing::warn!(signal = name, "ending at once");
        process::exit(TOLD_TWICE);
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// SIGHUP, taken from the system's own hands as soon as this exists.
#[derive(Debug)]
pub struct HangUps(Signal);

impl HangUps {
    /// Takes the signal over; needs a runtime.
    ///
    /// # Errors
    /// Those of the system.
    pub fn take() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    /// One after another.
    pub fn into_stream(self) -> BoxStream<'static, ()> {
        stream::unfold(self, |mut it| async { Some((it.0.recv().await?, it)) }).boxed()
    }
}
