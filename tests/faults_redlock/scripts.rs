//! What one node answers to steps that come late, twice or out of order: the scripts alone, without a replica.

use std::time::Duration;

use fencepost::backend::redis_server::script::{Script, ScriptCall, ScriptRef};
use fencepost::backend::redlock::scripts;
use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::servers::{RedisServer, available};

const LOCK: &[u8] = b"l:a";
/// The admission that the node has.
const ADMITTED: &str = "admitted";
/// Past every round of an attempt.
const ALL: &str = "999999999";
const MINUTE: &str = "60000000";
const MILLISECOND: &str = "1000";

/// A node, and a caller that may know another admission.
struct Node {
    server: RedisServer,
    connection: MultiplexedConnection,
    known: &'static str,
}

impl Node {
    async fn start() -> Option<Self> {
        if !available() {
            return None;
        }
        let server = RedisServer::start(&[]);
        assert_eq!(server.cli(&["HSET", "marker", "epoch", ADMITTED]), "1");
        let client = redis::Client::open(server.url()).unwrap();
        let connection = client.get_multiplexed_async_connection().await.unwrap();
        let known = ADMITTED;
        Some(Self {
            server,
            connection,
            known,
        })
    }

    /// The status that the script answers.
    async fn call(&mut self, script: &Script, args: &[&str]) -> String {
        let common = [self.known, "channel", "a"];
        let args: Vec<Vec<u8>> = common.iter().chain(args).map(|arg| arg.as_bytes().to_vec()).collect();
        let call = ScriptCall {
            beside: &[b"marker", b"names"],
            ..ScriptCall::of(LOCK, &args)
        };
        let command = script.command(&call, ScriptRef::Text);
        let answer: Vec<Value> = command.query_async(&mut self.connection).await.unwrap();
        redis::from_redis_value(answer.into_iter().next().unwrap()).unwrap()
    }

    async fn vote(&mut self, secret: &str, round: &str, ttl: &str) -> String {
        let args = [secret, round, "claim", secret, ttl, "0", "shown", "0", "1000", "0"];
        self.call(&scripts::LOCK, &args).await
    }

    async fn raise(&mut self, secret: &str, round: &str, token: u64) -> String {
        self.call(&scripts::RAISE, &[secret, round, &token.to_string()]).await
    }

    async fn renew(&mut self, secret: &str, token: u64) -> String {
        let args = [secret, "claim", &token.to_string(), MINUTE];
        self.call(&scripts::RENEW, &args).await
    }

    async fn repair(&mut self, secret: &str, token: u64, ttl: &str) -> String {
        let args = [secret, "claim", &token.to_string(), ttl, secret, "1", "shown"];
        self.call(&scripts::REPAIR, &args).await
    }

    /// Ends the attempts of a secret up to a round.
    async fn end_attempt(&mut self, secret: &str, round: &str) -> String {
        let args = ["A", secret, "", round, "0", MINUTE];
        self.call(&scripts::RELEASE, &args).await
    }

    async fn release(&mut self, secret: &str, token: u64) -> String {
        let args = ["H", secret, "claim", "", &token.to_string(), MINUTE];
        self.call(&scripts::RELEASE, &args).await
    }

    fn field(&self, name: &str) -> String {
        self.server.cli(&["HGET", "l:a", name])
    }

    fn number(&self) -> u64 {
        self.field("val").parse().unwrap()
    }
}

#[tokio::test]
async fn a_raise_lifts_the_number_of_its_own_attempt_alone() {
    let Some(mut node) = Node::start().await else { return };
    assert_eq!(node.vote("one", "1", MINUTE).await, "ok");
    let number = node.number();
    assert_eq!(node.raise("other", "1", number + 10).await, "no");
    assert_eq!(node.raise("one", "0", number + 10).await, "no");
    assert_eq!(node.raise("one", "1", number + 10).await, "ok");
    assert_eq!(node.raise("one", "1", number + 5).await, "no");
    assert_eq!(node.number(), number + 10);
}

