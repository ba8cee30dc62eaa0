//! One channel for each address, and which of them is in use.

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};

use super::error::{Error, Failed};
use super::{Address, Credentials};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a connection with calls under way may be silent before it is asked for a sign of life,
/// and how long that may take.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// As large as the server's: bursts of small calls do not end the connection.
const WINDOW: u32 = 16 << 20;

/// The settings of every connection.
///
/// # Errors
/// [`Error::BadCredentials`], or [`Error::Unreachable`] for an address that makes no URI.
pub(super) fn endpoint(address: &Address, credentials: &Credentials) -> Result<Endpoint, Error> {
    let unusable = |error: tonic::transport::Error| unreachable(std::slice::from_ref(address), &innermost(&error));
    let mut endpoint = Endpoint::from_shared(address.uri()).map_err(unusable)?;
    if address.encrypted {
        let tls = credentials.tls(address)?;
        endpoint = endpoint.tls_config(tls).map_err(|error| Error::BadCredentials {
            problem: innermost(&error),
        })?;
    }
    Ok(endpoint
        .tcp_nodelay(true)
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .initial_connection_window_size(WINDOW)
        // Deadlines that end on both sides at once count against a connection, and never expire.
        .http2_max_local_error_reset_streams(None))
}

/// The channels of all addresses.
pub(super) struct Connections {
    ends: Vec<(Address, Endpoint)>,
    credentials: Credentials,
    /// Never held for longer than it takes to read or replace it.
    current: Mutex<Current>,
}

/// The channel in use.
struct Current {
    channel: Channel,
    /// Which of the addresses it goes to.
    at: usize,
    /// How many were in use before.
    turn: u64,
}

/// A channel to call over, and what to say when it fails.
pub(super) struct CallChannel {
    pub channel: Channel,
    pub address: Address,
    turn: u64,
}

impl Connections {
    /// Connects to the first address that accepts.
    pub(super) async fn open(addresses: &[Address], credentials: Credentials) -> Result<Self, Error> {
        credentials.check(addresses)?;
        let mut ends = Vec::new();
        for address in addresses {
            let endpoint = endpoint(address, &credentials)?;
            ends.push((address.clone(), endpoint));
        }
        let mut problem = "no address was given".to_owned();
        for (at, (_, endpoint)) in ends.iter().enumerate() {
            match endpoint.connect().await {
                Ok(channel) => {
                    let current = Mutex::new(Current { channel, at, turn: 0 });
                    return Ok(Self {
                        ends,
                        credentials,
                        current,
                    });
                }
                Err(error) => problem = innermost(&error),
            }
        }
        Err(unreachable(addresses, &problem))
    }

    /// How many addresses there are.
    pub(super) fn count(&self) -> usize {
        self.ends.len()
    }

    /// All addresses, for the error that none answered.
    pub(super) fn addresses(&self) -> String {
        list(self.ends.iter().map(|(address, _)| address))
    }

    /// What to call over now.
    pub(super) fn line(&self) -> CallChannel {
        let current = self.current.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        CallChannel {
            channel: current.channel.clone(),
            address: self.ends[current.at].0.clone(),
            turn: current.turn,
        }
    }

    /// A request that says who sends it.
    pub(super) async fn request<R>(&self, message: R) -> Result<Request<R>, Error> {
        self.credentials.request(message).await
    }

    /// Whether a call that a server did not accept may say otherwise who sends it.
    pub(super) async fn has_another(&self, shown: Option<&MetadataValue<Ascii>>) -> bool {
        self.credentials.has_another(shown).await
    }

    /// Leaves a line that failed, once for all who used it: for the next address, over a new
    /// connection, for one that is silent may be dead without knowing it.
    pub(super) fn leave(&self, line: &CallChannel) {
        let at = {
            let current = self.current.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if current.turn != line.turn {
                return;
            }
            (current.at + 1) % self.ends.len()
        };
        let channel = self.afresh(at).connect_lazy();
        let mut current = self.current.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if current.turn == line.turn {
            *current = Current {
                channel,
                at,
                turn: current.turn + 1,
            };
        }
    }

    /// The way to an address, with certificates as they are now; as they were where they cannot be read.
    fn afresh(&self, at: usize) -> Endpoint {
        let (address, before) = &self.ends[at];
        if !address.encrypted {
            return before.clone();
        }
        endpoint(address, &self.credentials).unwrap_or_else(|_| before.clone())
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connections").field(&self.addresses()).finish()
    }
}

impl CallChannel {
    /// The failure of a call that was not answered in time.
    pub(super) fn silent(&self, after: Duration) -> Failed {
        Failed::silent(
            &self.address,
            format!("nothing came within {:.1} s", after.as_secs_f64()),
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

/// The reason at the bottom: the layers above it only say that there is one.
pub(super) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let all = std::iter::successors(Some(error), |error| error.source());
    all.last().unwrap_or(error).to_string()
}
