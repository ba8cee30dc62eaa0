//! What the records of the PostgreSQL store do, and what happens to them when the database fails, on servers that the tests
//! start.
#![cfg(feature = "postgres")]

use common::{
    certificates, clients, crowd, forwarder, postgres as servers, record_contract, record_steps, server as process,
    small_disk,
};

#[path = "../common/sql/anew.rs"]
mod anew;
mod blocked;
mod by_hand;
#[path = "../common/sql/commits.rs"]
mod commits;
mod contract;
#[path = "../common/sql/damaged.rs"]
mod damaged;
mod dead_rows;
#[path = "../common/sql/disk.rs"]
mod disk;
mod handshake;
mod harness;
mod hostile;
#[path = "../common/sql/late.rs"]
mod late;
#[path = "../common/sql/load.rs"]
mod load;
mod load_promotion;
#[path = "../common/sql/longest.rs"]
mod longest;
#[path = "../common/sql/lost.rs"]
mod lost;
mod lost_sessions;
mod messages;
mod new_tables;
#[path = "../common/sql/outage.rs"]
mod outage;
mod pooler;
mod promotion;
#[path = "../common/sql/replicas.rs"]
mod replicas;
#[path = "../common/sql/restore.rs"]
mod restore;
mod secure;
mod standbys;
#[path = "../common/sql/store.rs"]
mod store;
mod synchronous;
mod synchronous_promotion;
#[path = "../common/sql/tables.rs"]
mod tables;
#[path = "../common/sql/terms.rs"]
mod terms;

common::faults!(postgres, store::Database);
