//! The leader of a cluster of three, killed and paused under load.

use std::time::Duration;

use etcd_client::Client;

use crate::bench::{Crowd, cluster, replica};
use crate::servers::Cluster;

/// How often, in every run and in a long one.
const TIMES: usize = if cfg!(feature = "soak") { 30 } else { 3 };
const BETWEEN: Duration = Duration::from_secs(if cfg!(feature = "soak") { 10 } else { 5 });
/// How long a lock may go without a grant while a leader is chosen: the election of these servers
/// takes up to two of their timeouts of a second, a session or a lease of the dead ends meanwhile.
const LONGEST: Duration = Duration::from_secs(10);

pub async fn leader(cluster: &Cluster) -> usize {
    for _ in 0..200 {
        for (at, member) in cluster.members.iter().enumerate() {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_leaders_are_killed() {
    let Some(mut cluster) = cluster(3, &[]) else {
        return;
    };
    let replicas = [replica(&cluster).await, replica(&cluster).await];
    let time = BETWEEN * u32::try_from(TIMES + 1).expect("few");
    let crowd = Crowd::begin(&replicas, 8, time);
    for _ in 0..TIMES {
        tokio::time::sleep(BETWEEN / 2).await;
        let leader = leader(&cluster).await;
        cluster.members[leader].kill9();
        tokio::time::sleep(BETWEEN / 2).await;
        cluster.members[leader].start();
    }
    let (grants, gap) = crowd.judge().await;
    println!("{grants} grants, longest gap {gap:?}");
    assert!(grants > 100, "only {grants} grants");
    assert!(gap < LONGEST, "no grant for {gap:?}");
}

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
        cluster.members[leader].pause();
        tokio::time::sleep(pause).await;
        cluster.members[leader].go_on();
    }
    let (grants, gap) = crowd.judge().await;
    println!("{grants} grants, longest gap {gap:?}");
    assert!(grants > 100, "only {grants} grants");
    assert!(gap < LONGEST, "no grant for {gap:?}");
}
