//! Follows a stream of the service, at another server when its server ends it.

use std::time::Duration;

use fencepost_client::{Client, Error};
use futures::stream::{BoxStream, StreamExt};
use tokio::time::sleep;

use super::output::{Reader, print_line};
use super::server::{Server, block_on};
use super::unprintable::plain;
use super::{Failure, failure};

/// The pause before the stream is opened again.
const PAUSE: Duration = Duration::from_millis(200);
/// How often each address is tried until a server answers.
const TRIES_PER_ADDRESS: usize = 3;

/// Connects to a server, opens a stream and shows its messages, until it ends or its reader is gone. With several
/// addresses, a stream that a server ends is opened again: each begins with the present state.
///
/// # Errors
/// Those of connecting, of the stream and of `show`.
pub fn follow<M>(
    server: &Server,
    open: impl AsyncFn(&Client) -> Result<BoxStream<'static, Result<M, Error>>, Error>,
    show: impl Fn(&M) -> Result<Reader, Failure>,
) -> Result<(), Failure> {
    block_on(async {
        let client = server.connect().await?;
        let mut messages = open(&client).await.map_err(failure)?;
        loop {
            let failed = loop {
                match messages.next().await {
                    Some(Ok(message)) if show(&message)? == Reader::Closed => return Ok(()),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break error,
                    None => return Ok(()),
                }
            };
            let addresses = server.addresses.len();
            if addresses < 2 || !is_of_server(&failed) {
                return Err(failure(failed));
            }
            print_line(&plain(&format!("warning: {failed}; trying another server")));
            let opened = open_again(addresses * TRIES_PER_ADDRESS, async || open(&client).await).await;
            messages = opened.map_err(failure)?;
        }
    })
}

async fn open_again<S>(tries: usize, open: impl AsyncFn() -> Result<S, Error>) -> Result<S, Error> {
    let mut tries = tries;
    loop {
        sleep(PAUSE).await;
        tries -= 1;
        match open().await {
            Err(error) if is_of_server(&error) && tries > 0 => {}
            opened => return opened,
        }
    }
}

/// Whether another server may answer.
fn is_of_server(error: &Error) -> bool {
    matches!(error, Error::Unreachable { .. } | Error::Unavailable { .. })
}
