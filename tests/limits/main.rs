//! What many names and many callers cost the real server: memory, space and time, each within a
//! stated bound and printed.

#![cfg(feature = "embedded")]

mod bare;
mod given_back;
mod half_open;
mod kept;
mod memory;
mod names;
#[path = "../server/mod.rs"]
mod server;
#[path = "../common/session_client.rs"]
mod session_client;
mod sessions;
mod silent;
mod traffic;
mod waiters;
