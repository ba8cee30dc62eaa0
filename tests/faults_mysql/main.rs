//! What the records of the MySQL store do, and what happens to them when the database fails, on MariaDB servers that the
//! tests start.
#![cfg(feature = "mysql")]

use common::{
    certificates, clients, crowd, forwarder, mysql as servers, ports, record_contract, record_steps, small_disk,
};

#[path = "../common/sql/anew.rs"]
mod anew;
#[path = "../common/sql/commits.rs"]
mod commits;
mod contract;
#[path = "../common/sql/damaged.rs"]
mod damaged;
#[path = "../common/sql/disk.rs"]
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
mod promotion;
mod redo_log;
#[path = "../common/sql/replicas.rs"]
mod replicas;
#[path = "../common/sql/restore.rs"]
mod restore;
mod sessions;
#[path = "../common/sql/store.rs"]
mod store;
#[path = "../common/sql/tables.rs"]
mod tables;
#[path = "../common/sql/terms.rs"]
mod terms;

common::faults!(mysql, store::Database);
