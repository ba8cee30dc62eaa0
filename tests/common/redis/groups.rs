//! Redis servers that belong together: a master that sentinels watch, and a Cluster.

use std::process::Command;
use std::time::Duration;

use super::{RedisServer, eventually};
use crate::ports::{free_port, free_with};

/// A master with a replica and three sentinels that watch them as `mymaster`.
#[derive(Debug)]
pub struct Sentinels {
    /// The two servers; the first begins as master.
    pub servers: [RedisServer; 2],
    /// The three sentinels.
    pub sentinels: Vec<RedisServer>,
}

impl Sentinels {
    /// Starts all five and waits until the sentinels know the replica. They call a server dead that
    /// is silent for half a minute.
    pub fn start() -> Self {
        let master = RedisServer::start(&["--repl-diskless-sync-delay", "0"]);
        let port = master.port().to_string();
        let replica = RedisServer::start(&["--replicaof", &format!("127.0.0.1 {port}")]);
        eventually("the replica follows", Duration::from_secs(20), || {
            replica
                .cli(&["INFO", "replication"])
                .contains("master_link_status:up")
                .then_some(())
        });
        let sentinels: Vec<_> = (0..3).map(|_| sentinel(&port)).collect();
        let all = Self {
            servers: [master, replica],
            sentinels,
        };
        all.settled();
        all
    }

    /// The same, where three seconds of silence are enough: for tests in which a server dies.
    pub fn quick() -> Self {
        let all = Self::start();
        for sentinel in &all.sentinels {
            let rule = ["SENTINEL", "SET", "mymaster", "down-after-milliseconds", "3000"];
            assert_eq!(sentinel.cli(&rule), "OK");
        }
        all
    }

    /// Waits until every sentinel knows the others and the replica.
    pub fn settled(&self) {
        eventually("the sentinels know each other", Duration::from_secs(60), || {
            self.sentinels
                .iter()
                .all(|one| {
                    one.cli(&["INFO", "sentinel"]).contains("status=ok")
                        && one.cli(&["INFO", "sentinel"]).contains("slaves=1,sentinels=3")
                })
                .then_some(())
        });
    }

    /// The sentinels' addresses.
    pub fn addresses(&self) -> Vec<String> {
        self.sentinels
            .iter()
            .map(|one| format!("127.0.0.1:{}", one.port()))
            .collect()
    }

    /// Asks for a failover, and waits until a sentinel names another master.
    pub fn fail_over(&self) -> u16 {
        let before = self.master_port();
        // Refused while another is under way, or no replica has been heard of lately.
        eventually("a failover begins", Duration::from_secs(90), || {
            let answer = self.sentinels[0].cli(&["SENTINEL", "FAILOVER", "mymaster"]);
            (answer == "OK").then_some(())
        });
        eventually("another master", Duration::from_secs(60), || {
            Some(self.master_port()).filter(|port| *port != before)
        })
    }

    /// Which port the first sentinel names as the master's.
    pub fn master_port(&self) -> u16 {
        let answer = self.sentinels[0].cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"]);
        answer
            .lines()
            .nth(1)
            .and_then(|port| port.trim().parse().ok())
            .unwrap_or_default()
    }
}

fn sentinel(master: &str) -> RedisServer {
    RedisServer::started(|| {
        let mut server = RedisServer::down(free_port(), &[]);
        let port = server.port;
        let text = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor mymaster 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds mymaster 30000\nsentinel failover-timeout mymaster 5000\n"
        );
        std::fs::write(server.dir().join("sentinel.conf"), text).unwrap();
        server.sentinel = true;
        server
    })
}

/// Three masters, each with a replica.
#[derive(Debug)]
pub struct Cluster {
    /// All six.
    pub nodes: Vec<RedisServer>,
}

impl Cluster {
    /// Starts the nodes, joins them and waits until every slot is served. They call a node dead that
    /// is silent for half a minute.
    pub fn start() -> Self {
        let nodes: Vec<_> = (0..6).map(|_| cluster_node()).collect();
        let addresses: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        let joined = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(&addresses)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .unwrap();
        assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stdout));
        let cluster = Self { nodes };
        eventually("the cluster serves", Duration::from_secs(60), || {
            cluster
                .nodes
                .iter()
                .all(|node| node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok"))
                .then_some(())
        });
        cluster
    }

    /// The same, where five seconds of silence are enough: for tests in which a node dies.
    pub fn quick() -> Self {
        let cluster = Self::start();
        for node in &cluster.nodes {
            let rule = ["CONFIG", "SET", "cluster-node-timeout", "5000"];
            assert_eq!(node.cli(&rule), "OK");
        }
        cluster
    }

    /// A URL for each node.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// The masters, by who says so of itself.
    pub fn masters(&self) -> Vec<&RedisServer> {
        self.nodes
            .iter()
            .filter(|node| node.cli(&["ROLE"]).starts_with("master"))
            .collect()
    }
}

/// A node that belongs to no Cluster yet.
pub fn cluster_node() -> RedisServer {
    let options = [
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        "30000",
        "--repl-diskless-sync-delay",
        "0",
    ];
    RedisServer::started(|| RedisServer::down(free_with(&[10_000]), &options))
}
