//! Three servers on one store, as a cluster runs them: restarted in turn while clients go on.
#![cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql"
))]

#[cfg(feature = "etcd")]
use common::etcd as etcd_servers;
#[cfg(feature = "mysql")]
use common::mysql as mysql_servers;
#[cfg(feature = "postgres")]
use common::postgres as postgres_servers;
#[cfg(feature = "redis")]
use common::redis as redis_servers;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
use common::session_client;
#[cfg(feature = "zookeeper")]
use common::zookeeper as zookeeper_servers;
use common::{asks, calls, register, server};

mod load;
mod replicas;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
mod resumed;
mod rolling;
#[cfg(any(feature = "etcd", feature = "mysql", feature = "postgres", feature = "redis"))]
mod stores;
