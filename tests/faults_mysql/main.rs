//! What the records of the MySQL store do, and what happens to them when the database fails, on MariaDB servers that the
//! tests start.
#![cfg(feature = "mysql")]

use common::{
    certificates, clients, clock_shim, clock_steps, crowd, distance, forwarder, killed, mysql as servers, ports,
    record_contract, record_faults, record_steps, short_leases, small_disk, standstill,
};

#[path = "../common/sql/anew.rs"]
mod anew;
#[path = "../common/sql/clock.rs"]
mod clock;
#[path = "../common/sql/commits.rs"]
mod commits;
mod contract;
#[path = "../common/sql/damaged.rs"]
mod damaged;
mod disk;
mod galera;
mod handshake;
mod harness;
mod hostile;
mod large;
#[path = "../common/sql/late.rs"]
mod late;
#[path = "../common/sql/load.rs"]
mod load;
#[path = "../common/sql/longest.rs"]
mod longest;
#[path = "../common/sql/lost.rs"]
mod lost;
#[path = "../common/sql/outage.rs"]
mod outage;
#[path = "../common/sql/processes.rs"]
mod processes;
mod promotion;
mod redo_log;
#[path = "../common/sql/replicas.rs"]
mod replicas;
#[path = "../common/sql/restore.rs"]
mod restore;
mod sessions;
#[path = "../common/sql/terms.rs"]
mod terms;
