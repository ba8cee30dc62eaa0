//! What the records of the PostgreSQL store do, and what happens to them when the database fails, on servers that the tests
//! start.
#![cfg(feature = "postgres")]

mod by_hand;
mod commits;
mod contract;
#[path = "../common/forwarder.rs"]
mod forwarder;
mod handshake;
mod harness;
mod late;
mod messages;
mod outage;
mod pooler;
mod promotion;
#[path = "../common/record_contract.rs"]
mod record_contract;
#[path = "../common/postgres.rs"]
mod servers;
