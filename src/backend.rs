//! The stores, each over what the crate `fencepost-core` says of all of them: the trait [`Backend`] and its contract, the
//! engines, and the embedded store.

pub use fencepost_core::backend::*;

pub mod driver;
#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "redlock",
    feature = "zookeeper"
))]
pub mod login;
pub mod login_files;
#[cfg(any(
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "redlock",
    feature = "zookeeper"
))]
pub mod tls_stream;

#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "redis", feature = "redlock"))]
pub mod redis_server;
#[cfg(feature = "redlock")]
pub mod redlock;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub mod sql;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
