//! A job under a lock: `example-job [DATABASE] [STEPS] [TTL_S]`.
//!
//! Each write carries the fencing token, and the table refuses a token below the highest that it has seen.

use std::env::args;
use std::error::Error;
use std::time::Duration;

use fencepost_client::{Client, LockGuard};
use rusqlite::{Connection, params};

const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS reports (name TEXT PRIMARY KEY, step INTEGER NOT NULL, token INTEGER NOT NULL)";
const WRITE: &str = "INSERT INTO reports VALUES ('daily', ?1, ?2)
    ON CONFLICT (name) DO UPDATE SET step = excluded.step, token = excluded.token WHERE excluded.token >= token";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = args().nth(1).unwrap_or_else(|| "reports.db".into());
    let steps: u64 = args().nth(2).map_or(Ok(5), |text| text.parse())?;
    let ttl: u64 = args().nth(3).map_or(Ok(10), |text| text.parse())?;
    let database = Connection::open(path)?;
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
    write_all(&database, &guard, steps).await?;
    guard.release().await?;
    println!("done");
    Ok(())
}

async fn write_all(database: &Connection, guard: &LockGuard, steps: u64) -> Result<(), Box<dyn Error>> {
    for step in 1..=steps {
        if !guard.is_held() {
            return Err(format!("LEASE_LOST: {}", guard.lost().await).into());
        }
        // The work of this step.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let token = guard.fencing_token();
        if database.execute(WRITE, params![step, token])? == 0 {
            return Err(format!("refused: a newer token than {token} has written").into());
        }
        println!("wrote step {step}");
    }
    Ok(())
}
