//! The conformance suite: what every backend promises, one named test per promise and backend.
//!
//! A case is a plain `async fn case(fixture: &Fixture)` in `cases/`; [`table`] names them all;
//! a backend joins with a function that opens a [`fixture::Fixture`] (in [`fixtures`]) and one line below.
//! `grpc/` asks the same of the whole service, through its API.
//!
//! Each store has one topology in every run, and its others in the long runs.

// The suite needs a store to run on; a build without any has none.
#![cfg(feature = "embedded")]

#[cfg(feature = "etcd")]
use common::etcd as etcd_servers;
#[cfg(feature = "mysql")]
use common::mysql as mysql_servers;
#[cfg(feature = "postgres")]
use common::postgres as postgres_servers;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use common::record_store;
#[cfg(any(feature = "redis", feature = "redlock"))]
use common::redis as redis_servers;
#[cfg(feature = "zookeeper")]
use common::zookeeper as zookeeper_servers;
use common::{asks, calls, session_client};

#[macro_use]
mod suite;
#[macro_use]
mod table;
mod cases;
mod claims;
#[cfg(feature = "etcd")]
#[cfg_attr(not(feature = "soak"), expect(dead_code, reason = "topologies of the long runs"))]
mod etcd_fixtures;
mod fixture;
mod fixtures;
#[macro_use]
mod grpc;
#[cfg(feature = "mysql")]
mod mysql_fixtures;
#[cfg(feature = "postgres")]
mod postgres_fixtures;
#[cfg(any(feature = "mysql", feature = "postgres"))]
#[cfg_attr(not(feature = "soak"), expect(dead_code, reason = "topologies of the long runs"))]
mod record_fixtures;
#[cfg(feature = "redis")]
#[cfg_attr(not(feature = "soak"), expect(dead_code, reason = "topologies of the long runs"))]
mod redis_fixtures;
#[cfg(feature = "redlock")]
mod redlock_fixtures;
mod replica;
mod streams;
#[cfg(feature = "zookeeper")]
mod tree_fixtures;
mod walk;
#[cfg(feature = "zookeeper")]
#[cfg_attr(not(feature = "soak"), expect(dead_code, reason = "topologies of the long runs"))]
mod zookeeper_fixtures;

conformance_suite!(memory, crate::fixtures::memory, (start_paused = true));
conformance_suite!(file, crate::fixtures::file, ());
#[cfg(all(any(feature = "mysql", feature = "postgres"), feature = "soak"))]
conformance_suite!(record, crate::record_fixtures::one, (start_paused = true));
#[cfg(any(feature = "mysql", feature = "postgres"))]
conformance_suite!(record_pair, crate::record_fixtures::two, (start_paused = true));

#[cfg(feature = "zookeeper")]
conformance_suite!(tree_pair, crate::tree_fixtures::two, (start_paused = true));
#[cfg(feature = "zookeeper")]
conformance_suite!(
    tree_pair_independent,
    crate::tree_fixtures::two_independent,
    (start_paused = true)
);

#[cfg(feature = "redis")]
conformance_suite!(
    redis,
    crate::redis_fixtures::standalone,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(all(feature = "redis", feature = "soak"))]
conformance_suite!(
    redis_sentinel,
    crate::redis_fixtures::sentinel,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(all(feature = "redis", feature = "soak"))]
conformance_suite!(
    redis_cluster,
    crate::redis_fixtures::cluster,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(all(feature = "redis", feature = "soak"))]
conformance_suite!(
    redis_confirmed,
    crate::redis_fixtures::confirmed,
    (flavor = "multi_thread", worker_threads = 2)
);

#[cfg(feature = "etcd")]
conformance_suite!(
    etcd,
    crate::etcd_fixtures::one,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(all(feature = "etcd", feature = "soak"))]
conformance_suite!(
    etcd_of_three,
    crate::etcd_fixtures::three,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(all(feature = "etcd", feature = "soak"))]
conformance_suite!(
    etcd_of_old,
    crate::etcd_fixtures::old,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(feature = "redlock")]
conformance_suite!(
    redlock,
    crate::redlock_fixtures::five,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(feature = "postgres")]
conformance_suite!(
    postgres,
    crate::postgres_fixtures::one,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(feature = "mysql")]
conformance_suite!(
    mysql,
    crate::mysql_fixtures::one,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(feature = "zookeeper")]
conformance_suite!(
    zookeeper,
    crate::zookeeper_fixtures::one,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(all(feature = "zookeeper", feature = "soak"))]
conformance_suite!(
    zookeeper_of_three,
    crate::zookeeper_fixtures::three,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(all(feature = "zookeeper", feature = "soak"))]
conformance_suite!(
    zookeeper_of_old,
    crate::zookeeper_fixtures::old,
    (flavor = "multi_thread", worker_threads = 2)
);

service_suite!(memory_service, crate::fixtures::memory_in_real_time, ());
service_suite!(file_service, crate::fixtures::file, ());
#[cfg(feature = "redis")]
service_suite!(
    redis_service,
    crate::redis_fixtures::standalone,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(feature = "etcd")]
service_suite!(
    etcd_service,
    crate::etcd_fixtures::one,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(feature = "redlock")]
service_suite!(
    redlock_service,
    crate::redlock_fixtures::five,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(feature = "postgres")]
service_suite!(
    postgres_service,
    crate::postgres_fixtures::one,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(feature = "mysql")]
service_suite!(
    mysql_service,
    crate::mysql_fixtures::one,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(feature = "zookeeper")]
service_suite!(
    zookeeper_service,
    crate::zookeeper_fixtures::one,
    (flavor = "multi_thread", worker_threads = 2)
);
