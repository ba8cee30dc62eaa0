//! What the real server does when it is killed, stopped, robbed of its disk or its file, and when
//! its callers drop their calls at bad moments.
//!
//! The figures of each run are printed: `cargo test --test faults -- --nocapture`, and with
//! `--features soak` for the long runs.
#![cfg(feature = "embedded")]

mod client;
mod embedded;
mod history;
mod races;
#[path = "../common/server.rs"]
mod server;

/// So many rounds: few in every run, many under `soak`.
const fn rounds(few: usize, many: usize) -> usize {
    if cfg!(feature = "soak") { many } else { few }
}
