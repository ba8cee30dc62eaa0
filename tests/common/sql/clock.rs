//! A database whose wall clock is stepped. It is the only clock that counts: forth, it ends leases early, as
//! GUARANTEES.md says; everything else must stay as it is.

use std::time::Duration;

use fencepost::locks::Locks;
use fencepost::name::FencingToken;
use tempfile::TempDir;

use crate::clients::{take, token};
use crate::clock_shim;
use crate::clock_steps::{
    HOUR, ends_and_freezes_none_if_stepped_back, ends_leases_early_if_stepped_forth, the_log_names_a_wrong_clock,
    tokens_of_each_lock_rise_before_2020,
};
use crate::harness::{FAR_YEARS, Server, namespace, settings};
use crate::load::{CALM, Load};
use crate::replicas::replica;
use crate::servers::{available, folder};

/// A database, and the folder of its clock.
pub struct Clocked {
    pub server: Server,
    folder: TempDir,
}

impl Clocked {
    pub fn start() -> Self {
        let folder = folder();
        clock_shim::build(folder.path());
        clock_shim::write_shift(folder.path(), [0, 0]);
        Self {
            server: Server::started_with(clock_shim::environment(folder.path())),
            folder,
        }
    }

    /// Puts its clock so many seconds ahead, at once.
    pub fn shift(&self, seconds: i64) {
        clock_shim::write_shift(self.folder.path(), [seconds, 0]);
    }

    async fn replica(&self) -> Locks {
        replica(settings(&self.server)).await
    }
}

// G80
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_stepped_forth_ends_leases_early_and_waiters_go_on() {
    if !available() {
        return;
    }
    let database = Clocked::start();
    let (one, two) = (database.replica().await, database.replica().await);
    ends_leases_early_if_stepped_forth(&one, &two, |seconds| database.shift(seconds)).await;
}

// G80
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_stepped_back_ends_no_lease_and_freezes_none() {
    if !available() {
        return;
    }
    let database = Clocked::start();
    let (one, two) = (database.replica().await, database.replica().await);
    ends_and_freezes_none_if_stepped_back(&one, &two, |seconds| database.shift(seconds)).await;
}

// G80
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_the_clock_is_stepped_back() {
    if !available() {
        return;
    }
    let database = Clocked::start();
    let steps = if cfg!(feature = "soak") { 200 } else { 4 };
    let load = Load::begin(&settings(&database.server), CALM * (steps + 1)).await;
    for step in 1..=steps {
        tokio::time::sleep(CALM).await;
        database.shift(-HOUR * i64::from(step));
    }
    load.ends_well(&database.server).await;
}

// G77b
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_each_lock_rise_by_a_clock_before_2020() {
    if !available() {
        return;
    }
    let database = Clocked::start();
    let locks = database.replica().await;
    tokens_of_each_lock_rise_before_2020(&locks, |seconds| database.shift(seconds)).await;
}

// G6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_beyond_the_range_of_tokens_ruins_no_lock() {
    if !available() {
        return;
    }
    let database = Clocked::start();
    let locks = database.replica().await;
    let grant = async |lock: &str| {
        let lease = take(&locks, lock, Duration::from_secs(60)).await;
        locks.release(&lease.key).await.expect("it is held");
        token(&lease)
    };
    let mut last = grant("a").await;
    for years in FAR_YEARS {
        let ahead = years * 365 * 24 * HOUR;
        database.shift(ahead);
        for _ in 0..3 {
            let next = grant("a").await;
            assert!(last < next && next < FencingToken::MAX, "{next} after {last}");
            last = next;
        }
    }
    let fresh = grant("fresh").await;
    assert!(fresh < last - 1_000_000_000, "it has a token of its own time: {fresh}");
}

// G78c
#[test]
fn the_log_says_that_the_clock_is_wrong() {
    if !available() {
        return;
    }
    let database = Clocked::start();
    the_log_names_a_wrong_clock(&namespace(&database.server.address()), |ahead| database.shift(ahead));
}
