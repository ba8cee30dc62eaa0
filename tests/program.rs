//! The program, its client library and the embedded store, in one binary, because each binary more links the program's crates
//! once more.

mod cli;
mod client;
mod config;
mod e2e;
mod embedded;
mod http;
mod observe;
mod readme;
mod secure;
mod serve;
