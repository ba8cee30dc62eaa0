//! How long a Redis that may have forgotten is not trusted, as the configuration says it.

use crate::program::Program;
use crate::servers::{RedisServer, available};

#[tokio::test]
async fn it_is_as_long_as_the_longest_ttl_of_the_namespaces_in_a_redis() {
    if !available() {
        return;
    }
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
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let port = server.port();
    let text = format!("[namespaces.default]\nbackend = 'redis'\nredis.urls = ['redis://127.0.0.1:{port}']\n");
    let program = Program::on(&text, &[]);
    // An empty Redis may have forgotten, for as long as the longest TTL: a day.
    program.refuses("may have lost").await;
    let admitted = program.ask(&["admit", "default"]);
    assert_eq!(admitted, "default: admitted\n");
    program.serves().await;
}
