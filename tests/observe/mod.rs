//! What those who watch over a server see of the real program: metrics, health over HTTP, traces, and a
//! configuration that changes while it runs.

#![cfg(feature = "embedded")]

#[cfg(any(feature = "redis", feature = "redlock", feature = "etcd"))]
use common::certificates;
#[cfg(feature = "etcd")]
use common::etcd as etcd_servers;
#[cfg(feature = "postgres")]
use common::postgres as postgres_servers;
#[cfg(any(feature = "redis", feature = "redlock"))]
use common::redis as redis_servers;
use common::{asks, calls, server, session_client, signals};

mod chart;
mod crowd;
mod drain;
mod first_contact;
mod fixture;
mod grants;
mod health;
mod log;
mod moves;
#[cfg(any(feature = "redis", feature = "redlock", feature = "etcd", feature = "postgres"))]
mod proofs;
mod reload;
mod retiring;
mod scrape;
mod sessions;
mod traces;
