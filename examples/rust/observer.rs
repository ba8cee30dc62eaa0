//! Shows who leads, until it is ended: the present leader, then each change.

use std::error::Error;
use std::time::Duration;

use fencepost_client::proto::watch_lock_response::Event;
use fencepost_client::proto::{ChangeKind, LockState};
use fencepost_client::{Client, Error as ClientError};
use futures::stream::StreamExt;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::var("FENCEPOST_ADDR").unwrap_or_else(|_| "127.0.0.1:50051".into());
    let client = Client::connect(&[address.parse()?]).await?;
    let mut newest = 0;
    loop {
        // After an error, the next watch begins with the present state.
        if let Err(error) = observe(&client, &mut newest).await {
            eprintln!("{error}");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn observe(client: &Client, newest: &mut u64) -> Result<(), ClientError> {
    let mut events = client.watch("default", "leader").await?;
    while let Some(message) = events.next().await {
        match message?.event {
            Some(Event::State(state)) => show(&state, newest),
            // A change does not show the holder's metadata.
            Some(Event::Change(change)) if change.kind() != ChangeKind::Queued => {
                show(&client.get("default", "leader").await?, newest);
            }
            _ => {}
        }
    }
    Ok(())
}

fn show(state: &LockState, newest: &mut u64) {
    if state.holders.is_empty() {
        println!("nobody leads");
    }
    for holder in &state.holders {
        if holder.fencing_token > *newest {
            *newest = holder.fencing_token;
            let address = holder.metadata.get("address").map_or("", String::as_str);
            println!("{} leads at {address}, token {newest}", holder.owner);
        }
    }
}
