//! Calls that end at the worst moment.

mod retries;
mod storm;
