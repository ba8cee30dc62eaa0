//! The tree engine.

pub mod store;
