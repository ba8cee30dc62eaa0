//! One connection to a server. Its stream is opened here, because what comes over it is [`Bounded`].

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use futures::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, PushInfo, PushKind, RedisResult};
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use super::bounded::Bounded;
use super::credentials::{CredentialedServer, Tls};
use super::failure::{of_script, unavailable};
use super::settings::Settings;
use crate::backend::BackendError;
use crate::backend::tls_stream::Duplex;

/// How many commands can wait to be written to a connection. Beyond this number, senders block and
/// then continue in any order, so commands that are sent at the same time would lose their order.
pub const WRITE_BUFFER: usize = 65_536;

/// An open connection. It is closed with the last clone.
#[derive(Debug, Clone)]
pub struct Connection {
    inner: MultiplexedConnection,
    _driver: Arc<AbortOnDropHandle<()>>,
}

impl Connection {
    /// Runs the driver of a connection in a task.
    pub fn driven(inner: MultiplexedConnection, driver: impl Future<Output = ()> + Send + 'static) -> Self {
        Self {
            inner,
            _driver: Arc::new(AbortOnDropHandle::new(tokio::spawn(driver))),
        }
    }
}

impl Deref for Connection {
    type Target = MultiplexedConnection;

    fn deref(&self) -> &MultiplexedConnection {
        &self.inner
    }
}

impl DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut MultiplexedConnection {
        &mut self.inner
    }
}

/// Opens a connection that notifies `closed` when it ends.
///
/// # Errors
/// Like [`connect`].
pub async fn open(
    settings: &Settings,
    info: &ConnectionInfo,
    closed: &Arc<Notify>,
) -> Result<Connection, BackendError> {
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
) -> Result<Connection, BackendError> {
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(Some(settings.response_timeout))
        .set_pipeline_buffer_size(WRITE_BUFFER)
        .set_push_sender(move |push| {
            pushed(push);
            Ok::<(), ()>(())
        });
    let connection = timeout(settings.connect_timeout, open_stream(to, config));
    connection
        .await
        .map_err(|_| unavailable("no connection in time"))?
        .map_err(|error| of_script(&error))
}

async fn open_stream(to: CredentialedServer, config: AsyncConnectionConfig) -> RedisResult<Connection> {
    let (info, tls) = to.into_parts();
    let stream: Box<dyn Duplex> = match info.addr() {
        ConnectionAddr::Tcp(host, port) => Box::new(reach(host, *port).await?),
        ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            ..
        } => encrypt(reach(host, *port).await?, host, &tls).await?,
        ConnectionAddr::Unix(path) => Box::new(UnixStream::connect(path).await?),
        _ => return Err(io::Error::from(io::ErrorKind::Unsupported).into()),
    };
    let redis = info.redis_settings();
    let (connection, driver) = MultiplexedConnection::new_with_config(redis, Bounded::new(stream), config).await?;
    Ok(Connection::driven(connection, driver))
}

/// Connects to the address of a host that answers first.
async fn reach(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses = lookup_host((host, port)).await?;
    let attempts: Vec<_> = addresses.map(|address| Box::pin(TcpStream::connect(address))).collect();
    if attempts.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    }
    let (stream, _) = select_ok(attempts).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn encrypt(stream: TcpStream, host: &str, tls: &Tls) -> io::Result<Box<dyn Duplex>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let config = tls.client_config().map_err(io::Error::other)?;
    Ok(Box::new(TlsConnector::from(config).connect(name, stream).await?))
}
