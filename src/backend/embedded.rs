//! The embedded store, as the configuration names it.

pub use fencepost_core::backend::embedded::*;

pub mod config;
