//! The promises as a client of the API sees them: a real server on a loopback port, over any
//! backend that has a case.

#[macro_use]
mod table;

pub mod answers;
pub mod elections;
pub mod input;
pub mod keeping;
pub mod leases;
pub mod looking;
pub mod metadata;
pub mod mixed_limits;
pub mod refused;
pub mod service;
pub mod sessions;
pub mod several;
pub mod stopping;
pub mod waiting;