#[tokio::test]
async fn a_number_is_above_all_earlier_ones_whatever_the_clock_says() {
    let Some(mut node) = Node::start().await else { return };
    assert_eq!(node.vote("one", "0", MINUTE).await, "ok");
    let ahead = node.number() + 900_000;
    assert_eq!(node.raise("one", "0", ahead).await, "ok");
    assert_eq!(node.end_attempt("one", "0").await, "ended");
    assert_eq!(node.vote("two", "0", MINUTE).await, "ok");
    assert!(node.number() > ahead);
    assert_eq!(node.end_attempt("two", "0").await, "ended");
    // A number far ahead counts for locks that the node has forgotten too.
    assert_eq!(node.vote("three", "0", MINUTE).await, "ok");
    let far = node.number() + 600_000_000;
    assert_eq!(node.raise("three", "0", far).await, "ok");
    assert_eq!(node.server.cli(&["DEL", "l:a"]), "1");
    assert_eq!(node.vote("four", "0", MINUTE).await, "ok");
    assert!(node.number() > far);
    // As does what the node was admitted with for those that it knows.
    let floor = (far + 600_000_000).to_string();
    assert_eq!(node.server.cli(&["HSET", "marker", "floor", &floor]), "0");
    assert_eq!(node.end_attempt("four", "0").await, "ended");
    assert_eq!(node.vote("five", "0", MINUTE).await, "ok");
    assert!(node.number() >= far + 600_000_000);
}

#[tokio::test]
async fn the_end_of_an_attempt_ends_no_other_one_and_no_renewed_lease() {
    let Some(mut node) = Node::start().await else { return };
    assert_eq!(node.end_attempt("one", "5").await, "nothing");
    assert_eq!(node.end_attempt("one", "3").await, "nothing");
    assert_eq!(node.vote("one", "5", MINUTE).await, "left");
    assert_eq!(node.vote("one", "6", MINUTE).await, "ok");
    assert_eq!(node.vote("one", "6", MINUTE).await, "ok");
    assert_eq!(node.vote("one", "7", MINUTE).await, "busy");
    assert_eq!(node.end_attempt("one", "5").await, "nothing");
    assert_eq!(node.end_attempt("other", "9").await, "nothing");
    let number = node.number();
    assert_eq!(node.renew("one", number).await, "ok");
    assert_eq!(node.end_attempt("one", "9").await, "nothing");
    assert_eq!(node.renew("one", number).await, "ok");
}

#[tokio::test]
async fn a_repair_places_nothing_that_has_ended_or_beside_others() {
    let Some(mut node) = Node::start().await else { return };
    assert_eq!(node.vote("one", "0", MINUTE).await, "ok");
    let number = node.number();
    assert_eq!(node.repair("other", number + 10, MINUTE).await, "no");
    assert_eq!(node.repair("one", number - 10, MINUTE).await, "no");
    let expiry = node.field("exp");
    assert_eq!(node.repair("one", number, MILLISECOND).await, "ok");
    assert_eq!(node.field("exp"), expiry);
    assert_eq!(node.release("one", number).await, "ended");
    assert_eq!(node.repair("one", number, MINUTE).await, "no");
    assert_eq!(node.repair("late", number - 10, MINUTE).await, "no");
    assert_eq!(node.end_attempt("gone", ALL).await, "nothing");
    assert_eq!(node.repair("gone", number + 10, MINUTE).await, "no");
    assert_eq!(node.end_attempt("tried", "0").await, "nothing");
    assert_eq!(node.repair("tried", number + 10, MINUTE).await, "ok");
}

#[tokio::test]
async fn an_attempt_goes_on_after_its_vote_has_expired() {
    let Some(mut node) = Node::start().await else { return };
    assert_eq!(node.vote("one", "0", MILLISECOND).await, "ok");
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(node.vote("one", "0", MINUTE).await, "left");
    // Its lease does not.
    let later = node.field("c").parse::<u64>().unwrap() + 10;
    assert_eq!(node.repair("one", later, MINUTE).await, "no");
    assert_eq!(node.vote("one", "1", MINUTE).await, "ok");
}

#[tokio::test]
async fn a_step_under_another_admission_counts_for_nothing() {
    let Some(mut node) = Node::start().await else { return };
    assert_eq!(node.vote("one", "0", MILLISECOND).await, "ok");
    let number = node.number();
    tokio::time::sleep(Duration::from_millis(10)).await;
    node.known = "earlier";
    assert_eq!(node.call(&scripts::INSPECT, &["0"]).await, "free");
    assert_eq!(node.vote("two", "0", MINUTE).await, "untrusted");
    assert_eq!(node.raise("one", "0", number + 10).await, "untrusted");
    assert_eq!(node.renew("one", number).await, "untrusted");
    assert_eq!(node.repair("two", number + 10, MINUTE).await, "untrusted");
    // What holds under an earlier admission keeps nobody out.
    node.known = ADMITTED;
    assert_eq!(node.vote("two", "0", MINUTE).await, "ok");
    assert_eq!(node.server.cli(&["HSET", "marker", "epoch", "later"]), "0");
    node.known = "later";
    assert_eq!(node.vote("three", "0", MINUTE).await, "ok");
    assert_eq!(node.server.cli(&["HDEL", "marker", "epoch"]), "1");
    assert_eq!(node.call(&scripts::INSPECT, &["0"]).await, "untrusted");
}
