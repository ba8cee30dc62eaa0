//! Nodes of a RedLock whose users change.

use common::ports::free_port;
use tempfile::TempDir;

use super::redis::{admit, bar, cut, refused};
use super::{APPLIED, Kept, fails, file, replace, served, serves};
use crate::observe::certificates::Certificates;
use crate::observe::redis_servers::{RedisServer, available};

// G64a
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_password_is_used_for_each_new_connection_to_a_node_and_no_lease_is_lost() {
    common::skip_unless!(available());
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

// G64b
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_show_certificates_of_another_authority_are_reached_with_the_new_ones() {
    common::skip_unless!(available());
    let folders: [TempDir; 2] = std::array::from_fn(|_| tempfile::tempdir().expect("a directory"));
    let (files, later) = (
        Certificates::write(folders[0].path()),
        Certificates::write(folders[1].path()),
    );
    let ports: [u16; 3] = std::array::from_fn(|_| free_port());
    let nodes = ports.map(|port| {
        let mut options = files.options(port);
        options.extend(["--tls-auth-clients", "yes"].map(str::to_owned));
        RedisServer::start(&options.iter().map(String::as_str).collect::<Vec<_>>())
    });
    let store = format!(
        "backend = 'redlock'\nttl_max = '5m'\nredlock.nodes = [{}]\nredlock.on_empty_store = 'admit'\n\
         redlock.node_timeout = '750ms'\nredlock.ca_file = {:?}\nredlock.cert_file = {:?}\nredlock.key_file = {:?}\n",
        ports.map(|port| format!("'rediss://127.0.0.1:{port}'")).join(", "),
        files.ca,
        files.certificate,
        files.key
    );
    let fixture = served(&store).await;
    let kept = Kept::begin(&fixture).await;

    for node in &nodes {
        let [ca, certificate, key] =
            [&later.ca, &later.certificate, &later.key].map(|file| file.to_str().expect("text"));
        let rules = [
            "tls-ca-cert-file",
            ca,
            "tls-cert-file",
            certificate,
            "tls-key-file",
            key,
        ];
        assert_eq!(node.cli(&[&["CONFIG", "SET"][..], &rules[..]].concat()), "OK");
        let killed = node.cli(&["CLIENT", "KILL", "SKIPME", "yes"]);
        assert!(killed.parse::<u32>().expect("a count") > 0);
    }
    fails(&fixture).await;
    for (from, to) in [
        (&later.ca, &files.ca),
        (&later.certificate, &files.certificate),
        (&later.key, &files.key),
    ] {
        replace(to, std::fs::read(from).expect("a file"));
    }
    serves(&fixture).await;
    kept.goes_on().await;
    kept.end().await;
}
