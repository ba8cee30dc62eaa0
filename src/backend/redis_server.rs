//! What the backends over Redis servers share: connections that are shaken hands with before they
//! carry a write, the marker that tells a server that lost its memory, scripts, published messages.
//!
//! - [`settings`]: which servers, and how to reach them.
//! - [`proof`]: what proves this server to them, which may change.
//! - [`handshake`]: what a server says of itself, and whether that will do.
//! - [`marker`]: whether a server remembers what was granted, and the quarantine if it may not.
//! - [`node`]: one server, watched over.
//! - [`confirming`]: steps that replicas of the server must have taken too.
//! - [`sentinel`], [`cluster`], [`empty_masters`], [`topology`]: which server serves a key.
//! - [`hub`]: published messages.
//! - [`script`]: a Lua script and how it is called.
//! - [`shown`]: what a claim shows of itself, as it is stored.
//! - [`unreadable`]: locks whose records cannot be read.
//! - [`voter`]: one of several servers that vote.
//! - [`notifications`]: what waiting claims are told.

pub mod cluster;
pub mod confirmed;
pub mod empty_masters;
pub mod failure;
pub mod handshake;
pub mod subscriptions;
pub mod marker;
pub mod node;
pub mod credentials;
pub mod script;
pub mod sentinel;
pub mod settings;
pub mod description;
pub mod topology;
pub mod unreadable;
pub mod quorum_member;
pub mod notifications;
