//! The leader of a cluster of three, killed and paused under load.

use std::pin::pin;
use std::time::{Duration, Instant};

use etcd_client::Client;
use futures::future::select_all;

use crate::harness::{Crowd, cluster, replica};
use crate::servers::Cluster;

/// How often, in every run and in a long one.
const TIMES: usize = if cfg!(feature = "soak") { 30 } else { 3 };
const BETWEEN: Duration = Duration::from_secs(if cfg!(feature = "soak") { 10 } else { 5 });
/// How long a lock may go without a grant beyond what etcd itself takes to serve again.
const BEYOND: Duration = Duration::from_secs(5);
/// How long it may while a leader stands still: etcd has to find that out, and so has a replica, whose
/// requests are at that leader.
const LONGEST: Duration = Duration::from_secs(10);
/// More grants than this show that the lock went from hand to hand, also on a machine that is slow.
const FEW: usize = 20;

pub async fn leader(cluster: &Cluster) -> usize {
    for _ in 0..200 {
        for (at, member) in cluster.servers.iter().enumerate() {
            let asked = async {
                let mut client = Client::connect([member.url()], None).await.ok()?;
                let status = client.status().await.ok()?;
                let own = status.header()?.member_id();
                (status.leader() == own).then_some(at)
            };
            if let Ok(Some(at)) = tokio::time::timeout(Duration::from_millis(500), asked).await {
                return at;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no leader in time");
}

/// Waits until the others serve without this member: one of them has taken a write, and answers a read
/// that needs a quorum.
async fn served_without(cluster: &Cluster, dead: usize) -> Instant {
    let members = cluster.servers.iter().enumerate().filter(|(at, _)| *at != dead);
    let asks = members.map(|(_, member)| Box::pin(served_by(member.url())));
    let served = pin!(select_all(asks));
    let served = tokio::time::timeout(Duration::from_secs(20), served).await;
    served.expect("a leader in time").0
}

async fn served_by(url: String) -> Instant {
    loop {
        let asked = async {
            let mut client = Client::connect([&url], None).await.ok()?;
            client.put("probe", "x", None).await.ok()?;
            client.get("probe", None).await.ok()
        };
        // What was passed on to the dead leader is never answered.
        if let Ok(Some(_)) = tokio::time::timeout(Duration::from_millis(200), asked).await {
            return Instant::now();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

// G106
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_leaders_are_killed() {
    let Some(mut cluster) = cluster(3, &[]) else {
        return;
    };
    let replicas = [replica(&cluster).await, replica(&cluster).await];
    let time = BETWEEN * u32::try_from(TIMES + 1).expect("few");
    let crowd = Crowd::begin(&replicas, 8, time);
    let mut away = Vec::new();
    for _ in 0..TIMES {
        tokio::time::sleep(BETWEEN / 2).await;
        let leader = leader(&cluster).await;
        cluster.servers[leader].kill9();
        let killed = Instant::now();
        away.push((killed, served_without(&cluster, leader).await));
        tokio::time::sleep_until((killed + BETWEEN / 2).into()).await;
        cluster.servers[leader].start();
    }
    let course = crowd.judge().await;
    let grants = course.grants();
    let longest = away.iter().map(|(killed, served)| *served - *killed).max();
    let (gap, beyond) = (course.gap_beyond(&[]), course.gap_beyond(&away));
    println!("{grants} grants; election up to {longest:?}; no grant for up to {gap:?}, beyond elections {beyond:?}");
    assert!(grants > FEW, "only {grants} grants");
    assert!(beyond < BEYOND, "no grant for {beyond:?} beyond the election: {away:?}");
}

// G106
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_leaders_stand_still_for_longer_than_a_ttl() {
    let Some(cluster) = cluster(3, &[]) else { return };
    let replicas = [replica(&cluster).await, replica(&cluster).await];
    let pause = Duration::from_secs(5);
    let times = if cfg!(feature = "soak") { 20 } else { 2 };
    let crowd = Crowd::begin(&replicas, 8, (pause + BETWEEN) * times + BETWEEN);
    for _ in 0..times {
        tokio::time::sleep(BETWEEN).await;
        let leader = leader(&cluster).await;
        cluster.servers[leader].pause();
        tokio::time::sleep(pause).await;
        cluster.servers[leader].resume();
    }
    let course = crowd.judge().await;
    let (grants, gap) = (course.grants(), course.gap_beyond(&[]));
    println!("{grants} grants, longest gap {gap:?}");
    assert!(grants > FEW, "only {grants} grants");
    assert!(gap < LONGEST, "no grant for {gap:?}");
}
