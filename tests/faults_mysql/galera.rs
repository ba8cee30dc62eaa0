//! Nodes of a Galera cluster, which undo commits that they have answered when another node writes the same row.

use crate::harness::settings;
use crate::ports::free_port;
use crate::servers::{MariaDb, available};
use crate::tables::is_refused;

/// Debian's `galera-4`.
const PROVIDER: &str = "/usr/lib/galera/libgalera_smm.so";

/// The first node of a cluster.
fn node() -> MariaDb {
    let (own, other) = (format!("127.0.0.1:{}", free_port()), free_port());
    let addresses = format!("wsrep-provider-options=gmcast.listen_addr=tcp://{own};ist.recv_addr=127.0.0.1:{other}");
    let (provider, address) = (
        format!("wsrep-provider={PROVIDER}"),
        format!("wsrep-node-address={own}"),
    );
    let node = MariaDb::started(&[
        "wsrep-on=ON",
        "wsrep-cluster-address=gcomm://",
        "binlog-format=ROW",
        "innodb-autoinc-lock-mode=2",
        &provider,
        &address,
        &addresses,
    ]);
    assert_eq!(node.sql("SHOW STATUS LIKE 'wsrep_ready'"), "wsrep_ready\tON");
    node
}

/// Whether the library is there. Without it a test is skipped at home and fails in CI.
fn has_provider() -> bool {
    common::is_there(std::path::Path::new(PROVIDER).exists(), PROVIDER)
}

// G176
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_galera_cluster_is_refused_also_while_it_is_switched_off() {
    common::skip_unless!(available() && has_provider());
    let node = node();
    is_refused(settings(&node), "is a node of a Galera cluster").await;
    node.sql("SET GLOBAL wsrep_on = OFF");
    is_refused(settings(&node), "is a node of a Galera cluster").await;
}
