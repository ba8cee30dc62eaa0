//! A store over a Redis, and claims that live for as long as a test.

use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::redis::Store;
use fencepost::backend::{Backend, ClaimLimits, Health, NewClaim};
use fencepost::name::{Namespace, Ttl};

use crate::redis_settings::harness::standalone;
use crate::redis_settings::numbered::numbered;
use crate::redis_settings::servers::RedisServer;

pub fn claim(number: u128) -> NewClaim {
    NewClaim {
        ttl: Ttl::new(Duration::from_secs(600)).unwrap(),
        limits: ClaimLimits {
            queue: 1_000,
            finished: 100_000,
            holds: 10,
        },
        ..numbered(number)
    }
}

pub async fn open(server: &RedisServer) -> Arc<dyn Backend> {
    open_at(&server.url()).await
}

pub async fn open_at(url: &str) -> Arc<dyn Backend> {
    let backend = Store::open(standalone(url))
        .unwrap()
        .namespace(&Namespace::new("long").unwrap());
    let mut health = backend.health();
    health.wait_for(|health| *health == Health::Serving).await.unwrap();
    backend
}
