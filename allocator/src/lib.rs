//! The allocator of the fencepost program: mimalloc, with what makes it return freed memory to the system.
//!
//! This crate exists because mimalloc's `mi_collect` has no safe wrapper: it keeps `unsafe` out of the program.
//!
//! A third of the server's CPU time was the C library's allocator. jemalloc gave back as much memory, but takes 190 s
//! of CPU to build. Each worker returns freed memory when it parks, at most once a second.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The allocator, for `#[global_allocator]`.
pub use mimalloc::MiMalloc as Allocator;

/// How often a thread collects at most: a collection looks at each page of the thread.
const PERIOD: Duration = Duration::from_secs(1);

thread_local! {
    /// When this thread collected last.
    static COLLECTED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Frees the calling thread's empty pages, and returns memory to the system that was free for a second, of any
/// thread. Does so at most once a second for each thread; a thread calls it when it has nothing to do.
///
/// mimalloc itself does both only while the same thread allocates, so an idle server would keep what it used last.
pub fn return_freed_memory() {
    let now = Instant::now();
    if COLLECTED.get().is_some_and(|last| now - last < PERIOD) {
        return;
    }
    COLLECTED.set(Some(now));
    // SAFETY: mi_collect has no preconditions: it takes no pointer and works on the calling thread's own heap.
    #[expect(unsafe_code, reason = "mimalloc has no safe wrapper for it")]
    unsafe {
        libmimalloc_sys::mi_collect(false);
    }
}
