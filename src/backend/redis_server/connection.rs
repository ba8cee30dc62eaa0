//! One connection to a server, and the pause before the next.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, PushInfo, PushKind};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::failure::{away, of_script};
use super::credentials::CredentialedServer;
use super::settings::Settings;
use crate::backend::BackendError;

/// How many commands may wait to be written to a connection. Past it senders wait for one another, and whichever of
/// them runs first goes first: commands of one moment would lose their order.
pub const UNWRITTEN: usize = 65_536;

/// Opens a connection that notifies `closed` of its end.
///
/// # Errors
/// Like [`connect`].
pub async fn open(
    settings: &Settings,
    info: &ConnectionInfo,
    closed: &Arc<Notify>,
) -> Result<MultiplexedConnection, BackendError> {
    let told = Arc::clone(closed);
    let connection = connect(settings, settings.proof.at_server(info), move |push| {
        if push.kind == PushKind::Disconnection {
            told.notify_one();
        }
    });
    connection.await
}

/// Opens a connection and hands on what the server pushes.
///
/// # Errors
/// Away when it cannot be opened in time.
pub async fn connect(
    settings: &Settings,
    to: CredentialedServer,
    pushed: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<MultiplexedConnection, BackendError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(settings.connect_timeout))
        .set_response_timeout(Some(settings.response_timeout))
        .set_pipeline_buffer_size(UNWRITTEN)
        .set_push_sender(move |push| {
            pushed(push);
            Ok::<(), ()>(())
        });
    let client = Client::open(to.into_info()).map_err(away)?;
    let made = timeout(
        settings.connect_timeout + settings.response_timeout,
        client.get_multiplexed_async_connection_with_config(&config),
    );
    made.await
        .map_err(|_| away("no connection in time"))?
        .map_err(|error| of_script(&error))
}

/// A pause of half to all of `pause`, so that many do not come back at once.
pub fn jitter(pause: Duration) -> Duration {
    let mut byte = [0];
    // Without randomness everybody pauses alike, which is only less gentle.
    let _ = getrandom::fill(&mut byte);
    pause / 2 + pause * u32::from(byte[0]) / 512
}
