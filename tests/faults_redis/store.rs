//! A Redis, in the table of faults that stores have in common.

use std::sync::Arc;
use std::time::Duration;

use common::faults::records::Records;
use common::faults::stores::{Clocked, OneServer, Store};
use fencepost::backend::record::store::RecordStore;
use fencepost::backend::redis;
use fencepost::locks::Locks;
use fencepost::name::Namespace;

use crate::faults_redis::harness::{impatient, replica, standalone};
use crate::faults_redis::record_steps::serves;
use crate::faults_redis::servers::{RedisServer, available};

pub struct Redis(RedisServer);

impl Store for Redis {
    /// A poll takes 5 s.
    const NOTICED: Duration = Duration::from_millis(600);

    fn available() -> bool {
        available()
    }

    fn start() -> Self {
        Self(RedisServer::start(&[]))
    }

    fn namespace(&self) -> String {
        Self::namespace_at(&format!("127.0.0.1:{}", self.port()))
    }

    async fn locks(&self) -> Locks {
        replica(&standalone(&self.0.url())).await
    }

    async fn impatient(&self) -> Locks {
        replica(&impatient(standalone(&self.0.url()))).await
    }

    fn pause(&self) {
        self.0.pause();
    }

    fn resume(&self) {
        self.0.resume();
    }
}

impl OneServer for Redis {
    fn port(&self) -> u16 {
        self.0.port()
    }

    fn namespace_at(address: &str) -> String {
        format!("backend = \"redis\"\nredis.urls = [\"redis://{address}\"]\nredis.on_empty_store = \"admit\"")
    }

    async fn locks_at(address: String) -> Locks {
        replica(&standalone(&format!("redis://{address}"))).await
    }
}

impl Records for Redis {
    const HELD: &'static [u8] = b"held";

    fn in_commit(text: &str) -> Vec<u8> {
        text.into()
    }

    /// Its calls soon have no answer.
    async fn records_at(address: String) -> Arc<dyn RecordStore> {
        let mut settings = standalone(&format!("redis://{address}"));
        settings.response_timeout = Duration::from_secs(2);
        let store = redis::Store::open(settings).expect("random numbers");
        let records = store.records(&Namespace::new("faults").expect("a good name"));
        serves(&*records).await;
        records
    }

    fn durable() -> Self {
        Self(RedisServer::durable())
    }

    fn crash(&mut self) {
        self.0.kill9();
    }

    fn restart(&mut self) {
        self.0.restart();
    }
}

impl Clocked for Redis {
    fn with_clock() -> Self {
        Self(RedisServer::with_clock(&[]))
    }

    fn shift(&mut self, seconds: i64) {
        self.0.shift_clock(seconds);
    }
}
