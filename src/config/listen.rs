//! An address to listen on, as a value of the file.

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

use super::value::Bounded;
use crate::api::ListenAddress;

/// The longest path of a Unix socket, in bytes, that every system takes.
const MAX_SOCKET_PATH_BYTES: usize = 103;

/// An address to listen on: `127.0.0.1:50051`, `[::1]:50051` or `unix:/run/fencepost.sock`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen(pub ListenAddress);

impl Listen {
    /// The address of a text, or nothing when it is none or its path is too long.
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Self).filter(|address| address.is_bindable())
    }

    /// Whether the system can bind it: the path of a Unix socket has a bound.
    pub(super) fn is_bindable(&self) -> bool {
        match &self.0 {
            ListenAddress::Unix(path) => path.as_os_str().len() <= MAX_SOCKET_PATH_BYTES,
            ListenAddress::Tcp { .. } => true,
        }
    }
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
