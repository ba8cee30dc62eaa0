//! A job under a lock: `example-job [DATABASE] [STEPS] [TTL_S]`.
//!
//! Each step raises the fencing token before it reads, in the transaction of its work, which a newer holder's token refuses.

use std::env::args;
use std::error::Error;
use std::time::Duration;

use fencepost_client::fence::{FencingToken, sql};
use fencepost_client::{Client, LockGuard};
use rusqlite::{Connection, TransactionBehavior, params};

const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS reports (name TEXT PRIMARY KEY, steps INTEGER NOT NULL, token INTEGER NOT NULL)";
const WRITE: &str = "INSERT OR REPLACE INTO reports VALUES ('daily', ?1, ?2)";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = args().nth(1).unwrap_or_else(|| "reports.db".into());
    let steps: u64 = args().nth(2).map_or(Ok(5), |text| text.parse())?;
    let ttl: u64 = args().nth(3).map_or(Ok(10), |text| text.parse())?;
    let mut database = Connection::open(path)?;
    database.execute(sql::SQLITE.create, ())?;
    database.execute(TABLE, ())?;

    let address = std::env::var("FENCEPOST_ADDR").unwrap_or_else(|_| "127.0.0.1:50051".into());
    let client = Client::connect(&[address.parse()?]).await?;
    let owner = format!("job-{}", std::process::id());
    let guard = client
        .acquire("default", "reports", &owner)
        .wait(Duration::from_secs(60))
        .ttl(Duration::from_secs(ttl))
        .await?;
    println!("locked with token {}", guard.fencing_token());
    write_all(&mut database, &guard, steps).await?;
    guard.release().await?;
    println!("done");
    Ok(())
}

async fn write_all(database: &mut Connection, guard: &LockGuard, steps: u64) -> Result<(), Box<dyn Error>> {
    for step in 1..=steps {
        if !guard.is_held() {
            return Err(format!("LEASE_LOST: {}", guard.lost().await).into());
        }
        let token = FencingToken::of(guard)?;
        // The work of this step.
        tokio::time::sleep(Duration::from_millis(200)).await;
        write(database, &token)?;
        println!("wrote step {step}");
    }
    Ok(())
}

fn write(database: &mut Connection, token: &FencingToken) -> Result<(), Box<dyn Error>> {
    let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let changed = transaction.execute(sql::SQLITE.raise, params![token.lock(), token.number()])?;
    token
        .raised(changed.try_into()?)
        .map_err(|stale| format!("refused: {stale}"))?;
    let steps: i64 = transaction.query_row("SELECT coalesce(max(steps), 0) FROM reports", (), |row| row.get(0))?;
    transaction.execute(WRITE, params![steps + 1, token.number()])?;
    Ok(transaction.commit()?)
}
