//! Which lease a guard holds.

/// What a guard's lease is for.
#[derive(Debug)]
pub(super) struct Held {
    pub lease_id: String,
    pub namespace: String,
    pub name: String,
    pub token: u64,
    /// Nobody shares the lock with it.
    pub alone: bool,
}
