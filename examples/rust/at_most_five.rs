//! Jobs of which at most five run at a time, on all machines together: `example-at-most-five [JOBS]`.

use std::env::args;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost_client::{Client, Error, LockGuard};
use futures::future::try_join_all;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let jobs: u32 = args().nth(1).map_or(Ok(12), |text| text.parse())?;
    let address = std::env::var("FENCEPOST_ADDR").unwrap_or_else(|_| "127.0.0.1:50051".into());
    let client = Client::connect(&[address.parse()?]).await?;
    let (running, most) = (AtomicU32::new(0), AtomicU32::new(0));
    try_join_all((0..jobs).map(|job| run(&client, job, &running, &most))).await?;
    println!("at most {} at a time", most.load(Ordering::Relaxed));
    Ok(())
}

async fn run(client: &Client, job: u32, running: &AtomicU32, most: &AtomicU32) -> Result<(), Error> {
    let owner = format!("five-{}", std::process::id());
    let guard = client
        .acquire("default", "transcode", &owner)
        .semaphore(1, 5)
        .ttl(Duration::from_secs(8))
        .wait(Duration::from_secs(60))
        .await?;
    most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    // The work of this job.
    tokio::time::sleep(Duration::from_millis(500)).await;
    running.fetch_sub(1, Ordering::Relaxed);
    release(guard).await?;
    println!("job {job} has run");
    Ok(())
}

/// Without an answer, the lease ends with its TTL.
async fn release(guard: LockGuard) -> Result<(), Error> {
    match guard.release().await {
        Err(Error::Unreachable { .. } | Error::Unavailable { .. }) => Ok(()),
        released => released,
    }
}
