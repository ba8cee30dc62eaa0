//! Which Redis is not trusted and for how long, as the configuration and the data directory say it.

use std::sync::Arc;

use crate::redis_settings::program::Program;
use crate::redis_settings::servers::{RedisServer, available};

#[tokio::test]
async fn it_is_as_long_as_the_longest_ttl_of_the_namespaces_in_a_redis() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let port = server.port();
    let text = format!(
        "[namespaces.default]\nbackend = 'redis'\nttl_default = '1s'\nttl_max = '3s'\n\
         redis.urls = ['redis://127.0.0.1:{port}']\n\
         [namespaces.zone]\nembedded.path = ':memory:'\nttl_max = '24h'\n"
    );
    // An empty Redis may have forgotten. That of the other namespace is no business of its.
    Program::on(&text, &[]).serves().await;
}

#[tokio::test]
async fn an_operator_ends_it_by_a_command() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let port = server.port();
    let text = format!("[namespaces.default]\nbackend = 'redis'\nredis.urls = ['redis://127.0.0.1:{port}']\n");
    let program = Program::on(&text, &[]);
    // An empty Redis may have forgotten, for as long as the longest TTL: a day.
    program.refuses("is empty: it is new, or has lost its data").await;
    let admitted = program.ask(&["admit", "default"]);
    assert_eq!(admitted, "default: admitted\n");
    program.serves().await;
}

fn configuration(server: &RedisServer, on_empty_store: &str) -> String {
    format!(
        "[namespaces.default]\nbackend = 'redis'\nredis.urls = ['redis://127.0.0.1:{}']\n\
         redis.on_empty_store = '{on_empty_store}'\n",
        server.port()
    )
}

// G94
#[tokio::test(flavor = "multi_thread")]
async fn the_first_start_on_an_empty_redis_says_what_to_do() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let program = Program::on(&configuration(&server, "quarantine"), &[]);
    let warning = tokio::task::block_in_place(|| program.first_line("WARN"));
    for told in ["is empty: it is new, or has lost its data", "fencepost admit default"] {
        assert!(warning.contains(told), "{warning}");
    }
    let listed = program.ask(&["namespaces"]);
    let first = listed.lines().next().unwrap_or_default();
    assert!(first.ends_with("end that: fencepost admit default"), "{listed}");
    program.ask(&["admit", "default"]);
    program.serves().await;
}

// G94
#[tokio::test]
async fn on_empty_store_counts_also_after_a_first_start_without_it() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let program = Program::on(&configuration(&server, "quarantine"), &[]);
    program.refuses("is empty").await;
    drop(program);
    Program::on(&configuration(&server, "admit"), &[]).serves().await;
}

// G94
#[tokio::test]
async fn a_server_that_has_granted_in_a_redis_does_not_take_it_for_new_when_it_is_empty() {
    common::skip_unless!(available());
    let mut server = RedisServer::start(&[]);
    let text = configuration(&server, "admit");
    let home = Arc::new(tempfile::tempdir().unwrap());
    let program = Program::at(&home, &text, &[]);
    program.serves().await;
    drop(program);
    server.kill9();
    server.restart();
    let program = Program::at(&home, &text, &[]);
    program.refuses("lost the leases that were granted in it").await;
    // Another server, whose data directory is empty, finds in Redis what the first one knew.
    let newcomer = Program::on(&text, &[]);
    newcomer.refuses("lost the leases that were granted in it").await;
    program.ask(&["admit", "default"]);
    newcomer.serves().await;
    drop((program, newcomer));
    server.kill9();
    server.restart();
    // A server alone with an empty data directory cannot know it.
    Program::on(&text, &[]).serves().await;
}
