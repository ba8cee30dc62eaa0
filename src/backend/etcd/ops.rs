//! The verbs of [`crate::backend::Backend`], on one [`Replica`].

use std::sync::Arc;

use self::history::History;
use super::cluster::client::ClusterClient;
use super::data::key_pool::KeyPool;
use super::data::keys::Keys;
use super::lease::Leases;
use super::lease::session::Session;
use super::lock_state::admission::AdmissionQueue;
use super::lock_state::in_flight::InFlight;
use super::lock_state::watch::LockWatches;
use super::txn::StepBatcher;
use super::txn::calls::Calls;

pub mod acquire;
pub mod adopt;
pub mod grant;
pub mod history;
pub mod holder_history;
pub mod inspect;
pub mod promote;
pub mod release;
pub mod renew;
pub mod watching;

/// This server's state in one namespace of a cluster.
#[derive(Debug)]
pub struct Replica {
    pub keys: Keys,
    pub link: Arc<ClusterClient>,
    pub leases: Arc<Leases>,
    pub session: Arc<Session>,
    pub history: Arc<History>,
    pub lock_watches: Arc<LockWatches>,
    pub key_pool: Arc<KeyPool>,
    pub admission: AdmissionQueue,
    /// Orders the promotions of semaphore claims.
    pub promotions: AdmissionQueue,
    pub in_flight: InFlight,
    pub batches: Arc<StepBatcher>,
    pub calls: Arc<Calls>,
}
