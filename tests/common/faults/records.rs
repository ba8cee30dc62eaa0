//! Stores of records, and their crashes under load.

use std::sync::Arc;

use fencepost::backend::record::store::RecordStore;

use super::cases::{CALM, TIMES, ends_well, load};
use super::stores::OneServer;

/// One that stores records.
#[allow(async_fn_in_trait, reason = "a test awaits it where it calls it")]
pub trait Records: OneServer {
    /// What a commit of the body "held" has on its way.
    const HELD: &'static [u8];

    /// What a commit of a body with this text has on its way.
    fn in_commit(text: &str) -> Vec<u8>;

    /// The records of a namespace at this address, once the store serves.
    async fn records_at(address: String) -> Arc<dyn RecordStore>;

    /// One that keeps over a crash what it has answered.
    fn durable() -> Self {
        Self::start()
    }

    /// Ends its process at once.
    fn crash(&mut self);

    fn restart(&mut self);
}

pub async fn crashes_under_load<S: Records>() {
    let mut store = S::durable();
    let load = load(&store, 2 * CALM * (TIMES + 1)).await;
    for _ in 0..TIMES {
        tokio::time::sleep(CALM).await;
        store.crash();
        store.restart();
    }
    ends_well(load, &store).await;
}
