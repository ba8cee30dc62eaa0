//! The cases, by theme. Each is a sentence of `fencepost::backend`'s contract or a promise of the
//! service that a store can show.

pub mod exclusion;
pub mod handing;
pub mod kept;
pub mod limits;
pub mod looking;
pub mod metadata;
pub mod mixed_limits;
pub mod modes;
#[cfg(debug_assertions)]
pub mod panics;
pub mod reentry;
pub mod release;
pub mod renewal;
pub mod resumed;
pub mod retries;
pub mod tokens;
pub mod undo;
pub mod waiting;
