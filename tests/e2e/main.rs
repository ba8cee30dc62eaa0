//! The real program as a stranger meets it: with grpcurl, no files and no client of ours.

#![cfg(feature = "embedded")]

mod calls;
mod grpcurl;
mod input;
mod page;
mod reflection;
#[path = "../server/mod.rs"]
mod server;
mod stopping;
