//! Nodes of a RedLock whose users change.

use super::redis::{admit, bar, cut, refused};
use super::{APPLIED, Kept, file, replace, served, serves};
use crate::redis_servers::{RedisServer, available};

// G64
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_password_is_used_for_each_new_connection_to_a_node_and_no_lease_is_lost() {
    if !available() {
        return;
    }
    let nodes: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::start(&[]));
    nodes.iter().for_each(|node| admit(node, "first"));
    let folder = tempfile::tempdir().expect("a directory");
    let password = file(&folder, "password", "first");
    let urls: Vec<String> = nodes.iter().map(|node| format!("'{}'", node.url())).collect();
    let store = format!(
        "backend = 'redlock'\nttl_max = '5m'\nredlock.nodes = [{}]\nredlock.on_empty_store = 'admit'\n\
         redlock.node_timeout = '750ms'\nredlock.user = 'locks'\nredlock.password_file = {password:?}\n",
        urls.join(", ")
    );
    let fixture = served(&store).await;
    let kept = Kept::begin(&fixture).await;

    nodes.iter().for_each(|node| admit(node, "second"));
    replace(&password, "second");
    fixture.shows(APPLIED, &[], 1.0).await;
    nodes.iter().for_each(|node| bar(node, "first"));
    kept.goes_on().await;
    assert_eq!(kept.failed(), 0, "open connections go on");

    nodes.iter().for_each(cut);
    serves(&fixture).await;
    kept.goes_on().await;
    let all: u64 = nodes.iter().map(refused).sum();
    assert_eq!(all, 0, "the old password is not tried");
    kept.end().await;
}
