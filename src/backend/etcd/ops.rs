//! The verbs of [`crate::backend::Backend`], on one [`Replica`].
//!
//! A grant does not name its successors, so that one write hands the lock over several times. If a successor were
//! told before the release is written, another server would still confirm the predecessor's token, and after a crash
//! no server would know who was told; if it were told after, each hand-over would cost a write again.
//! `tests/model/etcd_chain.rs` explores both.

use std::sync::Arc;

use self::history::History;
use self::refusals::RecentRefusals;
use super::cluster::client::ClusterClient;
use super::data::key_suffixes::KeySuffixPool;
use super::data::keys::Keys;
use super::lease::LeasePool;
use super::lease::session::Session;
use super::lock_state::LockTable;
use super::txn::StepBatcher;
use super::txn::calls::Calls;

pub mod acquire;
pub mod existing_claim;
pub mod expiries;
pub mod forced;
pub mod grant;
pub mod history;
pub mod inspect;
pub mod metadata;
pub mod promote;
pub mod refusals;
pub mod release;
pub mod renew;
pub mod watching;

/// This server's state in one namespace of a cluster.
#[derive(Debug)]
pub struct Replica {
    pub keys: Keys,
    pub link: Arc<ClusterClient>,
    pub leases: Arc<LeasePool>,
    pub session: Arc<Session>,
    pub history: Arc<History>,
    pub locks: Arc<LockTable>,
    pub suffixes: Arc<KeySuffixPool>,
    pub batches: Arc<StepBatcher>,
    pub calls: Arc<Calls>,
    pub refusals: RecentRefusals,
}
