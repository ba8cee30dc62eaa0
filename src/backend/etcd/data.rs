//! What is stored: the keys, the records under them, and what is read of a lock.

pub mod conditions;
#[cfg(test)]
mod golden;
pub mod key_suffixes;
pub mod keys;
pub mod record;
pub mod snapshot;
pub mod view;
