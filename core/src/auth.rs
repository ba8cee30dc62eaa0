//! What errors and quotas know of authentication and authorization: why a caller was not authenticated, and the rules of what
//! an identity may do.

use std::fmt;

pub use self::rules::{BadPattern, Denied, Missing, Pattern, Rule, Rules, Verb};

pub mod rules;

/// Why a caller was not authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthenticationFailure {
    /// Neither a bearer token nor a certificate with a name was presented.
    Missing,
    /// The presented credentials are not accepted.
    Invalid,
    /// The credentials were valid and have expired.
    Expired,
}

impl AuthenticationFailure {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Missing, Self::Invalid, Self::Expired];

    /// The name of the reason in errors.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Invalid => "invalid",
            Self::Expired => "expired",
        }
    }
}

impl fmt::Display for AuthenticationFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "the call has no bearer token, and its connection no client certificate with a name",
            Self::Invalid => "the bearer token is not accepted",
            Self::Expired => "the bearer token, or the certificate of the connection, has expired",
        })
    }
}
