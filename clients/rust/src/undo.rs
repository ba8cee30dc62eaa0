//! Gives back what an Acquire was granted, or may be granted yet, when its caller has gone.

use futures::future::BoxFuture;
use tokio::runtime::Handle;

/// Runs its undo in the background when it is dropped, unless it was disarmed. A runtime that ends at once does not wait
/// for that: the lease then ends with its TTL.
pub(super) struct Undo<U: FnOnce() -> BoxFuture<'static, ()>>(Option<U>);

impl<U: FnOnce() -> BoxFuture<'static, ()>> Undo<U> {
    /// An armed one.
    pub fn armed(undo: U) -> Self {
        Self(Some(undo))
    }

    /// Nothing is left to undo.
    pub fn disarm(mut self) {
        self.0 = None;
    }
}

impl<U: FnOnce() -> BoxFuture<'static, ()>> Drop for Undo<U> {
    fn drop(&mut self) {
        if let (Some(undo), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(undo());
        }
    }
}
