//! Three servers on one store, as a cluster runs them: restarted in turn while clients go on.
#![cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper", feature = "postgres"))]

#[path = "../common/asks.rs"]
mod asks;
#[path = "../common/calls.rs"]
#[allow(dead_code, reason = "each test binary uses its share")]
mod calls;
#[cfg(feature = "etcd")]
#[path = "../common/etcd.rs"]
mod etcd_servers;
mod load;
#[cfg(feature = "postgres")]
#[path = "../common/postgres.rs"]
mod postgres_servers;
#[cfg(feature = "redis")]
#[path = "../common/redis.rs"]
mod redis_servers;
mod register;
mod replicas;
mod rolling;
#[path = "../server/mod.rs"]
mod server;
#[cfg(feature = "zookeeper")]
#[path = "../common/zookeeper.rs"]
mod zookeeper_servers;
