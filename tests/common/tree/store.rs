//! The servers of a tree, in the table of faults that stores have in common.

use std::time::Duration;

use common::faults::stores::{OneServer, Store};
use fencepost::locks::Locks;

use crate::harness::{self, Servers, addresses, at, config, replica, replica_of, store};

pub struct Tree(Servers);

impl Store for Tree {
    /// A store ends the lease, or a server that has seen it for its whole time.
    const NOTICED: Duration = Duration::from_millis(1_500);

    fn available() -> bool {
        harness::available()
    }

    fn start() -> Self {
        Self(store(1).expect("it is available"))
    }

    fn start_several() -> Self {
        Self(store(3).expect("it is available"))
    }

    fn namespace(&self) -> String {
        config(&addresses(&self.0))
    }

    async fn locks(&self) -> Locks {
        replica(&self.0).await
    }

    fn pause(&self) {
        self.0.servers[0].pause();
    }

    fn resume(&self) {
        self.0.servers[0].resume();
    }
}

impl OneServer for Tree {
    fn port(&self) -> u16 {
        self.0.servers[0].port()
    }

    fn namespace_at(address: &str) -> String {
        config(&[at(address)])
    }

    async fn locks_at(address: String) -> Locks {
        replica_of(vec![at(&address)]).await
    }
}
