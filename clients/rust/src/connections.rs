//! One channel at a time to one of several addresses.

use std::fmt;
use std::future::ready;
use std::io;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::Request;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;
use tracing::warn;

use super::credentials::BearerToken;
use super::dial::{connect, connect_lazy, first_of};
use super::error::{Error, Failed, innermost};
use super::{Address, Credentials, ListenAddress};

/// The time limit for connecting.
const CONNECT: Duration = Duration::from_secs(5);
/// The time without data after which a connection with calls in flight is pinged, and the time limit for the reply.
const KEEPALIVE: Duration = Duration::from_secs(3);
/// The HTTP/2 window, the same as the server's, so that bursts of small calls do not exhaust it.
const WINDOW: u32 = 16 << 20;

/// The settings of every connection.
///
/// # Errors
/// [`Error::BadCredentials`], or [`Error::Unreachable`] for an address that is not a URI.
pub(super) fn endpoint(address: &Address, credentials: &Credentials) -> Result<Endpoint, Error> {
    let unusable = |error: tonic::transport::Error| unreachable(std::slice::from_ref(address), &innermost(&error));
    let mut endpoint = Endpoint::from_shared(address.uri()).map_err(unusable)?;
    if address.encrypted {
        endpoint = credentials.encrypt(endpoint, address)?;
    }
    Ok(endpoint
        .tcp_nodelay(true)
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .initial_connection_window_size(WINDOW)
        // Disabled, because calls whose deadline passes on both sides at once count towards this limit and never
        // expire.
        .http2_max_local_error_reset_streams(None))
}

/// The connections to all addresses.
pub(super) struct Connections {
    endpoints: Vec<(Address, Endpoint)>,
    credentials: Credentials,
    connect: Connect,
    /// Locked only to read or replace the value.
    current: Mutex<Current>,
}

/// How a channel that connects with its first call is made.
type Connect = Box<dyn Fn(&Address, &Endpoint) -> Channel + Send + Sync>;

/// The channel in use.
struct Current {
    channel: Channel,
    /// The index of its address.
    index: usize,
    /// The number of channels that were in use before.
    generation: u64,
    /// A second connection to the same address, once one was needed.
    for_waits: Option<Channel>,
}

/// The channel for a call, and its address for errors.
#[derive(Clone)]
pub(super) struct CallChannel {
    pub channel: Channel,
    pub address: Address,
    generation: u64,
}

impl Current {
    fn first(channel: Channel, index: usize) -> Mutex<Self> {
        Mutex::new(Self {
            channel,
            index,
            generation: 0,
            for_waits: None,
        })
    }
}

impl Connections {
    /// Connects to the first address that accepts. Each is tried when the one before has failed, or after a head start.
    pub(super) async fn open(addresses: &[Address], credentials: Credentials) -> Result<Self, Error> {
        credentials.check(addresses)?;
        let mut endpoints = Vec::new();
        for address in addresses {
            let endpoint = endpoint(address, &credentials)?;
            endpoints.push((address.clone(), endpoint));
        }
        let attempts = endpoints
            .iter()
            .enumerate()
            .map(|(index, (address, endpoint))| async move {
                let connected = connect(address, endpoint).await;
                connected
                    .map(|channel| (index, channel))
                    .map_err(|error| Failed::of_transport(&error, address).error)
            });
        let (index, channel) = first_of(attempts).await.map_err(|error| match error {
            Some(Error::Unreachable { problem, .. }) => unreachable(addresses, &problem),
            Some(error) => error,
            None => unreachable(addresses, &"no address was given"),
        })?;
        Ok(Self {
            endpoints,
            credentials,
            connect: Box::new(connect_lazy),
            current: Current::first(channel, index),
        })
    }

    /// Connects by this function, always to the same server.
    pub(super) fn by<S>(connect: impl Fn() -> io::Result<S> + Clone + Send + Sync + 'static) -> Result<Self, Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // The host and the port stand in no connection.
        let (host, port) = ("in-process".to_owned(), 1);
        let address = Address {
            at: ListenAddress::Tcp { host, port },
            encrypted: false,
        };
        let credentials = Credentials::default();
        let endpoint = endpoint(&address, &credentials)?;
        let connect = move |_: &Address, endpoint: &Endpoint| {
            let connect = connect.clone();
            endpoint.connect_with_connector_lazy(service_fn(move |_: Uri| ready(connect().map(TokioIo::new))))
        };
        Ok(Self {
            current: Current::first(connect(&address, &endpoint), 0),
            endpoints: vec![(address, endpoint)],
            credentials,
            connect: Box::new(connect),
        })
    }

