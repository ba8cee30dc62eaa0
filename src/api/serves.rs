//! What a listener serves.

use std::net::IpAddr;
use std::sync::Arc;

/// What is served on a listener.
#[derive(Debug, Clone)]
pub(super) enum Serves {
    /// Calls, over HTTP/2.
    Calls,
    /// The console, over HTTP/1.1, to browsers that address it as one of these hosts.
    Console(Arc<Hosts>),
}

/// The hosts as which browsers may address the console.
///
/// A page of another site can let its own name resolve to this server's address (DNS rebinding) and would then be of
/// the same origin as the console. With TLS, the certificate does not fit that name. Without TLS, names are refused that
/// another site could have.
#[derive(Debug)]
pub(super) enum Hosts {
    /// Any host.
    Any,
    /// This name, `localhost`, and every IP address.
    Named(String),
}

impl Hosts {
    /// Whether requests with this `Host` header are served. The port does not matter, because it may be forwarded.
    pub(super) fn include(&self, header: &str) -> bool {
        let Self::Named(own) = self else { return true };
        let host = without_port(header);
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if address.unwrap_or(host).parse::<IpAddr>().is_ok() {
            return true;
        }
        host.eq_ignore_ascii_case("localhost") || (!own.is_empty() && host.eq_ignore_ascii_case(own))
    }
}

/// The host of `host:port`, `[ipv6]:port` or a host alone.
fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) && !host.ends_with(':') => host,
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_tls_only_names_that_no_other_site_can_have_are_served() {
        let hosts = Hosts::Named("locks.internal".into());
        for served in [
            "localhost",
            "LocalHost:50052",
            "127.0.0.1:8080",
            "10.1.2.3",
            "[::1]:50052",
            "[::1]",
            "locks.internal:1",
        ] {
            assert!(hosts.include(served), "{served}");
        }
        for refused in [
            "evil.example:50052",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil.example",
            "",
            ":50052",
            "[::1",
            "user@localhost",
        ] {
            assert!(!hosts.include(refused), "{refused}");
        }
        assert!(Hosts::Any.include("evil.example"));
        assert!(!Hosts::Named(String::new()).include(""));
    }
}
