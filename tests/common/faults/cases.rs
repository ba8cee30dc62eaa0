//! Cases of the table that need no more of a store than its trait.

use std::time::Duration;

use super::stores::{Clocked, Store};
use crate::clients::{
    a_wait_that_ends_in_silence_says_so, best_of_three, rides_out, serves, until_empty, waits_and_watches_end,
};
use crate::clock_steps::HOUR;
use crate::crowd::Load;
use crate::killed::{DEAD, SHORT, go_on_at_another, kill_one_of_three};
use crate::short_leases::their_ends_are_noticed;

/// How long anything may take that nothing promises.
pub(super) const READY: Duration = Duration::from_secs(60);
const LONG: bool = cfg!(feature = "soak");
/// How often a fault is repeated under load.
pub const TIMES: u32 = if LONG { 30 } else { 2 };
/// How often a clock is stepped under load.
const STEPS: u32 = if LONG { 200 } else { 4 };
/// How long clients are left alone before a fault.
pub const CALM: Duration = Duration::from_secs(1);
/// Longer than a call may take, and than a lease of the load lives.
const PAUSE: Duration = Duration::from_secs(4);

pub async fn killed<S: Store>() {
    let run = async || {
        let store = S::start();
        kill_one_of_three(&store.namespace()).await
    };
    best_of_three(DEAD, run).await;
}

/// The killed server's holder keeps its TTL, then its waiters their few seconds.
pub async fn killed_under_load<S: Store>() {
    let run = async || {
        let store = S::start_several();
        let longest = go_on_at_another(&store.namespace()).await;
        until_empty(&store.locks().await).await;
        store.assert_empty();
        longest
    };
    best_of_three(SHORT + DEAD, run).await;
}

pub async fn ended_elsewhere<S: Store>() {
    let store = S::start();
    their_ends_are_noticed(async || store.locks().await, S::NOTICED).await;
}

pub async fn silent_store<S: Store>() {
    let store = S::start();
    let locks = store.locks().await;
    a_wait_that_ends_in_silence_says_so(&locks, || store.pause()).await;
    store.resume();
}

pub async fn hanging_store<S: Store>() {
    let store = S::start();
    let locks = store.impatient().await;
    rides_out(&locks, || store.pause(), || store.resume()).await;
    serves(&locks, READY).await;
    waits_and_watches_end(&locks, || store.pause()).await;
    store.resume();
}

/// Clients of two servers that want one lock all the time: whoever is sure to hold is never refused, and tokens rise.
pub(super) async fn load<S: Store>(store: &S, time: Duration) -> Load {
    Load::begin([store.impatient().await, store.impatient().await], time)
}

pub(super) async fn ends_well<S: Store>(load: Load, store: &S) {
    load.ends_well().await;
    store.assert_empty();
}

pub async fn stands_still_under_load<S: Store>() {
    let store = S::start();
    let load = load(&store, (CALM + PAUSE) * TIMES).await;
    for _ in 0..TIMES {
        tokio::time::sleep(CALM).await;
        store.pause();
        tokio::time::sleep(PAUSE).await;
        store.resume();
    }
    ends_well(load, &store).await;
}

pub async fn clock_back_under_load<S: Clocked>() {
    let mut store = S::with_clock();
    let load = load(&store, CALM * (STEPS + 1)).await;
    for step in 1..=STEPS {
        tokio::time::sleep(CALM).await;
        store.shift(-HOUR * i64::from(step));
    }
    ends_well(load, &store).await;
}
