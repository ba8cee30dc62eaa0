//! The conformance suite: what every backend promises, one named test per promise and backend.
//!
//! A case is a plain `async fn case(bed: &Bed)` in `cases/`; [`table`] names them all;
//! a backend joins with a function that opens a [`bed::Bed`] (in [`beds`]) and one line below.
//! `grpc/` asks the same of the whole service, through its API.

// The suite needs a store to run on; a build without any has none.
#![cfg(feature = "embedded")]

#[macro_use]
mod suite;
#[macro_use]
mod table;
#[path = "../common/asks.rs"]
mod asks;
mod bed;
mod beds;
#[path = "../common/calls.rs"]
mod calls;
mod cases;
mod claims;
#[cfg(feature = "etcd")]
mod etcd_beds;
#[cfg(feature = "etcd")]
#[path = "../common/etcd.rs"]
mod etcd_servers;
#[macro_use]
mod grpc;
#[cfg(feature = "redis")]
mod redis_beds;
#[cfg(any(feature = "redis", feature = "redlock"))]
#[path = "../common/redis.rs"]
mod redis_servers;
#[cfg(feature = "redlock")]
mod redlock_beds;
mod replica;
mod streams;
mod walk;

conformance_suite!(memory, crate::beds::memory, (start_paused = true));
conformance_suite!(file, crate::beds::file, ());

#[cfg(feature = "redis")]
conformance_suite!(
    redis,
    crate::redis_beds::standalone,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(feature = "redis")]
conformance_suite!(
    redis_sentinel,
    crate::redis_beds::sentinel,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(feature = "redis")]
conformance_suite!(
    redis_cluster,
    crate::redis_beds::cluster,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(feature = "redis")]
conformance_suite!(
    redis_confirmed,
    crate::redis_beds::confirmed,
    (flavor = "multi_thread", worker_threads = 2)
);

#[cfg(feature = "etcd")]
conformance_suite!(
    etcd,
    crate::etcd_beds::one,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(feature = "etcd")]
conformance_suite!(
    etcd_of_three,
    crate::etcd_beds::three,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(feature = "etcd")]
conformance_suite!(
    etcd_of_old,
    crate::etcd_beds::old,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(feature = "redlock")]
conformance_suite!(
    redlock,
    crate::redlock_beds::five,
    (flavor = "multi_thread", worker_threads = 2)
);

service_suite!(memory_service, crate::beds::memory_in_real_time, ());
service_suite!(file_service, crate::beds::file, ());
#[cfg(feature = "redis")]
service_suite!(
    redis_service,
    crate::redis_beds::standalone,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(feature = "etcd")]
service_suite!(
    etcd_service,
    crate::etcd_beds::one,
    (flavor = "multi_thread", worker_threads = 2)
);
#[cfg(feature = "redlock")]
service_suite!(
    redlock_service,
    crate::redlock_beds::five,
    (flavor = "multi_thread", worker_threads = 2)
);
