//! The address of a server, and whether the connection is encrypted.

use std::fmt;
use std::str::FromStr;

use crate::listen::{BadAddress, ListenAddress};

/// The scheme of encrypted connections.
const ENCRYPTED: &str = "https://";
/// The optional scheme of unencrypted connections.
const PLAIN: &str = "http://";

/// The address of a server: `127.0.0.1:50051`, `[::1]:50051`, `localhost:50051` or `unix:/path`. With `https://` before
/// host and port the connection is encrypted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// The address.
    pub at: ListenAddress,
    /// Whether the connection is encrypted.
    pub encrypted: bool,
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let bad = || BadAddress { text: text.into() };
        let (rest, encrypted) = match text.strip_prefix(ENCRYPTED) {
            Some(rest) => (rest, true),
            None => (text.strip_prefix(PLAIN).unwrap_or(text), false),
        };
        let has_scheme = rest.len() < text.len();
        let at: ListenAddress = if has_scheme { rest.trim_end_matches('/') } else { rest }
            .parse()
            .map_err(|_| bad())?;
        if has_scheme && matches!(at, ListenAddress::Unix(_)) {
            return Err(bad());
        }
        Ok(Self { at, encrypted })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.encrypted { ENCRYPTED } else { "" };
        write!(f, "{scheme}{}", self.at)
    }
}

impl Address {
    /// The URI for the transport.
    pub(super) fn uri(&self) -> String {
        match &self.at {
            ListenAddress::Unix(_) => self.at.to_string(),
            ListenAddress::Tcp { .. } if self.encrypted => self.to_string(),
            ListenAddress::Tcp { .. } => format!("{PLAIN}{}", self.at),
        }
    }

    /// The name that the server's certificate must contain.
    pub(super) fn host(&self) -> Option<&str> {
        match &self.at {
            ListenAddress::Unix(_) => None,
            ListenAddress::Tcp { host, .. } => Some(host),
        }
    }

    /// Whether nobody can eavesdrop on the connection: it is encrypted, or does not leave the machine.
    pub(super) fn is_private(&self) -> bool {
        self.encrypted || self.at.is_local()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_formatted_as_it_was_parsed() {
        for (text, uri) in [
            ("127.0.0.1:1", "http://127.0.0.1:1"),
            ("[::1]:1", "http://[::1]:1"),
            ("https://a.example:1", "https://a.example:1"),
            ("https://[::1]:1", "https://[::1]:1"),
            ("unix:/s", "unix:/s"),
        ] {
            let address: Address = text.parse().expect(text);
            assert_eq!((address.to_string().as_str(), address.uri().as_str()), (text, uri));
        }
        let plain: Address = "http://a:1/".parse().expect("a scheme and a slash");
        assert_eq!(plain.to_string(), "a:1");
        for bad in ["https://a", "https://unix:/s", "ftp://a:1", "https://", "a"] {
            let refused = bad.parse::<Address>().expect_err(bad);
            assert_eq!(refused.text, bad);
        }
    }
}
