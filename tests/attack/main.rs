//! Attacks on the real server beside a client that only wants to work: what each attack may take of the
//! server's capacity, as that client sees it.

#![cfg(feature = "embedded")]

mod bed;
mod crowds;
mod order;
mod protocol;
#[path = "../server/mod.rs"]
mod server;
mod untaken;
