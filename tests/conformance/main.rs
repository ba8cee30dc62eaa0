//! The conformance suite: what every backend promises, one named test per promise and backend.
//!
//! A case is a plain `async fn case(fixture: &Fixture)` in `cases/`; [`table`] names them all;
//! a backend joins with a function that opens a [`fixture::Fixture`] (in [`fixtures`]) and one line below.
//! `grpc/` asks the same of the whole service, through its API.
//!
//! Memory, file and the stores on a virtual clock run every case. A real store has one topology in every run, with the
//! cases that its server can break; the others are ignored but in the long runs, and where a change touches the store.

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

conformance_suite!(memory, every_case, crate::fixtures::memory, (start_paused = true));
conformance_suite!(file, every_case, crate::fixtures::file, ());
#[cfg(all(any(feature = "mysql", feature = "postgres"), feature = "soak"))]
conformance_suite!(record, every_case, crate::record_fixtures::one, (start_paused = true));
#[cfg(any(feature = "mysql", feature = "postgres"))]
conformance_suite!(
    record_pair,
    every_case,
    crate::record_fixtures::two,
    (start_paused = true)
);

#[cfg(feature = "zookeeper")]
conformance_suite!(tree_pair, every_case, crate::tree_fixtures::two, (start_paused = true));
#[cfg(feature = "zookeeper")]
conformance_suite!(
    tree_pair_independent,
    every_case,
    crate::tree_fixtures::two_independent,
    (start_paused = true)
);

#[cfg(feature = "redis")]
conformance_suite!(redis, store_cases, crate::redis_fixtures::standalone);
#[cfg(all(feature = "redis", feature = "soak"))]
conformance_suite!(redis_sentinel, store_cases, crate::redis_fixtures::sentinel);
#[cfg(all(feature = "redis", feature = "soak"))]
conformance_suite!(redis_cluster, store_cases, crate::redis_fixtures::cluster);
#[cfg(all(feature = "redis", feature = "soak"))]
conformance_suite!(redis_confirmed, store_cases, crate::redis_fixtures::confirmed);

#[cfg(feature = "etcd")]
conformance_suite!(etcd, store_cases, crate::etcd_fixtures::one);
#[cfg(all(feature = "etcd", feature = "soak"))]
conformance_suite!(etcd_of_three, store_cases, crate::etcd_fixtures::three);
#[cfg(all(feature = "etcd", feature = "soak"))]
conformance_suite!(etcd_of_old, store_cases, crate::etcd_fixtures::old);
#[cfg(feature = "redlock")]
conformance_suite!(redlock, store_cases, crate::redlock_fixtures::five);
#[cfg(feature = "postgres")]
conformance_suite!(postgres, store_cases, crate::postgres_fixtures::one);
#[cfg(feature = "mysql")]
conformance_suite!(mysql, store_cases, crate::mysql_fixtures::one);
#[cfg(feature = "zookeeper")]
conformance_suite!(zookeeper, store_cases, crate::zookeeper_fixtures::one);
#[cfg(all(feature = "zookeeper", feature = "soak"))]
conformance_suite!(zookeeper_of_three, store_cases, crate::zookeeper_fixtures::three);
#[cfg(all(feature = "zookeeper", feature = "soak"))]
conformance_suite!(zookeeper_of_old, store_cases, crate::zookeeper_fixtures::old);

service_suite!(memory_service, every_case, crate::fixtures::memory_in_real_time, ());
service_suite!(file_service, every_case, crate::fixtures::file, ());
#[cfg(feature = "redis")]
service_suite!(redis_service, store_cases, crate::redis_fixtures::standalone);
#[cfg(feature = "etcd")]
service_suite!(etcd_service, store_cases, crate::etcd_fixtures::one);
#[cfg(feature = "redlock")]
service_suite!(redlock_service, store_cases, crate::redlock_fixtures::five);
#[cfg(feature = "postgres")]
service_suite!(postgres_service, store_cases, crate::postgres_fixtures::one);
#[cfg(feature = "mysql")]
service_suite!(mysql_service, store_cases, crate::mysql_fixtures::one);
#[cfg(feature = "zookeeper")]
service_suite!(zookeeper_service, store_cases, crate::zookeeper_fixtures::one);
