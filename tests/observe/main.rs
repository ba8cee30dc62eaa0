//! What those who watch over a server see of the real program: metrics, health over HTTP, traces, and a
//! configuration that changes while it runs.

#![cfg(feature = "embedded")]

#[path = "../common/asks.rs"]
mod asks;
#[path = "../common/calls.rs"]
mod calls;
#[cfg(any(feature = "redis", feature = "redlock", feature = "etcd"))]
#[path = "../common/certificates.rs"]
mod certificates;
mod chart;
mod crowd;
mod drain;
#[cfg(feature = "etcd")]
#[path = "../common/etcd.rs"]
mod etcd_servers;
mod fixture;
mod health;
#[cfg(feature = "postgres")]
#[path = "../common/postgres.rs"]
mod postgres_servers;
#[cfg(any(feature = "redis", feature = "redlock", feature = "etcd", feature = "postgres"))]
mod proofs;
#[cfg(any(feature = "redis", feature = "redlock"))]
#[path = "../common/redis.rs"]
mod redis_servers;
mod reload;
mod retiring;
mod scrape;
#[path = "../server/mod.rs"]
mod server;
#[path = "../common/session_client.rs"]
mod session_client;
mod sessions;
mod traces;