    /// The number of addresses.
    pub(super) fn count(&self) -> usize {
        self.endpoints.len()
    }

    /// All addresses, for the error that none answered.
    pub(super) fn addresses(&self) -> String {
        list(self.endpoints.iter().map(|(address, _)| address))
    }

    /// The channel in use.
    pub(super) fn channel(&self) -> CallChannel {
        let current = self.current.lock();
        CallChannel {
            channel: current.channel.clone(),
            address: self.endpoints[current.index].0.clone(),
            generation: current.generation,
        }
    }

    /// A channel to the same address for calls that wait on streams of their own. If it fails, both are replaced.
    pub(super) fn channel_for_waits(&self) -> CallChannel {
        let mut used = self.channel();
        let index = {
            let current = self.current.lock();
            if let Some(channel) = current.for_waits.clone() {
                return CallChannel {
                    channel,
                    address: self.endpoints[current.index].0.clone(),
                    generation: current.generation,
                };
            }
            current.index
        };
        let channel = (self.connect)(&self.endpoints[index].0, &self.with_new_certificates(index));
        let mut current = self.current.lock();
        if current.generation == used.generation {
            used.channel = current.for_waits.get_or_insert(channel).clone();
        }
        used
    }

    /// Whether this is the channel in use.
    pub(super) fn uses(&self, channel: &CallChannel) -> bool {
        self.current.lock().generation == channel.generation
    }

    /// A request with credentials.
    pub(super) async fn request<R>(&self, message: R) -> Result<Request<R>, Error> {
        self.credentials.request(message).await
    }

    /// The bearer token that calls present now.
    pub(super) async fn token(&self) -> Result<Option<BearerToken>, Error> {
        self.credentials.token().await
    }

    /// Whether a call with rejected credentials can be repeated with others.
    pub(super) async fn has_another(&self, presented: Option<&BearerToken>) -> bool {
        self.credentials.has_another(presented).await
    }

    /// Replaces a failed channel, once for all calls that used it, by one to the next address. It is always a new
    /// connection, because a silent one may be dead without having noticed it.
    pub(super) fn replace_channel(&self, failed: &CallChannel, why: &Error) {
        let index = {
            let current = self.current.lock();
            if current.generation != failed.generation {
                return;
            }
            (current.index + 1) % self.endpoints.len()
        };
        let channel = (self.connect)(&self.endpoints[index].0, &self.with_new_certificates(index));
        let mut current = self.current.lock();
        if current.generation == failed.generation {
            *current = Current {
                channel,
                index,
                generation: current.generation + 1,
                for_waits: None,
            };
            drop(current);
            let (from, to) = (&failed.address, &self.endpoints[index].0);
            warn!(%from, %to, %why, "connection replaced");
        }
    }

    /// The endpoint of an address, with newly read certificates. If they cannot be read, the previous endpoint.
    fn with_new_certificates(&self, index: usize) -> Endpoint {
        let (address, previous) = &self.endpoints[index];
        if !address.encrypted {
            return previous.clone();
        }
        endpoint(address, &self.credentials).unwrap_or_else(|_| previous.clone())
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connections").field(&self.addresses()).finish()
    }
}

impl CallChannel {
    /// The number of the channel, which no other one has.
    pub(super) fn number(&self) -> u64 {
        self.generation
    }

    /// The failure of a call without a response.
    pub(super) fn no_response(&self, after: Duration) -> Failed {
        Failed::no_response(
            &self.address,
            format!("no response within {:.1} s", after.as_secs_f64()),
        )
    }
}

fn unreachable(addresses: &[Address], problem: &impl ToString) -> Error {
    Error::Unreachable {
        addresses: list(addresses.iter()),
        problem: problem.to_string(),
    }
}

fn list<'a>(addresses: impl Iterator<Item = &'a Address>) -> String {
    addresses.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
