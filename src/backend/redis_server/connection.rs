//! One connection to a server, and the pause before the next.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, PushInfo, PushKind};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::credentials::CredentialedServer;
use super::failure::{of_script, unavailable};
use super::settings::Settings;
use crate::backend::BackendError;

/// How many commands can wait to be written to a connection. Beyond this number, senders block and
/// then continue in any order, so commands that are sent at the same time would lose their order.
pub const WRITE_BUFFER: usize = 65_536;

/// Opens a connection that notifies `closed` when it ends.
///
/// # Errors
/// Like [`connect`].
pub async fn open(
    settings: &Settings,
    info: &ConnectionInfo,
    closed: &Arc<Notify>,
) -> Result<MultiplexedConnection, BackendError> {
    let notify = Arc::clone(closed);
    let connection = connect(settings, settings.credentials.at_server(info), move |push| {
        if push.kind == PushKind::Disconnection {
            notify.notify_one();
        }
    });
    connection.await
}

/// Opens a connection and passes the server's pushes to `pushed`.
///
/// # Errors
/// Unavailable if it cannot be opened in time.
pub async fn connect(
    settings: &Settings,
    to: CredentialedServer,
    pushed: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<MultiplexedConnection, BackendError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(settings.connect_timeout))
        .set_response_timeout(Some(settings.response_timeout))
        .set_pipeline_buffer_size(WRITE_BUFFER)
        .set_push_sender(move |push| {
            pushed(push);
            Ok::<(), ()>(())
        });
    let client = Client::open(to.into_info()).map_err(unavailable)?;
    let connection = timeout(
        settings.connect_timeout + settings.response_timeout,
        client.get_multiplexed_async_connection_with_config(&config),
    );
    connection
        .await
        .map_err(|_| unavailable("no connection in time"))?
        .map_err(|error| of_script(&error))
}
