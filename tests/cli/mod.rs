//! The commands of the program as people and scripts run them: real processes on a real server, in a
//! pipe and in a pseudo-terminal.

#![cfg(feature = "embedded")]

use common::{forwarder, server};

mod bench;
mod completions;
mod counter;
mod dead;
#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper"
))]
mod direct;
mod dist;
mod election;
mod errors;
mod health;
mod lease_ids;
mod lock;
mod lost;
mod man;
mod more_recipes;
mod pinned;
mod program;
mod pty;
mod recipes;
mod status;
mod terminal;
mod top;
mod trusted;
mod unprintable;
mod variables;
mod watch;
