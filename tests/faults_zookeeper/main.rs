//! What happens to the service when ZooKeeper fails, on servers that the tests start.
#![cfg(feature = "zookeeper")]

use common::{
    certificates, claims, clients, crowd, forwarder, killed, moved, server as process, session_client, wild_clock,
    zookeeper as servers,
};

mod answers;
mod clock;
mod conditions;
mod costs;
mod ensembles;
mod expiry;
mod given_up;
mod growth;
mod harness;
mod large;
mod leader;
mod nodes;
mod order;
mod outage;
mod partition;
mod processes;
mod raw;
mod read_only;
mod requests;
mod restore;
mod rights;
mod secure;
mod sessions;
mod space;
mod unreadable;
mod updates;
mod versions;
