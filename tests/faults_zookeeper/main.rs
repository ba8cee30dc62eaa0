//! What happens to the service when ZooKeeper fails, on servers that the tests start.

mod ensembles;
#[path = "../common/zookeeper.rs"]
mod servers;
