//! The state of a client's stream: the leases that it keeps ([`KeptLeases`], for KeepAlive and Session), and the
//! commands in flight ([`Commands`], for Session).
//!
//! This module knows no transport and no store. Its owner passes commands, beats, outcomes and the time in, and takes
//! out what to start and what to tell the client.

mod commands;
mod kept_leases;

pub use self::commands::{Commands, LockNumber, Order, Started};
pub use self::kept_leases::{KeptLeases, Message, Moment, NamedBy, NotRenewed};
