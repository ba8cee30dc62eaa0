//! The record engine: a lock's queue (`crate::queue`) in a store that replaces one record by compare-and-set.

pub mod store;
