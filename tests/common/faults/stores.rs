//! What a test does to a store, whichever it is.

use std::time::Duration;

use fencepost::locks::Locks;

/// A store of a test's own. Its servers end when it is dropped.
#[allow(async_fn_in_trait, reason = "a test awaits it where it calls it")]
pub trait Store: Sized {
    /// How late the end of a lease of another server is noticed at most.
    const NOTICED: Duration;

    /// Whether this machine has its programs. Without them a test is skipped at home, and fails in CI.
    fn available() -> bool;

    fn start() -> Self;

    /// The same of three servers, where the service knows each of them.
    fn start_several() -> Self {
        Self::start()
    }

    /// How the namespace `faults` of a server of the service is configured.
    fn namespace(&self) -> String;

    /// The locks of one more server in this process, once it serves.
    async fn locks(&self) -> Locks;

    /// The same of a server that gives calls up as soon as users have it.
    async fn impatient(&self) -> Locks {
        self.locks().await
    }

    /// Stops all of it that must answer.
    fn pause(&self);

    fn resume(&self);

    /// Asserts that it keeps nothing of locks that nobody uses.
    fn assert_empty(&self) {}
}

/// A store with one server, which is reached through a forwarder as well.
#[allow(async_fn_in_trait, reason = "a test awaits it where it calls it")]
pub trait OneServer: Store {
    fn port(&self) -> u16;

    /// How the namespace `faults` of a server that reaches it at this address is configured.
    fn namespace_at(address: &str) -> String;

    /// The locks of a server that reaches it at this address, once it serves.
    async fn locks_at(address: String) -> Locks;
}

/// One whose wall clock a test steps.
pub trait Clocked: Store {
    /// How many years ahead the clock may be while it grants, one after the other.
    const FAR_YEARS: [i64; 3] = [300, 12_000, 0];

    fn with_clock() -> Self;

    /// Puts its clock so many seconds ahead, at once.
    fn shift(&mut self, seconds: i64);
}
