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

use fencepost_client::backoff;
pub use fencepost_client::clock;

pub mod api;
pub mod auth;
pub mod backend;
pub mod batch;
pub mod claim;
pub mod config;
pub mod elections;
pub mod error;
pub mod files;
pub mod ledger;
pub mod limits;
pub mod locks;
pub mod metrics;
pub mod monitor;
pub mod name;
pub mod namespaces;
pub mod queue;
pub mod quota;
pub mod reload;
pub mod rpc;
pub mod schema;
pub mod session;
pub mod stores;
pub mod supervisor;
pub mod telemetry;
pub mod tls;
mod usage;
