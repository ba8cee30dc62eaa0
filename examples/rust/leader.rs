//! A candidate for leadership, until it is ended: `example-leader NAME [TTL_S]`. `example-observer` shows who leads.

use std::env::args;
use std::time::Duration;

use fencepost_client::{Client, Error};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = args().nth(1).unwrap_or_else(|| "candidate".into());
    let ttl: u64 = args().nth(2).map_or(Ok(5), |text| text.parse())?;
    let address = std::env::var("FENCEPOST_ADDR").unwrap_or_else(|_| "127.0.0.1:50051".into());
    let client = Client::connect(&[address.parse()?]).await?;
    loop {
        let campaign = client
            .acquire("default", "leader", &name)
            .wait(Duration::from_secs(3600))
            .ttl(Duration::from_secs(ttl))
            .metadata("address", &format!("{name}.example:8080"));
        match campaign.await {
            Ok(guard) => {
                println!("{name} leads with token {}", guard.fencing_token());
                // The work of a leader ends then.
                let loss = guard.lost().await;
                println!("{name} leads no more: {loss}");
            }
            Err(Error::WaitTimeout | Error::Unreachable { .. } | Error::Unavailable { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
