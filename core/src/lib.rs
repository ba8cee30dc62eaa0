//! The queues, leases and engines of Fencepost: everything between a call and a store's protocol, without the wire, TLS and
//! drivers, so that it builds and is tested by itself. The crate `fencepost` offers the same modules.
//!
//! The modules, in the order in which they are best read:
//! - [`name`]: the types of names, ids and durations, which are always valid.
//! - [`claim`]: the one rule that says who of a queue holds.
//! - [`queue`]: the queue of one lock.
//! - [`limits`]: what a namespace accepts.
//! - [`backend`]: what a store must do, the engines, and the embedded store.
//! - [`batch`]: group commit.
//! - [`ledger`], [`measured`]: the leases that this server knows, and the backend that records them.
//! - [`locks`]: Acquire, Renew and Release over any backend.
//! - [`elections`], [`session`]: who leads, and the leases that a stream keeps alive.
//! - [`auth`], [`quota`], [`error`]: what a caller may do, how much of it, and why a call failed.
//! - [`files`], [`supervisor`], [`traces`], [`backoff`], [`clock`].

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod auth;
pub mod backend;
// This and `clock` are files of the client, which brings the wire, so this crate does not depend on it.
pub mod backoff;
pub mod batch;
pub mod claim;
pub mod clock;
pub mod elections;
pub mod error;
pub mod files;
pub mod ledger;
pub mod limits;
pub mod locks;
pub mod measured;
pub mod name;
pub mod queue;
pub mod quota;
pub mod session;
pub mod supervisor;
pub mod traces;
pub mod usage;
