//! Follows a stream of the service.

use fencepost_client::{Client, Error};
use futures::stream::{BoxStream, StreamExt};

use super::direct::Purpose;
use super::output::Reader;
use super::server::{Server, block_on};
use super::{Failure, failure};

/// Connects to a server, opens a stream and shows its messages, until it ends or its reader is gone. The client opens a
/// stream that its server ends again.
///
/// # Errors
/// The errors of connecting, of the stream and of `show`.
pub fn follow<M>(
    (server, purpose): (&Server, Purpose),
    open: impl AsyncFn(&Client) -> Result<BoxStream<'static, Result<M, Error>>, Error>,
    show: impl Fn(&M) -> Result<Reader, Failure>,
) -> Result<(), Failure> {
    block_on(async {
        let client = server.connect(purpose).await?;
        let mut messages = open(&client).await.map_err(failure)?;
        while let Some(message) = messages.next().await {
            if show(&message.map_err(failure)?)? == Reader::Closed {
                break;
            }
        }
        Ok(())
    })
}
