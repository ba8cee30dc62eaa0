//! What this replica knows of each lock.

pub mod admission;
pub mod in_flight;
pub mod notifications;
pub mod watch;
