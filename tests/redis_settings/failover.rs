//! How soon a failover is followed.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use fencepost::backend::redis_server::settings::{Servers, connection_info};
use fencepost::locks::Locks;

use crate::redis_settings::harness::{acquire, best_of_three, replica, replicated, settings};
use crate::redis_settings::servers::{RedisServer, Sentinels, available, eventually};

const TTL: Duration = Duration::from_secs(30);

/// One replica that asks these sentinels, of which the first one never answers and the one that will
/// lead the failover comes last.
async fn behind(servers: &Sentinels, hung: &TcpListener) -> Locks {
    let mut addresses = servers.addresses();
    addresses.push(hung.local_addr().unwrap().to_string());
    addresses.reverse();
    let info = |address: &String| connection_info(&format!("redis://{address}")).unwrap();
    let sentinels: Vec<_> = addresses.iter().map(info).collect();
    let locks = replica(&settings(Servers::Sentinel {
        master: "mymaster".into(),
        login: sentinels[0].clone(),
        sentinels,
    }))
    .await;
    acquire(&locks, "before", TTL, Duration::ZERO).await.unwrap();
    // The marker and the lock are on the replica too.
    replicated(&servers.servers[0]).await;
    locks
}

/// Which port a sentinel names as the master's.
fn named_by(sentinel: &str) -> u16 {
    let (_, port) = sentinel.rsplit_once(':').unwrap();
    let ask = ["-p", port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"];
    let output = Command::new("redis-cli").args(ask).output().unwrap();
    let answer = String::from_utf8(output.stdout).unwrap();
    answer.lines().nth(1).unwrap().parse().unwrap()
}

/// Tries locks until the new master holds one, and says how long after the switch that was.
async fn followed(locks: &Locks, master: &RedisServer, switched: Instant) -> Duration {
    for n in 0.. {
        let lock = format!("after{n}");
        let granted = acquire(locks, &lock, TTL, Duration::ZERO).await;
        if granted.is_ok() && master.cli(&["EXISTS", &format!("fencepost:faults:l:{lock}")]) == "1" {
            break;
        }
        assert!(switched.elapsed() < Duration::from_secs(10), "{granted:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    switched.elapsed()
}

// G89
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_that_one_sentinel_leads_is_followed_within_a_second() {
    common::skip_unless!(available());
    best_of_three(Duration::from_secs(1), follow_what_one_leads).await;
}

async fn follow_what_one_leads() -> Duration {
    let (servers, hung) = (Sentinels::start(), TcpListener::bind("127.0.0.1:0").unwrap());
    let locks = behind(&servers, &hung).await;
    tokio::task::block_in_place(|| servers.fail_over());
    followed(&locks, &servers.servers[1], Instant::now()).await
}

// G89
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_successor_of_a_master_that_died_serves_within_a_second() {
    common::skip_unless!(available());
    best_of_three(Duration::from_secs(1), follow_a_successor).await;
}

async fn follow_a_successor() -> Duration {
    let (mut servers, hung) = (Sentinels::quick(), TcpListener::bind("127.0.0.1:0").unwrap());
    let locks = behind(&servers, &hung).await;
    let before = servers.servers[0].port();
    servers.servers[0].kill9();
    tokio::task::block_in_place(|| {
        eventually("a sentinel names another", Duration::from_secs(60), || {
            let named = servers
                .addresses()
                .iter()
                .map(|address| named_by(address))
                .collect::<Vec<_>>();
            named.iter().any(|port| *port != before).then_some(())
        })
    });
    followed(&locks, &servers.servers[1], Instant::now()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_are_asked_over_connections_that_stay_open() {
    common::skip_unless!(available());
    let (servers, hung) = (Sentinels::start(), TcpListener::bind("127.0.0.1:0").unwrap());
    let locks = behind(&servers, &hung).await;
    // How old the connections are that were used for a question within the last second.
    let asked_over = || -> Vec<u64> {
        let clients = servers.sentinels[0].cli(&["CLIENT", "LIST"]);
        let field = |line: &str, name: &str| -> Option<u64> {
            let mut words = line.split(' ');
            words.find_map(|word| word.strip_prefix(name)?.parse().ok())
        };
        let asks = |line: &&str| line.contains("cmd=sentinel|") && field(line, "idle=").is_some_and(|idle| idle <= 1);
        clients
            .lines()
            .filter(asks)
            .filter_map(|line| field(line, "age="))
            .collect()
    };
    let connections = || -> u64 {
        let stats = servers.sentinels[0].cli(&["INFO", "stats"]);
        let value = stats
            .lines()
            .find_map(|line| line.trim().strip_prefix("total_connections_received:"));
        value.unwrap().parse().unwrap()
    };
    let before = connections();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(asked_over().iter().any(|age| *age >= 3), "{:?}", asked_over());
    // Those of this test, and of the other sentinels.
    let opened = connections() - before;
    assert!(opened <= 6, "{opened} connections in four seconds");
    // One that is cut is made anew.
    servers.sentinels[0].cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    tokio::task::block_in_place(|| {
        eventually("it is asked again", Duration::from_secs(10), || {
            (!asked_over().is_empty()).then_some(())
        });
    });
    acquire(&locks, "after", TTL, Duration::ZERO).await.unwrap();
}
