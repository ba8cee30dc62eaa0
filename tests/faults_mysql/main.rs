//! What the records of the MySQL store do, and what happens to them when the database fails, on MariaDB servers that the
//! tests start.
#![cfg(feature = "mysql")]

#[path = "../common/certificates.rs"]
mod certificates;
#[path = "../common/sql/commits.rs"]
mod commits;
mod contract;
#[path = "../common/forwarder.rs"]
mod forwarder;
mod handshake;
mod harness;
#[path = "../common/sql/late.rs"]
mod late;
#[path = "../common/sql/outage.rs"]
mod outage;
mod promotion;
#[allow(dead_code, reason = "there are no messages")]
#[path = "../common/record_contract.rs"]
mod record_contract;
#[path = "../common/record_steps.rs"]
mod record_steps;
#[path = "../common/mysql.rs"]
mod servers;
