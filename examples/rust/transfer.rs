//! Transfers between accounts, each under the locks of both: `example-transfer [DATABASE] [TRANSFERS]`.

use std::env::args;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fencepost_client::{Client, Error, LockGuard};
use futures::stream::{self, StreamExt, TryStreamExt};
use rusqlite::{Connection, params};
use tokio::sync::Mutex;

const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL, token INTEGER NOT NULL);
    INSERT OR IGNORE INTO accounts VALUES ('alice', 100, 0), ('bob', 100, 0), ('carol', 100, 0);";
const ADD: &str = "UPDATE accounts SET balance = balance + ?1, token = ?2 WHERE name = ?3 AND token <= ?2";
const PAIRS: [(&str, &str); 3] = [("alice", "bob"), ("alice", "carol"), ("bob", "carol")];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = args().nth(1).unwrap_or_else(|| "accounts.db".into());
    let transfers: usize = args().nth(2).map_or(Ok(20), |text| text.parse())?;
    let database = Connection::open(path)?;
    database.execute_batch(TABLE)?;
    let database = Mutex::new(database);

    let address = std::env::var("FENCEPOST_ADDR").unwrap_or_else(|_| "127.0.0.1:50051".into());
    let client = Client::connect(&[address.parse()?]).await?;
    stream::iter((0..transfers).map(|_| transfer(&client, &database)))
        .buffer_unordered(4)
        .try_collect::<()>()
        .await?;
    let total: i64 = database
        .into_inner()
        .query_row("SELECT sum(balance) FROM accounts", (), |row| row.get(0))?;
    println!("the total is {total}");
    Ok(())
}

async fn transfer(client: &Client, database: &Mutex<Connection>) -> Result<(), Box<dyn std::error::Error>> {
    let random = SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos() as usize / 100;
    // Everybody takes the two locks in the order of their names, so that nobody waits in a circle.
    let (first, second) = PAIRS[random % PAIRS.len()];
    let amount = if random.is_multiple_of(2) { 10 } else { -10 };
    let one = account(client, first).await?;
    let two = account(client, second).await?;
    change(
        &mut *database.lock().await,
        [(first, amount, &one), (second, -amount, &two)],
    )?;
    release(one).await?;
    release(two).await?;
    println!("{amount} to {first}, {} to {second}", -amount);
    Ok(())
}

async fn account(client: &Client, name: &str) -> Result<LockGuard, Error> {
    let owner = format!("transfer-{}", std::process::id());
    let lock = format!("account/{name}");
    client
        .acquire("default", &lock, &owner)
        .wait(Duration::from_secs(60))
        .ttl(Duration::from_secs(8))
        .await
}

/// Without an answer, the lease ends with its TTL.
async fn release(guard: LockGuard) -> Result<(), Error> {
    match guard.release().await {
        Err(Error::Unreachable { .. } | Error::Unavailable { .. }) => Ok(()),
        released => released,
    }
}

/// Changes both balances or neither; each row compares the token of its own lock.
fn change(database: &mut Connection, changes: [(&str, i64, &LockGuard); 2]) -> Result<(), Box<dyn std::error::Error>> {
    let transaction = database.transaction()?;
    for (name, amount, guard) in changes {
        let token = guard.fencing_token();
        if transaction.execute(ADD, params![amount, token, name])? == 0 {
            return Err(format!("refused: a newer token than {token} has written {name}").into());
        }
    }
    Ok(transaction.commit()?)
}
