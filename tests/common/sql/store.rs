//! A database, in the table of faults that stores have in common.

use std::sync::Arc;
use std::time::Duration;

use common::clock_shim;
use common::faults::records::Records;
use common::faults::stores::{Clocked, OneServer, Store};
use fencepost::backend::record::store::RecordStore;
use fencepost::locks::Locks;
use tempfile::TempDir;

use crate::harness::{self, Server, durable, in_statement, namespace, records, settings, settings_of};
use crate::replicas::{no_part_is_left, replica};
use crate::servers::{available, folder};

/// A database, and the folder of its clock if that is not the machine's.
pub struct Database {
    pub server: Server,
    clock: Option<TempDir>,
}

impl Store for Database {
    const NOTICED: Duration = harness::NOTICED;

    fn available() -> bool {
        available()
    }

    fn start() -> Self {
        Self {
            server: durable(),
            clock: None,
        }
    }

    fn namespace(&self) -> String {
        namespace(&self.server.address())
    }

    async fn locks(&self) -> Locks {
        replica(settings(&self.server)).await
    }

    fn pause(&self) {
        self.server.pause();
    }

    fn resume(&self) {
        self.server.resume();
    }

    fn assert_empty(&self) {
        no_part_is_left(&self.server);
    }
}

impl OneServer for Database {
    fn port(&self) -> u16 {
        self.server.port()
    }

    fn namespace_at(address: &str) -> String {
        namespace(address)
    }

    async fn locks_at(address: String) -> Locks {
        replica(settings_of(vec![address])).await
    }
}

impl Records for Database {
    const HELD: &'static [u8] = harness::HELD;

    fn in_commit(text: &str) -> Vec<u8> {
        in_statement(text)
    }

    async fn records_at(address: String) -> Arc<dyn RecordStore> {
        records(settings_of(vec![address])).await
    }

    fn crash(&mut self) {
        self.server.crash();
    }

    fn restart(&mut self) {
        self.server.start();
    }
}

impl Clocked for Database {
    const FAR_YEARS: [i64; 3] = harness::FAR_YEARS;

    fn with_clock() -> Self {
        let folder = folder();
        clock_shim::build(folder.path());
        clock_shim::write_shift(folder.path(), [0, 0]);
        Self {
            server: Server::started_with(clock_shim::environment(folder.path())),
            clock: Some(folder),
        }
    }

    fn shift(&mut self, seconds: i64) {
        let folder = self.clock.as_ref().expect("it has a clock of its own");
        clock_shim::write_shift(folder.path(), [seconds, 0]);
    }
}
