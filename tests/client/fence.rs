//! Resources that raise the tokens of their holders, in real databases, by the programs of docs/protect-a-resource.md: those
//! of Rust are the lines of the first functions.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use axum::routing::put;
use axum::{Extension, Router};
use common::{mysql, postgres, redis as redis_server};
use fencepost_client::fence::{FenceLayer, FencingToken, HEADER, RedisCall, RequestToken, StaleToken, sql, with_file};
use fencepost_client::{Client, LockGuard};
use mysql_async::prelude::Queryable;
use redis::aio::MultiplexedConnection;
use tokio::sync::Mutex;
use tower::ServiceExt;

use super::{Fixture, NAMESPACE, WAIT, hold};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

async fn add_one(database: &mut tokio_postgres::Client, guard: &LockGuard) -> Outcome {
    let token = FencingToken::of(guard)?;
    let transaction = database.transaction().await?;
    let changed = transaction
        .execute(sql::POSTGRESQL.raise, &[&token.lock(), &token.number()])
        .await?;
    token.raised(changed)?; // Before the first read.
    let total: i32 = transaction.query_one("SELECT total FROM account", &[]).await?.get(0);
    transaction
        .execute("UPDATE account SET total = $1", &[&(total + 1)])
        .await?;
    transaction.commit().await?;
    Ok(())
}

async fn set_to_zero(database: &mut tokio_postgres::Client, token: &FencingToken) -> Outcome {
    let transaction = database.transaction().await?;
    let changed = transaction
        .execute(sql::POSTGRESQL.raise, &[&token.lock(), &token.number()])
        .await?;
    token.raised(changed)?;
    transaction.execute("UPDATE account SET total = 0", &[]).await?;
    transaction.commit().await?;
    Ok(())
}

type Database = Arc<Mutex<tokio_postgres::Client>>;

