//! The parts that the backends over Redis servers share: connections that pass a handshake before
//! they carry a write, the marker that detects a server that lost its data, scripts, and published
//! messages.
//!
//! - [`config`]: what the tables of the configuration share.
//! - [`settings`]: the servers, and how to reach them.
//! - [`credentials`]: the credentials for the servers, which may change at run time.
//! - [`handshake`]: reads the server's properties and checks that locks can be stored on it.
//! - [`marker`], [`marker_key`], [`quarantine_cause`]: whether a server still has all grants, and the quarantine if it may not.
//! - [`store_record`]: the stores in which this server has granted leases, in its data directory.
//! - [`connection`]: one connection to a server.
//! - [`node`]: one monitored server, over a [`connection`] whose answers are [`bounded`].
//! - [`confirmed`]: steps that the server's replicas must have received too.
//! - [`sentinel`], [`slots`], [`cluster`], [`slotless_masters`], [`topology`]: which server serves a key.
//! - [`subscriptions`]: published messages.
//! - [`script`], [`library`]: a Lua script and how it is called, and the scripts of a backend as functions.
//! - [`description`], [`reply`]: the stored description of a claim, and the replies of scripts.

pub mod bounded;
pub mod cluster;
pub mod config;
pub mod confirmed;
pub mod connection;
pub mod credentials;
pub mod description;
pub mod failure;
pub mod handshake;
pub mod library;
pub mod marker;
pub mod marker_key;
pub mod node;
pub mod pipelined;
pub mod quarantine_cause;
pub mod reply;
pub mod script;
pub mod sentinel;
pub mod settings;
pub mod slotless_masters;
pub mod slots;
pub mod store_record;
pub mod subscriptions;
pub mod topology;
pub mod url;
