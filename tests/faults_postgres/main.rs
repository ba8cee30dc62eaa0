//! What the records of the PostgreSQL store do, and what happens to them when the database fails, on servers that the tests
//! start.
#![cfg(feature = "postgres")]

use common::{
    certificates, clients, clock_shim, clock_steps, crowd, distance, forwarder, killed, postgres as servers,
    record_contract, record_faults, record_steps, server as process, short_leases, small_disk, standstill,
};

#[path = "../common/sql/anew.rs"]
mod anew;
mod blocked;
mod by_hand;
#[path = "../common/sql/clock.rs"]
mod clock;
#[path = "../common/sql/commits.rs"]
mod commits;
mod contract;
#[path = "../common/sql/damaged.rs"]
mod damaged;
mod dead_rows;
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
#[path = "../common/sql/processes.rs"]
mod processes;
mod promotion;
#[path = "../common/sql/replicas.rs"]
mod replicas;
#[path = "../common/sql/restore.rs"]
mod restore;
mod secure;
mod standbys;
mod synchronous;
mod synchronous_promotion;
#[path = "../common/sql/terms.rs"]
mod terms;
