//! An address to listen on, as a value in the configuration file.

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use crate::api::ListenAddress;
use crate::schema::Bounded;

/// The longest path of a Unix socket, in bytes, that every system supports.
const MAX_SOCKET_PATH_BYTES: usize = 103;

/// An address to listen on: `127.0.0.1:50051`, `[::1]:50051` or `unix:/run/fencepost.sock`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen(pub ListenAddress);

impl Listen {
    /// Parses an address. Returns `None` if it is invalid or its path is too long.
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Self).filter(|address| address.is_bindable())
    }

    /// Whether the system can bind the address. The length of a Unix socket's path is limited.
    pub(super) fn is_bindable(&self) -> bool {
        match &self.0 {
            ListenAddress::Unix(path) => path.as_os_str().len() <= MAX_SOCKET_PATH_BYTES,
            ListenAddress::Tcp { .. } => true,
        }
    }
}

impl Listen {
    /// Whether both addresses cannot be bound at the same time.
    pub(super) fn clashes_with(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (ListenAddress::Unix(one), ListenAddress::Unix(other)) => {
                let whole = |path| std::path::absolute(path).ok();
                whole(one) == whole(other)
            }
            (ListenAddress::Tcp { host: one, port }, ListenAddress::Tcp { host, port: same }) => {
                // Port 0 stands for any free port.
                port == same && *port != 0 && (one == host || overlap(one, host))
            }
            _ => false,
        }
    }
}

/// Whether two hosts are the same address, or one of them is the unspecified address, which includes the other.
fn overlap(one: &str, other: &str) -> bool {
    let address = |host: &str| match host {
        "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        _ => host.trim_matches(['[', ']']).parse::<IpAddr>().ok(),
    };
    let (Some(one), Some(other)) = (address(one), address(other)) else {
        return false;
    };
    one == other || (one.is_ipv4() == other.is_ipv4() && (one.is_unspecified() || other.is_unspecified()))
}

impl Default for Listen {
    fn default() -> Self {
        Self(ListenAddress::Tcp {
            host: "127.0.0.1".to_owned(),
            port: 50051,
        })
    }
}

impl Bounded for Listen {
    fn bounds() -> Option<String> {
        Some(format!(
            "host:port, such as \"127.0.0.1:50051\" or \"[::1]:50051\", or unix: and a path of 1 to \
             {MAX_SOCKET_PATH_BYTES} bytes"
        ))
    }
}

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(ListenVisitor)
    }
}

struct ListenVisitor;

impl Visitor<'_> for ListenVisitor {
    type Value = Listen;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Listen::bounds().unwrap_or_default())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Listen, E> {
        Listen::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}
