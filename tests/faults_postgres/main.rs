//! What the records of the PostgreSQL store do, and what happens to them when the database fails, on servers that the tests
//! start.
#![cfg(feature = "postgres")]

mod by_hand;
#[path = "../common/certificates.rs"]
mod certificates;
#[path = "../common/clients.rs"]
mod clients;
mod clock;
#[path = "../common/clock_shim.rs"]
mod clock_shim;
#[path = "../common/clock_steps.rs"]
mod clock_steps;
#[path = "../common/sql/commits.rs"]
mod commits;
mod contract;
#[path = "../common/crowd.rs"]
mod crowd;
mod disk;
mod distance;
#[path = "../common/forwarder.rs"]
mod forwarder;
mod handshake;
mod harness;
#[path = "../common/killed.rs"]
mod killed;
#[path = "../common/sql/late.rs"]
mod late;
mod load;
mod lost_sessions;
mod messages;
#[path = "../common/sql/outage.rs"]
mod outage;
mod pooler;
#[path = "../server/mod.rs"]
mod process;
mod processes;
mod promotion;
#[path = "../common/record_contract.rs"]
mod record_contract;
#[path = "../common/record_steps.rs"]
mod record_steps;
#[path = "../cluster/register.rs"]
mod register;
mod restore;
mod secure;
#[path = "../common/postgres.rs"]
mod servers;
#[path = "../common/small_disk.rs"]
mod small_disk;
