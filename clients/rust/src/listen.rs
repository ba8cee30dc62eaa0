//! Where a server listens, as text.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// A listen address: `127.0.0.1:50051`, `[::1]:0`, `localhost:50051` or `unix:/path`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// A host name or IP address and a port; port 0 lets the system choose.
    Tcp {
        /// The host; an IPv6 address without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// The error for a text that is no listen address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no address: write host:port, [ipv6]:port or unix:/path")]
pub struct BadAddress {
    /// The text.
    pub text: String,
}

impl ListenAddress {
    /// Whether only this machine can reach it: a Unix socket, `localhost` or a loopback address.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { host, .. } => host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let address = match text.strip_prefix("unix:") {
            Some(path) => (!path.is_empty()).then(|| Self::Unix(path.into())),
            None => tcp(text),
        };
        address.ok_or_else(|| BadAddress { text: text.into() })
    }
}

fn tcp(text: &str) -> Option<ListenAddress> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(ListenAddress::Tcp {
            host: address.ip().to_string(),
            port: address.port(),
        });
    }
    let (host, port) = text.rsplit_once(':')?;
    let is_name = !host.is_empty()
        && host
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'));
    is_name.then_some(ListenAddress::Tcp {
        host: host.to_ascii_lowercase(),
        port: port.parse().ok()?,
    })
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> ListenAddress {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_is_written_as_it_is_read() {
        for text in [
            "127.0.0.1:50051",
            "[::1]:0",
            "localhost:50051",
            "0.0.0.0:1",
            "db-1.example.org:65535",
            "lock_server:50051",
            "unix:/run/f.sock",
        ] {
            assert_eq!(address(text).to_string(), text);
        }
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for text in [
            "",
            "50051",
            ":1",
            "a:",
            "a:65536",
            "a b:1",
            "::1:1",
            "[::1]",
            "unix:",
            "http://a:1",
            "1.2.3.4:-1",
        ] {
            assert_eq!(text.parse::<ListenAddress>(), Err(BadAddress { text: text.into() }));
        }
    }

    #[test]
    fn loopback_addresses_and_unix_sockets_are_local() {
        for text in ["127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "LOCALHOST:1", "unix:/f"] {
            assert!(address(text).is_local(), "{text}");
        }
        for text in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "localhost.example.org:1"] {
            assert!(!address(text).is_local(), "{text}");
        }
    }
}
