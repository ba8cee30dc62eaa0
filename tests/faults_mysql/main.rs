//! What the records of the MySQL store do, and what happens to them when the database fails, on MariaDB servers that the
//! tests start.
#![cfg(feature = "mysql")]

use common::{certificates, forwarder, mysql as servers, record_contract, record_steps};

#[path = "../common/sql/commits.rs"]
mod commits;
mod contract;
mod handshake;
mod harness;
#[path = "../common/sql/late.rs"]
mod late;
#[path = "../common/sql/outage.rs"]
mod outage;
mod promotion;
