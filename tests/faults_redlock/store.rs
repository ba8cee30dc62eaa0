//! Three nodes, in the table of faults that stores have in common.

use std::time::Duration;

use common::faults::stores::Store;
use fencepost::locks::Locks;

use crate::harness::{nodes, of, replica};
use crate::servers::{RedisServer, available};

/// Longer than a test waits for the end of a lease.
const LONGEST: Duration = Duration::from_secs(80);

pub struct Nodes([RedisServer; 3]);

impl Store for Nodes {
    /// With the reserve for clocks that run at unequal rates.
    const NOTICED: Duration = Duration::from_millis(1_500);

    fn available() -> bool {
        available()
    }

    fn start() -> Self {
        Self(nodes())
    }

    fn namespace(&self) -> String {
        let urls = self.0.each_ref().map(RedisServer::url);
        format!("backend = 'redlock'\nredlock.nodes = {urls:?}\nredlock.on_empty_store = 'admit'")
    }

    async fn locks(&self) -> Locks {
        replica(&of(&self.0, LONGEST)).await
    }

    /// A majority, so that there is no quorum.
    fn pause(&self) {
        self.0[..2].iter().for_each(RedisServer::pause);
    }

    fn resume(&self) {
        self.0[..2].iter().for_each(RedisServer::resume);
    }
}
