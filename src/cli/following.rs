//! Follows a stream of the service, at another server when its server ends it.

use std::time::Duration;

use fencepost::client::Error;
use futures::stream::{BoxStream, StreamExt};
use tokio::time::sleep;

use super::Failure;
use super::output::{Reader, print_line};
use super::unprintable::plain;

/// The pause before the stream is opened again.
const PAUSE: Duration = Duration::from_millis(200);
/// How often each address is tried until a server answers.
const TRIES_PER_ADDRESS: usize = 3;

/// Opens a stream and shows its messages, until it ends or its reader is gone. With several addresses, a stream that a
/// server ends is opened again: each begins with the present state.
///
/// # Errors
/// The error of the stream, as `about` describes it, and those of `show`.
pub async fn follow<M>(
    addresses: usize,
    open: impl AsyncFn() -> Result<BoxStream<'static, Result<M, Error>>, Error>,
    show: impl Fn(&M) -> Result<Reader, Failure>,
    about: impl Fn(Error) -> Failure,
) -> Result<(), Failure> {
    let mut messages = open().await.map_err(&about)?;
    loop {
        let failed = loop {
            match messages.next().await {
                Some(Ok(message)) if show(&message)? == Reader::Closed => return Ok(()),
                Some(Ok(_)) => {}
                Some(Err(error)) => break error,
                None => return Ok(()),
            }
        };
        if addresses < 2 || !is_of_server(&failed) {
            return Err(about(failed));
        }
        print_line(&plain(&format!("warning: {failed}; trying another server")));
        messages = open_again(addresses * TRIES_PER_ADDRESS, &open).await.map_err(&about)?;
    }
}

async fn open_again<S>(tries: usize, open: &impl AsyncFn() -> Result<S, Error>) -> Result<S, Error> {
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
