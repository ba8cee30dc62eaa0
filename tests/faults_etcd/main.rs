//! What happens to the service when etcd fails, on servers that the tests start.
#![cfg(feature = "etcd")]

use common::{certificates, claims, clients, crowd, etcd as servers, forwarder, server as process, session_client};

#[path = "../common/tree/answers.rs"]
mod answers;
mod batches;
#[path = "../common/tree/cancelled.rs"]
mod cancelled;
#[path = "../common/tree/clock.rs"]
mod clock;
#[path = "../common/tree/conditions.rs"]
mod conditions;
mod costs;
#[path = "../common/tree/crowds.rs"]
mod crowds;
mod endings;
mod harness;
mod history;
#[path = "../common/tree/late.rs"]
mod late;
#[path = "../common/tree/leader.rs"]
mod leader;
mod leases;
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
mod remembered;
#[path = "../common/tree/restore.rs"]
mod restore;
mod rights;
#[path = "../common/tree/sessions.rs"]
mod sessions;
mod sharing;
mod sizes;
mod space;
#[path = "../common/tree/steps.rs"]
mod steps;
#[path = "../common/tree/store.rs"]
mod store;
mod trees;
#[path = "../common/tree/unreadable.rs"]
mod unreadable;
#[path = "../common/tree/updates.rs"]
mod updates;
#[path = "../common/tree/versions.rs"]
mod versions;
mod waking;

common::faults!(etcd, store::Tree);
