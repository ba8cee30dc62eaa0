//! What those who watch over a server see of the real program: metrics, health over HTTP, traces, and a
//! configuration that changes while it runs.

#![cfg(feature = "embedded")]

#[path = "../common/asks.rs"]
mod asks;
mod bed;
#[path = "../common/calls.rs"]
mod calls;
mod chart;
mod crowd;
mod drain;
mod health;
mod reload;
mod retiring;
mod scrape;
#[path = "../server/mod.rs"]
mod server;
mod traces;
