//! What the records of the MySQL store do, and what happens to them when the database fails, on MariaDB servers that the
//! tests start.
#![cfg(feature = "mysql")]

#[path = "../common/certificates.rs"]
mod certificates;
mod commits;
#[path = "../common/forwarder.rs"]
mod forwarder;
mod handshake;
mod harness;
mod late;
mod outage;
mod promotion;
#[allow(dead_code, reason = "there are no messages")]
#[path = "../common/record_contract.rs"]
mod record_contract;
#[path = "../common/record_steps.rs"]
mod record_steps;
#[path = "../common/mysql.rs"]
mod servers;
