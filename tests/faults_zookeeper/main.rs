//! What happens to the service when ZooKeeper fails, on servers that the tests start.
#![cfg(feature = "zookeeper")]

use common::{
    certificates, claims, clients, crowd, forwarder, server as process, session_client, zookeeper as servers,
};

#[path = "../common/tree/answers.rs"]
mod answers;
mod appends;
#[path = "../common/tree/cancelled.rs"]
mod cancelled;
#[path = "../common/tree/clock.rs"]
mod clock;
#[path = "../common/tree/conditions.rs"]
mod conditions;
mod costs;
#[path = "../common/tree/crowds.rs"]
mod crowds;
mod ensembles;
mod expiry;
mod given_up;
mod growth;
mod harness;
mod large;
#[path = "../common/tree/late.rs"]
mod late;
#[path = "../common/tree/leader.rs"]
mod leader;
mod lowered;
#[path = "../common/tree/nodes.rs"]
mod nodes;
mod operator;
#[path = "../common/tree/order.rs"]
mod order;
#[path = "../common/tree/outage.rs"]
mod outage;
#[path = "../common/tree/partition.rs"]
mod partition;
#[path = "../common/tree/processes.rs"]
mod processes;
mod raw;
mod read_only;
mod requests;
#[path = "../common/tree/restore.rs"]
mod restore;
mod rights;
mod secure;
#[path = "../common/tree/sessions.rs"]
mod sessions;
mod space;
#[path = "../common/tree/steps.rs"]
mod steps;
#[path = "../common/tree/store.rs"]
mod store;
#[path = "../common/tree/unreadable.rs"]
mod unreadable;
#[path = "../common/tree/updates.rs"]
mod updates;
#[path = "../common/tree/versions.rs"]
mod versions;

common::faults!(zookeeper, store::Tree);
