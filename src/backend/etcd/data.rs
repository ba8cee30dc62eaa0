//! What is stored: the keys, the records under them, and what is read of a lock.

pub mod conditions;
#[cfg(test)]
mod golden;
pub mod keys;
pub mod record;
pub mod slots;
pub mod snapshot;
pub mod view;