async fn put_account(State(database): State<Database>, Extension(token): Extension<RequestToken>) -> Response<Body> {
    let mut response = Response::default();
    if let Err(error) = set_to_zero(&mut *database.lock().await, &token.of("accounts")).await {
        match error.downcast_ref::<StaleToken>() {
            Some(stale) => return stale.response(),
            None => *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
    response
}

fn service(database: Database) -> Router {
    Router::new()
        .route("/account", put(put_account).get(|| async {}))
        .with_state(database)
        .layer(FenceLayer)
}

async fn add_one_in_redis(redis: &mut MultiplexedConnection, guard: &LockGuard) -> Outcome {
    let token = FencingToken::of(guard)?;
    run(redis, &token, &[]).await?; // Before the first read.
    let total: Option<i64> = redis::cmd("GET").arg("total").query_async(redis).await?;
    let next = (total.unwrap_or(0) + 1).to_string();
    run(redis, &token, &[&[b"SET", b"total", next.as_bytes()]]).await
}

async fn run(redis: &mut MultiplexedConnection, token: &FencingToken, commands: &[&[&[u8]]]) -> Outcome {
    let call = RedisCall::new(token, commands);
    let mut eval = redis::cmd("EVAL");
    eval.arg(call.script)
        .arg(call.keys.len())
        .arg(call.keys)
        .arg(call.arguments);
    let answers: Vec<redis::Value> = eval.query_async(redis).await?;
    let first = redis::from_redis_value(answers.into_iter().next().unwrap_or_default())?;
    token.raised(first)?;
    Ok(())
}

fn write_report(path: &Path, guard: &LockGuard) -> Outcome {
    let token = FencingToken::of(guard)?;
    with_file(path, &token, |path| fs::write(path, "the report of today"))??;
    Ok(())
}

fn token(number: u64) -> FencingToken {
    FencingToken::new("accounts", number).expect("a token")
}

fn is_stale(outcome: &Outcome) -> bool {
    matches!(outcome, Err(error) if error.is::<StaleToken>())
}

const ACCOUNT: &str = "CREATE TABLE account (total integer NOT NULL); INSERT INTO account VALUES (5)";

async fn connect_postgres(server: &postgres::Postgres) -> tokio_postgres::Client {
    let stream = tokio::net::TcpStream::connect(server.address())
        .await
        .expect("it listens");
    let config: tokio_postgres::Config = "user=postgres dbname=fencepost".parse().expect("a configuration");
    let connected = config.connect_raw(stream, tokio_postgres::NoTls).await;
    let (database, connection) = connected.expect("it connects");
    tokio::spawn(connection);
    database
}

async fn total(database: &tokio_postgres::Client) -> i32 {
    let row = database.query_one("SELECT total FROM account", &[]).await;
    row.expect("a row").get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_programs_of_the_page_work_and_refuse_a_lower_token() {
    common::skip_unless!(postgres::available() && redis_server::available());
    let (fixture, server) = (Fixture::start().await, postgres::Postgres::started(&[]));
    let (client, mut database) = (fixture.client().await, connect_postgres(&server).await);
    let schema = format!("{}; {ACCOUNT}", sql::POSTGRESQL.create);
    database.batch_execute(&schema).await.expect("tables");
    let redis_server = redis_server::RedisServer::start(&[]);
    let open = redis::Client::open(redis_server.url()).expect("an address");
    let mut redis = open.get_multiplexed_async_connection().await.expect("it connects");
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    for _ in 0..2 {
        let guard = client
            .acquire(NAMESPACE, "accounts", "me")
            .wait(WAIT)
            .await
            .expect("granted");
        add_one(&mut database, &guard).await.expect("it is held");
        add_one_in_redis(&mut redis, &guard).await.expect("it is held");
        write_report(&report, &guard).expect("it is held");
        guard.release().await.expect("released");
    }
    let in_redis: String = redis::cmd("GET")
        .arg("total")
        .query_async(&mut redis)
        .await
        .expect("a total");
    assert_eq!((total(&database).await, in_redis.as_str()), (7, "2"));
    assert_eq!(fs::read_to_string(&report).expect("a file"), "the report of today");

    assert!(is_stale(
        &run(&mut redis, &token(1), &[&[b"SET", b"total", b"0"]]).await
    ));
    run(&mut redis, &token((1 << 53) - 1), &[&[b"INCR", b"total"]])
        .await
        .expect("it is newer");
    assert!(is_stale(&run(&mut redis, &token((1 << 53) - 2), &[]).await));
    let in_redis: String = redis::cmd("GET")
        .arg("total")
        .query_async(&mut redis)
        .await
        .expect("a total");
    assert_eq!(in_redis, "3");

    database
        .batch_execute("UPDATE fencing_tokens SET token = 33")
        .await
        .expect("a row");
    let database = Arc::new(Mutex::new(database));
    let service = service(Arc::clone(&database));
    let status = async |number: &str| {
        let request = Request::put("/account").header(HEADER, number).body(Body::empty());
        let answer = service.clone().oneshot(request.expect("a request")).await;
        answer.expect("an answer").status().as_u16()
    };
    assert_eq!((status("32").await, total(&*database.lock().await).await), (412, 7));
    assert_eq!((status("34").await, total(&*database.lock().await).await), (200, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_holder_that_has_read_writes_nothing_in_postgres_after_a_newer_one() {
    common::skip_unless!(postgres::available());
    let server = postgres::Postgres::started(&[]);
    let (mut paused, mut newer) = (connect_postgres(&server).await, connect_postgres(&server).await);
    let schema = format!("{}; {ACCOUNT}", sql::POSTGRESQL.create);
    paused.batch_execute(&schema).await.expect("tables");
    set_to_zero(&mut paused, &token(33)).await.expect("it is held");
    set_to_zero(&mut newer, &token(34)).await.expect("it is newer");
    newer
        .batch_execute("UPDATE account SET total = 6")
        .await
        .expect("a row");
    assert!(is_stale(&set_to_zero(&mut paused, &token(33)).await));
    assert_eq!(total(&newer).await, 6);
    set_to_zero(&mut newer, &token(34))
        .await
        .expect("it is still the newest");
}

/// Sets the total in MariaDB, whose number of changed rows does not tell.
async fn set_in_mariadb(database: &mut mysql_async::Conn, token: &FencingToken, total: i32) -> Outcome {
    let mut transaction = database.start_transaction(mysql_async::TxOpts::default()).await?;
    transaction
        .exec_drop(sql::MYSQL.raise, (token.lock(), token.number()))
        .await?;
    let select = sql::MYSQL.highest.expect("a statement");
    let highest: Option<u64> = transaction.exec_first(select, (token.lock(),)).await?;
    token.compare(highest.unwrap_or(u64::MAX))?;
    transaction.exec_drop("UPDATE account SET total = ?", (total,)).await?;
    transaction.commit().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_holder_that_has_read_writes_nothing_in_mariadb_after_a_newer_one() {
    common::skip_unless!(mysql::available());
    let server = mysql::MariaDb::started(&[]);
    let options = mysql_async::OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(server.port())
        .user(Some("root"))
        .db_name(Some("mysql"))
        .prefer_socket(false);
    let mut database = mysql_async::Conn::new(options).await.expect("it connects");
    for statement in [
        sql::MYSQL.create,
        "CREATE TABLE account (total integer NOT NULL)",
        "INSERT INTO account VALUES (5)",
    ] {
        database.query_drop(statement).await.expect("a table");
    }
    set_in_mariadb(&mut database, &token(33), 5).await.expect("it is held");
    set_in_mariadb(&mut database, &token(34), 6).await.expect("it is newer");
    assert!(is_stale(&set_in_mariadb(&mut database, &token(33), 6).await));
    set_in_mariadb(&mut database, &token(34), 7)
        .await
        .expect("it is still the newest");
    let total: Option<i32> = database.query_first("SELECT total FROM account").await.expect("a row");
    assert_eq!(total, Some(7));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lock_has_no_token() {
    let fixture = Fixture::start().await;
    let (client, other): (Client, Client) = (fixture.client().await, fixture.client().await);
    let guard = hold(&client, "a").await;
    let token = FencingToken::of(&guard).expect("it is held");
    assert_eq!(token.header(), guard.fencing_token().to_string());
    other
        .force_release(NAMESPACE, "a", guard.fencing_token())
        .await
        .expect("released");
    guard.lost().await;
    FencingToken::of(&guard).expect_err("it is lost");
}

#[test]
fn the_programs_of_the_page_are_those_of_this_file() {
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let own = squeezed(include_str!("fence.rs"));
    let page = include_str!("../../docs/protect-a-resource.md");
    let blocks: Vec<_> = page.split("```rust\n").skip(1).collect();
    assert_eq!(blocks.len(), 4);
    for block in blocks {
        let lines = squeezed(block.split("```").next().expect("an end"));
        assert!(own.contains(&lines), "the page has other lines: {lines}");
    }
    let page = squeezed(page);
    for dialect in [sql::POSTGRESQL, sql::SQLITE, sql::MYSQL] {
        let table = dialect.create.replace("IF NOT EXISTS ", "");
        let raise = dialect
            .raise
            .replace("(?, ?)", "(:name, :token)")
            .replace("($1, $2)", "(:name, :token)");
        let highest = dialect.highest.unwrap_or_default().replace('?', ":name");
        for statement in [table, raise, highest] {
            assert!(
                page.contains(&squeezed(&statement)),
                "the page has another statement: {statement}"
            );
        }
    }
}
