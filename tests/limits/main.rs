//! What many names and many callers cost the real server: memory, space and time, each within a
//! stated bound and printed.

#![cfg(feature = "embedded")]

use common::{server, session_client};

mod bare;
mod given_back;
mod half_open;
mod kept;
mod memory;
mod names;
mod sessions;
mod silent;
mod traffic;
mod waiters;
