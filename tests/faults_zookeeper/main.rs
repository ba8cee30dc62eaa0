//! What happens to the service when ZooKeeper fails, on servers that the tests start.
#![cfg(feature = "zookeeper")]

mod answers;
#[path = "../common/certificates.rs"]
mod certificates;
#[path = "../common/claims.rs"]
mod claims;
#[path = "../common/clients.rs"]
mod clients;
mod clock;
mod conditions;
mod costs;
#[path = "../common/crowd.rs"]
mod crowd;
mod ensembles;
mod expiry;
#[path = "../common/forwarder.rs"]
mod forwarder;
mod given_up;
mod growth;
mod harness;
#[path = "../common/killed.rs"]
mod killed;
mod large;
mod leader;
#[path = "../common/moved.rs"]
mod moved;
mod nodes;
mod order;
mod outage;
mod partition;
#[path = "../server/mod.rs"]
mod process;
mod processes;
mod raw;
mod read_only;
#[path = "../cluster/register.rs"]
mod register;
mod requests;
mod restore;
mod rights;
mod secure;
#[path = "../common/zookeeper.rs"]
mod servers;
#[path = "../common/session_client.rs"]
mod session_client;
mod sessions;
mod space;
mod unreadable;
mod updates;
mod versions;
#[path = "../common/wild_clock.rs"]
mod wild_clock;
