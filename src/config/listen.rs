//! Where the server listens.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::value::Bounded;

/// The port of a server that was told nothing else.
const DEFAULT_PORT: u16 = 50051;
/// The longest path of a Unix socket, in bytes, that every system takes.
const MAX_SOCKET_PATH_BYTES: usize = 103;

/// An address to listen on: `127.0.0.1:50051`, `[::1]:50051` or `unix:/run/fencepost.sock`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ListenAddress {
    /// TCP; port 0 lets the system choose one.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Whether only processes of this machine can connect.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl Default for ListenAddress {
    fn default() -> Self {
        Self::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)))
    }
}

impl Bounded for ListenAddress {
    fn bounds() -> Option<String> {
        Some(format!(
            "an IP address with its port, such as 127.0.0.1:50051 or [::1]:50051, or unix: and a path of 1 to \
             {MAX_SOCKET_PATH_BYTES} bytes"
        ))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A text that is no address to listen on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be {}, not {text:?}", ListenAddress::bounds().unwrap_or_default())]
pub struct NoAddress {
    text: String,
}

impl FromStr for ListenAddress {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Self, NoAddress> {
        let address = match text.strip_prefix("unix:") {
            Some(path) => socket_path(path).map(Self::Unix),
            None => text.parse().ok().map(Self::Tcp),
        };
        address.ok_or_else(|| NoAddress { text: text.to_owned() })
    }
}

fn socket_path(path: &str) -> Option<PathBuf> {
    let fits = (1..=MAX_SOCKET_PATH_BYTES).contains(&path.len()) && !path.contains('\0');
    fits.then(|| PathBuf::from(path))
}

impl TryFrom<String> for ListenAddress {
    type Error = NoAddress;

    fn try_from(text: String) -> Result<Self, NoAddress> {
        text.parse()
    }
}

impl From<ListenAddress> for String {
    fn from(address: ListenAddress) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> ListenAddress {
        text.parse().expect(text)
    }

    #[test]
    fn an_address_reads_as_it_is_written() {
        for text in ["127.0.0.1:50051", "[::1]:0", "0.0.0.0:1", "unix:/run/f.sock", "unix:rel.sock"] {
            assert_eq!(parsed(text).to_string(), text);
        }
    }

    #[test]
    fn only_loopback_and_unix_sockets_are_local() {
        for text in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "unix:/x"] {
            assert!(parsed(text).is_local(), "{text}");
        }
        for text in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1"] {
            assert!(!parsed(text).is_local(), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_bounds() {
        let too_long = format!("unix:/{}", "x".repeat(MAX_SOCKET_PATH_BYTES));
        for text in ["", "127.0.0.1", "localhost:1", "127.0.0.1:65536", "unix:", "unix:/a\0b", &too_long] {
            let refused = text.parse::<ListenAddress>().expect_err(text).to_string();
            assert!(refused.contains("1 to 103 bytes"), "{refused}");
        }
    }
}
