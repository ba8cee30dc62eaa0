//! **Fencepost** grants locks as leases with fencing tokens, over the store that each namespace
//! chooses.
//!
//! The modules, in the order in which they are best read:
//! - [`name`]: the types of names, ids and durations, which are always valid.
//! - [`claim`]: the one rule that says who of a queue holds.
//! - [`queue`]: the queue of one lock.
//! - [`limits`]: what a namespace accepts.
//! - [`auth`]: who a caller is, and what it may do.
//! - [`quota`]: how many calls, leases, waiters and streams it may have.
//! - [`tls`]: encryption for listeners.
//! - [`backend`]: what a store must do, and the stores.
//! - [`batch`]: group commit.
//! - [`metrics`]: what is counted and measured.
//! - [`locks`]: Acquire, Renew and Release over any backend.
//! - [`session`]: the leases that a stream keeps alive.
//! - [`namespaces`]: the table of namespaces that calls look into.
//! - [`stores`]: the registry of stores, and those that are open.
//! - [`config`], [`schema`], [`telemetry`], [`error`], [`files`], [`supervisor`].
//! - [`rpc`]: the tables of methods and of reasons.
//! - [`api`]: the gRPC service over all of it.
//! - [`monitor`]: metrics and health over HTTP.
//! - [`reload`]: applies a changed configuration while the server runs.
//!
//! The other end is the crate `fencepost-client`: a lease that is kept, and that says when it is lost. The messages, the
//! time since boot and the pauses between attempts are its, and the server's too.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

use fencepost_core::{backoff, usage};
pub use fencepost_core::{
    batch, claim, clock, elections, error, files, ledger, limits, locks, measured, name, queue, quota, session,
    supervisor, traces,
};

pub mod api;
pub mod auth;
pub mod backend;
pub mod config;
pub mod metrics;
pub mod monitor;
pub mod namespaces;
pub mod reload;
pub mod rpc;
pub mod schema;
pub mod stores;
pub mod telemetry;
pub mod tls;
