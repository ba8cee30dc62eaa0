//! What the records of the PostgreSQL store do, and what happens to them when the database fails, on servers that the tests
//! start.
#![cfg(feature = "postgres")]

use common::{
    certificates, clients, clock_shim, clock_steps, crowd, forwarder, killed, postgres as servers, record_contract,
    record_steps, register, server as process, small_disk,
};

mod by_hand;
mod clock;
#[path = "../common/sql/commits.rs"]
mod commits;
mod contract;
mod disk;
mod distance;
mod handshake;
mod harness;
#[path = "../common/sql/late.rs"]
mod late;
mod load;
mod lost_sessions;
mod messages;
#[path = "../common/sql/outage.rs"]
mod outage;
mod pooler;
mod processes;
mod promotion;
mod restore;
mod secure;
