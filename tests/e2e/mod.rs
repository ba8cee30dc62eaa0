//! The real program as a stranger meets it: with grpcurl, no files and no client of ours.

#![cfg(feature = "embedded")]

use common::server;

mod calls;
mod grpcurl;
mod input;
mod page;
mod reflection;
mod stopping;
